"""The builder: what it writes, what it refuses, and that everything committed is what it writes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from solutions import build

ROOT = Path(__file__).resolve().parent.parent
NAME = "01_small"
README = """# Small
<!-- generated: badges -->
<!-- end: badges -->
text between
<!-- generated: notebooks -->
<!-- end: notebooks -->
text after
"""
OPENING = """# A small notebook

**You will be able to** count to two, and
to say so. **20 to 25 minutes**. **Builds on** nothing."""
EXERCISE = '''def two() -> int:
    """One more than one."""
    if True:
        ### BEGIN SOLUTION
        answer = 1 + 1
        return answer
        ### END SOLUTION


try:
    print(two())
except NotImplementedError:
    print("not attempted yet")'''


def markdown(source: str, name: str, *labels: str) -> nbformat.NotebookNode:
    return new_markdown_cell(source, id=name, metadata={"tags": list(labels)} if labels else {})


def code(source: str, name: str, *labels: str) -> nbformat.NotebookNode:
    return new_code_cell(source, id=name, metadata={"tags": list(labels)} if labels else {})


def write_master(root: Path, cells: list, name: str = NAME) -> Path:
    """A master as an editor would save it."""
    metadata = {"widgets": {}, "language_info": {"version": "3.0", "name": "python"}}
    notebook = new_notebook(cells=cells, metadata=metadata)
    path = root / "solutions" / f"{name}.ipynb"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return path


def new_root(root: Path) -> Path:
    """A repository without notebooks."""
    (root / "labs").mkdir(parents=True)
    (root / "labs/__init__.py").touch()
    (root / "labs/standing.py").write_text("def standing(notebook):\n    print('progress of', notebook)\n")
    (root / "README.md").write_text(README, encoding="utf-8")
    (root / "pyproject.toml").write_text('[tool.course]\nrepository = "ada/batch"\nbranch = "trunk"\n')
    return root


CELLS = [
    markdown(OPENING, "opening"),
    code("import os, sys\nprint('a', end='')\nsys.stdout.flush()\nprint('b', os.environ['LABS_PROGRESS'])", "streams"),
    code(EXERCISE, "exercise"),
    code("import ipywidgets\nipywidgets.IntSlider(value=3)", "slider"),
    code("print('only in the answers')", "extra", "solution-only"),
    markdown("The answer is 2.", "spoiler", "solution-only"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A small repository, built."""
    root = new_root(tmp_path_factory.mktemp("built") / "root")
    write_master(root, CELLS)
    assert build.main(["--root", str(root)]) == 0
    return root


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    """A copy of it, to spoil."""
    return shutil.copytree(built, tmp_path / "copy")


def complaints(root: Path, capsys, *arguments: str) -> str:
    """What the builder says when it must not be content."""
    assert build.main(["--root", str(root), *arguments]) == 1
    return capsys.readouterr().err


# ---------------------------------------------------------------- the repository itself


def test_everything_committed_is_what_the_builder_writes() -> None:
    course = build.read_course(ROOT)
    assert build.check(course, build.chosen(course, [])) == []


# ---------------------------------------------------------------- from master to learner


def test_an_answer_becomes_one_line_at_its_own_indentation() -> None:
    assert build.without_answers("def f():\n    ### BEGIN SOLUTION\n    a\n\n    b\n    ### END SOLUTION\nf()") == (
        "def f():\n    raise NotImplementedError  # your code here\nf()"
    )


def test_each_answer_in_a_cell_is_replaced() -> None:
    source = "### BEGIN SOLUTION\na\n### END SOLUTION\nx\n  ### BEGIN SOLUTION\n  b\n  ### END SOLUTION"
    assert build.without_answers(source) == f"{build.STUB}\nx\n  {build.STUB}"


