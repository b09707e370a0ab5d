"""Build the site that runs the course in a browser, with nothing installed: JupyterLite with Pyodide.

    python -m venv .venv-lite && .venv-lite/bin/pip install -r lite/requirements.txt
    .venv-lite/bin/python lite/build.py site
    python -m http.server --directory site --bind 127.0.0.1 8000

The site holds the notebooks that need no server, and `labs/`. A first cell is added to each notebook, which fetches
numpy, matplotlib and ipywidgets into the browser; links to the notebook that needs a server go to a page that says so.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDS_A_SERVER = ("05",)
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "jupyter", "recordings_raw")
PACKAGES = ("numpy", "matplotlib", "ipywidgets")
INSTALL = f"""\
# Only here, in the browser: fetch what the course stands on. It takes a minute the first time.
import piplite
await piplite.install({list(PACKAGES)!r})"""
NOT_HERE = """\
# Not in the browser

Notebook {number} starts a server, and this Python runs inside a page, which can start none.
Open it [on Colab]({colab}), or on your own machine, as the README says.
"""


def notebooks(root: Path = ROOT) -> list[Path]:
    """The learner's notebooks that need no server."""
    return [p for p in sorted((root / "notebooks").glob("[0-9]*.ipynb")) if not p.name.startswith(NEEDS_A_SERVER)]


def for_the_browser(book: dict) -> dict:
    """The notebook with the cell that installs put first among the code, and links that hold on the site."""
    cell = {"cell_type": "code", "id": "in-the-browser", "metadata": {"tags": ["generated"]}, "execution_count": None,
            "outputs": [], "source": INSTALL}
    cells = [dict(c) for c in book["cells"]]
    for one in cells:
        source = one["source"] if isinstance(one["source"], str) else "".join(one["source"])
        if one["cell_type"] == "markdown":
            one["source"] = re.sub(r"\]\((0[0-9]_\w+)\.ipynb", lambda m: f"]({_place(m[1])}", source)
    first = next(i for i, c in enumerate(cells) if c["cell_type"] == "code")
    kernel = {"name": "python", "display_name": "Python (Pyodide)", "language": "python"}
    return book | {"cells": cells[:first] + [cell] + cells[first:],
                   "metadata": book["metadata"] | {"kernelspec": kernel}}


def contents(folder: Path, root: Path = ROOT) -> list[str]:
    """Fill `folder` with what the site holds; the names of its notebooks."""
    target = folder / "notebooks"
    target.mkdir(parents=True)
    for path in notebooks(root):
        book = for_the_browser(json.loads(path.read_text(encoding="utf-8")))
        (target / path.name).write_text(json.dumps(book, indent=1), encoding="utf-8")
    for page in (root / "notebooks").glob("*.html"):  # the cheat sheet, which a notebook links to
        shutil.copy(page, target)
    if (root / "notebooks/img").is_dir():
        shutil.copytree(root / "notebooks/img", target / "img")
    shutil.copytree(root / "labs", folder / "labs", ignore=LEFT_OUT)
    for number in NEEDS_A_SERVER:
        for path in (root / "notebooks").glob(f"{number}_*.ipynb"):
            colab = re.search(r"https://colab\.research\.google\.com/github/[^\s)\"]+", path.read_text("utf-8"))
            page = NOT_HERE.format(number=int(number), colab=colab[0] if colab else "https://colab.research.google.com")
            (target / f"{path.stem}.md").write_text(page, encoding="utf-8")
    return [path.name for path in notebooks(root)]


def build(site: Path) -> None:
    """Write the site. Raises CalledProcessError if JupyterLite does not build it."""
    with tempfile.TemporaryDirectory() as folder:
        names = contents(Path(folder) / "contents")
        settings = {"jupyter-lite-schema-version": 0, "jupyter-config-data": {"appName": "Continuous batching"}}
        (Path(folder) / "jupyter-lite.json").write_text(json.dumps(settings), encoding="utf-8")
        command = [sys.executable, "-m", "jupyter", "lite", "build", "--lite-dir", folder,
                   "--contents", str(Path(folder) / "contents"), "--output-dir", str(site.resolve())]
        subprocess.run(command, check=True, cwd=folder)
    print(f"{len(names)} notebooks in {site}: open /lab/index.html?path=notebooks/{names[0]}")


def _place(stem: str) -> str:
    return f"{stem}.md" if stem.startswith(NEEDS_A_SERVER) else f"{stem}.ipynb"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path, nargs="?", default=ROOT / "site", help="the folder to write (site/)")
    build(parser.parse_args().site)
