"""Every notebook, solved and unsolved: it runs, it gives its stored outputs, and it is laid out as a reader expects."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from nbval_run import NOTEBOOKS, ROOT, nbval, needs_a_server

from solutions import build
from tests.conformance.environment import vllm_python

NAMES = [f"{path.parent.name}/{path.stem}" for path in NOTEBOOKS]
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
every_run = pytest.mark.parametrize("path", [
    pytest.param(path, marks=pytest.mark.vllm if needs_a_server(path) else ()) for path in NOTEBOOKS], ids=NAMES)
PRINTED = {"signs"}  # plain lines, the first of which only announces the others
FIRST_SCREEN = 8  # cells, the badges and the first code cell included
PICTURE = re.compile(r"<svg|<img")


@pytest.mark.notebook
@pytest.mark.slow
@every_run
def test_it_gives_its_stored_outputs(path: Path, font_cache) -> None:
    if needs_a_server(path):
        vllm_python()  # or the test skips, and says why
    same, said = nbval(path)
    assert same, said


@every_notebook
def test_it_is_a_valid_executed_notebook_without_stderr(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(json.loads(path.read_text(encoding="utf-8")), relax_add_props=False)
    assert build.complaints(notebook, path.name) == []


@every_notebook
def test_it_opens_with_what_the_reader_gets(path: Path) -> None:
    badges, opening = nbformat.read(path, as_version=4).cells[:2]
    assert "colab.research.google.com" in badges.source
    assert "mybinder.org" in badges.source
    assert opening.source.startswith("# ")
    for words in ("You will be able to", "minutes", "Builds on"):
        assert words in opening.source, words
    title, minutes, able = build.introduction(nbformat.read(path, as_version=4))
    assert title and minutes and able, "the README's table could not be made from the opening"


@every_notebook
def test_a_picture_or_slider_is_on_the_first_screen(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells[:FIRST_SCREEN]
    assert any(shows_something(cell) for cell in cells)


def shows_something(cell: nbformat.NotebookNode) -> bool:
    """Whether the cell holds a picture or a widget."""
    if cell.cell_type == "markdown":
        return "generated" not in build.tags(cell) and bool(re.search(r"!\[|<img|<svg", cell.source))
    shown = [output.get("data", {}) for output in cell.get("outputs", [])]
    return any(
        build.WIDGET in data or "image/png" in data or PICTURE.search("".join(data.get("text/html", "")))
        for data in shown
    )


@every_notebook
def test_each_widget_has_a_picture_or_words_where_there_is_no_kernel(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        for view in (output.data for output in cell.get("outputs", []) if build.WIDGET in output.get("data", {})):
            assert "text/plain" in view, f"{path.name}: {cell.id} shows nothing where widgets don't work"


# ---------------------------------------------------------------- the comparison itself can fail

PLAIN = [
    'print("one")',
    '1 + 1',
    'from IPython.display import HTML, display\n'
    'display(HTML(\'<img alt="bars" src="data:image/png;base64,AAAA">\'))',
    'display(HTML(\'<svg width="10"><text>7</text></svg>\'))',
    'import ipywidgets\n'
    'ipywidgets.IntSlider(value=3)',
]


@every_notebook
def test_a_folded_output_gives_nothing_away(path: Path) -> None:
    """JupyterLab shows the first line of a folded output: it must not be the answer, nor HTML as text."""
    for cell in nbformat.read(path, as_version=4).cells:
        if "reveal" in cell.metadata.get("tags", []):
            for output in cell.outputs[:1]:
                if cell.id in PRINTED:
                    assert output.text.splitlines()[0].endswith(":"), cell.id
                    continue
                stored = output.get("data", {}).get("text/html", "")
                assert stored.startswith(build.FOLDED) == (path.parent.name == "notebooks"), cell.id
        elif path.parent.name == "notebooks" and cell.cell_type == "code":
            assert "outputs_hidden" not in cell.metadata.get("jupyter", {}), cell.id


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """A small executed notebook with each kind of output that the course uses."""
    path = tmp_path_factory.mktemp("small") / "small.ipynb"
    opening = new_markdown_cell("# Small", id="opening")
    cells = [opening, *(new_code_cell(source, id=f"c{k}") for k, source in enumerate(PLAIN))]
    notebook = build.notebook_of(cells, build.tidy_metadata(new_notebook()))
    build.execute(notebook, path.parent, "small.ipynb")
    build.write_notebook(notebook, path)
    return path


PLANTED = {  # name: (text in the file, what takes its place, whether nbval must see it)
    "nothing": ("Small", "Small", False),
    "stored text": ('"one\\n"', '"two\\n"', True),
    "stored value": ('"2"', '"3"', True),
    "vector picture": ('<text>7</text></svg>"', '<text>8</text></svg>"', True),
    "a picture's alternative text": ('"<img alt=\\"bars', '"<img alt=\\"b', True),
    "a picture's bytes": ('base64,AAAA\\">"', 'base64,BBBB+/\\">"', False),
    "a widget's value": ('"IntSlider(value=3)"', '"IntSlider(value=4)"', True),
    "an error": ('"1 + 1"', '"1 / 0"', True),
    "an extra line on stderr": ('"1 + 1"', '"import sys; print(1, file=sys.stderr)\\n", "1 + 1"', True),
}


@pytest.mark.notebook
@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_the_comparison_sees_what_was_planted(small: Path, tmp_path: Path, name: str) -> None:
    old, new, seen = PLANTED[name]
    text = small.read_text(encoding="utf-8")
    copy = tmp_path / "copy.ipynb"
    assert old in text
    copy.write_text(text.replace(old, new), encoding="utf-8")
    same, said = nbval(copy)
    assert same is not seen, said


@pytest.mark.notebook
@pytest.mark.slow
def test_a_changed_output_of_the_course_is_seen(tmp_path: Path) -> None:
    path = next(path for path in NOTEBOOKS if path.stem.startswith("02") and path.parent.name == "notebooks")
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if any("text" in output for output in cell.get("outputs", []))]
    stream = next(output for output in cells[-1].outputs if "text" in output)
    stream.text = stream.text + "one more line\n"
    (tmp_path / "labs").symlink_to(ROOT / "labs", target_is_directory=True)
    nbformat.write(notebook, tmp_path / path.name)
    same, said = nbval(tmp_path / path.name)
    assert not same
    assert "one more line" in said
