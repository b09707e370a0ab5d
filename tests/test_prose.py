"""Numbers in the notebooks' prose must stand in a cell of the same notebook: computed there, or put there as input."""
from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "solutions").glob("*.ipynb"))
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?![\w.]*\w)")
# What prose may hold that no cell needs to compute.
NOT_CLAIMS = re.compile(r"`[^`]*`|\$[^$]*\$|\]\([^)]*\)|https?://\S+|\b(?:19|20)\d\d\b|\d+ minutes|https?:\S+|p\d\d\b"
                        r"|[Nn]otebooks? \d|^#+ \d+ ·", re.MULTILINE)
SMALL = 12  # counts that a reader can check by looking: eight requests, four slots


def shown(notebook: nbformat.NotebookNode) -> str:
    """All code and all outputs of a notebook as one text, without thousands separators."""
    parts = []
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        parts.append(cell.source)
        for output in cell.outputs:
            parts += [output.get("text", ""), *(str(v) for v in output.get("data", {}).values())]
    return re.sub(r"(?<=\d)[,_](?=\d{3})", "", re.sub(r"base64,[\w+/=]+", "", "\n".join(parts)))


def unsupported(notebook: nbformat.NotebookNode) -> list[str]:
    """Numbers in markdown cells that stand in no code cell and no output."""
    known, missing = shown(notebook), []
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            continue
        for found in NUMBER.findall(NOT_CLAIMS.sub(" ", cell.source)):
            number = found.replace(",", "").rstrip(".")
            if ("." in number or int(number) > SMALL) and not re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", known):
                missing.append(f"{cell.id}: {found}")
    return missing


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_every_number_in_prose_stands_in_a_cell(path: Path) -> None:
    assert unsupported(nbformat.read(path, 4)) == []


def test_a_number_from_nowhere_is_found() -> None:
    notebook = nbformat.v4.new_notebook(cells=[
        nbformat.v4.new_markdown_cell("It is 83.7 %, after 2,206 steps, not 99.9 %.", id="claim"),
        nbformat.v4.new_code_cell("print(83.7, 2206)", id="cell")])
    assert unsupported(notebook) == ["claim: 99.9"]