@pytest.mark.parametrize(
    "source",
    ["### BEGIN SOLUTION\na", "a\n### END SOLUTION", "### BEGIN SOLUTION\n### BEGIN SOLUTION\n### END SOLUTION"],
)
def test_a_marker_without_its_partner_is_refused(tmp_path: Path, capsys, source: str) -> None:
    write_master(new_root(tmp_path / "root"), [code(source, "odd")])
    said = complaints(tmp_path / "root", capsys)
    assert re.search(rf"solutions/{NAME}\.ipynb: cell \d \(odd\)", said)
    assert "SOLUTION" in said


def test_the_learners_notebook_is_the_master_without_its_answers(built: Path) -> None:
    learner = nbformat.read(built / f"notebooks/{NAME}.ipynb", as_version=4)
    ids = ["badges", "opening", "setup", "progress", "streams", "exercise", "slider"]
    assert [cell.id for cell in learner.cells] == ids
    assert "answer" not in learner.cells[5].source
    assert "        raise NotImplementedError  # your code here\n\n\ntry:" in learner.cells[5].source
    assert learner.cells[5].outputs[0].text == "not attempted yet\n"


def test_the_master_keeps_its_answers_and_gets_the_generated_cells(built: Path) -> None:
    master = nbformat.read(built / f"solutions/{NAME}.ipynb", as_version=4)
    ids = ["badges", "opening", "setup", "progress", "streams", "exercise", "slider", "extra", "spoiler"]
    assert [cell.id for cell in master.cells] == ids
    assert master.cells[5].source == EXERCISE
    assert master.cells[5].outputs[0].text == "2\n"


def test_badges_open_this_very_file(built: Path) -> None:
    for folder in build.FOLDERS:
        badge = nbformat.read(built / folder / f"{NAME}.ipynb", as_version=4).cells[0].source
        assert f"colab.research.google.com/github/ada/batch/blob/trunk/{folder}/{NAME}.ipynb)" in badge
        assert f"mybinder.org/v2/gh/ada/batch/trunk?urlpath=lab/tree/{folder}/{NAME}.ipynb)" in badge


def test_the_first_cell_is_short_and_the_same_everywhere(built: Path) -> None:
    cells = [nbformat.read(built / folder / f"{NAME}.ipynb", as_version=4).cells[2] for folder in build.FOLDERS]
    assert cells[0].source == cells[1].source == build.setup_source(build.read_course(built))
    assert build.length(cells[0]) <= 12
    assert "https://github.com/ada/batch" in cells[0].source
    assert '"trunk"' in cells[0].source


# ---------------------------------------------------------------- outputs


def test_outputs_are_stored_without_anything_that_changes(built: Path) -> None:
    for folder in build.FOLDERS:
        notebook = nbformat.read(built / folder / f"{NAME}.ipynb", as_version=4)
        ran = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert [cell.execution_count for cell in ran] == list(range(1, len(ran) + 1))
        assert [output.text for output in ran[2].outputs] == ["ab off\n"]
        assert notebook.metadata == {"kernelspec": build.KERNELSPEC, "language_info": build.LANGUAGE}
        assert all(set(cell.metadata) <= {"tags"} for cell in notebook.cells)
        assert build.complaints(notebook, folder) == []


@pytest.mark.slow
@pytest.mark.notebook
def test_a_second_build_writes_the_same_bytes(copy: Path) -> None:
    files = [*sorted(copy.glob("*/*.ipynb")), copy / "README.md"]
    before = [path.read_bytes() for path in files]
    assert build.main(["--root", str(copy), NAME]) == 0
    assert [path.read_bytes() for path in files] == before
    assert not list(copy.glob("*/.*.new"))


def test_timestamps_and_cut_streams_are_tidied() -> None:
    cell = code("print(1)", "c")
    cell.metadata["execution"] = {"iopub.status.busy": "now"}
    cell.outputs = [new_output("stream", name="stdout", text=text) for text in ("1", "\n")]
    notebook = build.notebook_of([cell], {"widgets": {}})
    build.tidy_outputs(notebook)
    [cell] = notebook.cells
    assert [output.text for output in cell.outputs] == ["1\n"]
    assert cell.metadata == {}
    assert "widgets" not in notebook.metadata


REFUSED = {
    "an error": ("1 / 0", "ZeroDivisionError"),
    "a note on stderr": ("import sys; print('careful', file=sys.stderr)", "careful"),
    "a warning": ("import warnings; warnings.warn('old')", "old"),
    "a long cell": ("\n".join(["a = 1"] * 26), "26 lines"),
    "a memory address": ("object()", "memory address"),
    "a dead kernel": ("import os; os._exit(1)", "died"),
    "a raw cell": (None, "raw cell"),
}


@pytest.mark.slow
@pytest.mark.notebook
@pytest.mark.parametrize("name", REFUSED)
def test_the_build_refuses(tmp_path: Path, capsys, name: str) -> None:
    source, word = REFUSED[name]
    cell = code(source, "bad") if source else nbformat.v4.new_raw_cell("x", id="bad")
    root = new_root(tmp_path / "root")
    before = write_master(root, [markdown(OPENING, "opening"), cell]).read_bytes()
    said = complaints(root, capsys)
    assert f"{NAME}.ipynb" in said
    assert word in said
    assert (root / f"solutions/{NAME}.ipynb").read_bytes() == before, "a failed build must leave the master alone"
    assert not (root / f"notebooks/{NAME}.ipynb").exists()


def test_an_unknown_name_is_refused_in_a_sentence(built: Path, capsys) -> None:
    assert complaints(built, capsys, "09_no") == f"There is no solutions/09_no.ipynb; there is {NAME}.\n"


@pytest.mark.parametrize(("lines", "said"), [
    ('repository = "nobody"\nbranch = "main"', "must look like OWNER/REPO, not 'nobody'"),
    ('repository = "me/repo.git"\nbranch = "main"', "must look like OWNER/REPO, not 'me/repo.git'"),
    ('repository = "https://github.com/me/repo"\nbranch = "main"', "must look like OWNER/REPO"),
    ('repository = 7\nbranch = "main"', "must look like OWNER/REPO, not 7"),
    ('repository = "me/repo"\nbranch = "my branch"', "branch must be a branch's name"),
    ('repository = "me/repo"', "needs the lines repository and branch"),
    ('repository = "me/repo\nbranch = "main"', "can't be read, is a quotation mark missing?"),
])
def test_a_broken_repository_line_is_refused_in_a_sentence(copy: Path, capsys, lines: str, said: str) -> None:
    (copy / "pyproject.toml").write_text(f"[tool.course]\n{lines}\n")
    sentence = complaints(copy, capsys, "--check")
    assert said in sentence
    assert sentence.count("\n") == 1
    assert "Traceback" not in sentence


# ---------------------------------------------------------------- --check


def test_check_is_content_with_what_was_built(built: Path, capsys) -> None:
    assert build.main(["--root", str(built), "--check"]) == 0
    assert capsys.readouterr().err == ""


def change_cell(number: int, key: str, value):
    """A change to one cell of the notebook's JSON."""
    return lambda raw: raw["cells"][number].__setitem__(key, value)


STDERR = [{"output_type": "stream", "name": "stderr", "text": ["hm\n"]}]
ERROR = [{"output_type": "error", "ename": "KeyError", "evalue": "'a'", "traceback": []}]
SPOILED = {  # what was done: (folder, change to the notebook's JSON, words of the complaint)
    "source": ("notebooks", change_cell(5, "source", "pass"), "cell 6 (exercise)"),
    "answer given away": ("notebooks", change_cell(5, "source", EXERCISE), "cell 6 (exercise)"),
    "markdown": ("notebooks", change_cell(1, "source", "# Other"), "cell 2 (opening)"),
    "id": ("notebooks", change_cell(4, "id", "other"), "cell 5 (other)"),
    "cell dropped": ("notebooks", lambda raw: raw["cells"].pop(), "6 cells"),
    "cell metadata": ("notebooks", change_cell(4, "metadata", {"scrolled": True}), "cell 5 (streams)"),
    "first cell": ("solutions", change_cell(2, "source", "import labs"), "cell 3 (setup)"),
    "badge": ("solutions", change_cell(0, "source", "[x](y)"), "cell 1 (badges)"),
    "widgets without state": ("notebooks", lambda raw: raw["metadata"].update(widgets={}), "metadata.widgets"),
    "widgets in the master": ("solutions", lambda raw: raw["metadata"].update(widgets={}), "metadata.widgets"),
    "kernel": ("notebooks", lambda raw: raw["metadata"].update(kernelspec={}), "metadata"),
    "not run": ("notebooks", change_cell(4, "execution_count", None), "cell 5 (streams) has not been run"),
    "stderr": ("solutions", change_cell(4, "outputs", STDERR), "cell 5 (streams) writes to stderr"),
    "an error": ("solutions", change_cell(4, "outputs", ERROR), "cell 5 (streams) stops with KeyError"),
    "old format": ("notebooks", lambda raw: raw.update(nbformat_minor=4), "old format"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_check_names_the_file_and_the_cell(copy: Path, capsys, name: str) -> None:
    folder, spoil, words = SPOILED[name]
    path = copy / folder / f"{NAME}.ipynb"
    raw = json.loads(path.read_text(encoding="utf-8"))
    spoil(raw)
    path.write_text(json.dumps(raw), encoding="utf-8")
    said = complaints(copy, capsys, "--check")
    assert f"{folder}/{NAME}.ipynb" in said
    assert words in said


def test_check_sees_a_missing_and_a_left_over_notebook(copy: Path, capsys) -> None:
    (copy / f"notebooks/{NAME}.ipynb").rename(copy / "notebooks/02_other.ipynb")
    said = complaints(copy, capsys, "--check")
    assert f"notebooks/{NAME}.ipynb: it is missing" in said
    assert "notebooks/02_other.ipynb: there is no solutions/02_other.ipynb" in said


def test_check_sees_a_changed_readme(copy: Path, capsys) -> None:
    readme = copy / "README.md"
    readme.write_text(readme.read_text().replace("20 to 25", "5"))
    assert "README.md: a generated part is out of date" in complaints(copy, capsys, "--check")


def test_check_sees_a_changed_repository_line(copy: Path, capsys) -> None:
    settings = copy / "pyproject.toml"
    settings.write_text(settings.read_text().replace("ada/batch", "bob/batch"))
    said = complaints(copy, capsys, "--check")
    assert "cell 1 (badges)" in said
    assert "README.md" in said


# ---------------------------------------------------------------- README and publishing


def test_the_readme_keeps_its_own_text_and_gets_a_row_a_notebook(built: Path) -> None:
    text = (built / "README.md").read_text(encoding="utf-8")
    assert "text between\n" in text
    assert text.endswith("text after\n")
    row = f"| [A small notebook](notebooks/{NAME}.ipynb) | 20 to 25 | count to two, and to say so |"
    assert row in text
    assert f"blob/trunk/notebooks/{NAME}.ipynb" in text


def test_an_aim_given_as_a_list_becomes_one_cell_of_the_table() -> None:
    text = "# T\n\n**You will be able to**\n\n- read a `x|y`\n- say why\n\n15 minutes. Builds on 00."
    notebook = new_notebook(cells=[markdown(text, "opening")])
    assert build.introduction(notebook) == ("T", "15", "read a `x\\|y`; say why")


def test_publishing_elsewhere_is_one_line_and_one_command(copy: Path) -> None:
    settings = copy / "pyproject.toml"
    settings.write_text(settings.read_text().replace("ada/batch", "bob/course"))
    assert build.main(["--root", str(copy), "--links"]) == 0
    assert build.main(["--root", str(copy), "--check"]) == 0
    texts = [path.read_text(encoding="utf-8") for path in [*copy.glob("*/*.ipynb"), copy / "README.md"]]
    assert all("bob/course" in text and "ada/batch" not in text for text in texts)
