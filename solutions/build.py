"""Write notebooks/ from the masters in solutions/, run both, and keep links and the cheat sheet in step.

A master is edited by hand. The learner's notebook is the master without its answers:

- in a code cell, the lines from ``### BEGIN SOLUTION`` to ``### END SOLUTION`` become one line that raises
  NotImplementedError;
- a cell tagged ``solution-only`` is dropped.

Cells tagged ``generated`` (the badges, the first code cell and the line on progress) are written here, in masters too,
from the ``repository`` line of pyproject.toml. So are the marked parts of README.md.

    python solutions/build.py                     build everything
    python solutions/build.py 01_eight_requests   build one notebook
    python solutions/build.py --links             only rewrite what depends on the repository line; run nothing
    python solutions/build.py --check             change nothing; fail if anything committed differs

Notebook 05 needs a real vLLM to be built: LABS_VLLM_PYTHON names the Python that has it.

    python solutions/build.py 05_live_server --record   also keep what it measures as the course's own recording
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("solutions", "notebooks")
# JupyterLab shows the first line of a folded output: this one, instead of the answer that is folded away.
FOLDED = "Stored output: run this cell for your own.\n"
STUB = "raise NotImplementedError  # your code here"
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
WIDGET = "application/vnd.jupyter.widget-view+json"
LONGEST, LONG = 25, 12  # lines in a code cell: an error above the first, a note above the second
CELL_SECONDS = 300
NOT_REAL = ("SIMULATED", "recorded 20")  # outputs of the stand-in, or of a recording, are no stored outputs
RECORD = """\
from labs.live.recordings import FOLDER, save
save(FOLDER / "vllm-cpu.json", runs, "python solutions/build.py 05_live_server --record", server=first.source)"""
KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
LANGUAGE = {"file_extension": ".py", "mimetype": "text/x-python", "name": "python", "pygments_lexer": "ipython3"}

# The first code cell of every notebook. It ends in one sentence, without a traceback, when it can't do its work:
# IPython shows what _render_traceback_ returns in place of the traceback.
SETUP = """\
import pathlib, subprocess, sys  # find the course's files; where there are none (Colab), fetch them; install nothing
here, site = pathlib.Path.cwd(), "https://github.com/@REPOSITORY@"
root = next((p for p in (here, *here.parents) if (p / "labs/__init__.py").is_file()), here / "@NAME@")
fetch = ["git", "clone", "--quiet", "--depth", "1", "--branch", "@BRANCH@", site, str(root)]
try:
    if not (root / "labs/__init__.py").is_file():
        subprocess.run(fetch, check=True, timeout=120, capture_output=True, stdin=subprocess.DEVNULL)
except (OSError, subprocess.SubprocessError):
    stop = RuntimeError(f"This isn't the course's folder and fetching {site} failed: open the notebook there, or check "
                        f"address and internet connection, delete any folder {root.name}, and run this cell again.")
    stop._render_traceback_ = lambda: [str(stop)]; raise stop from None
sys.path[:0] = [] if str(root) in sys.path else [str(root)]"""

# Right behind it: one line with what is passed of this notebook. The file that it reads lies beside the notebooks.
PROGRESS = """\
from labs.standing import standing  # what you have passed is kept in .progress.json, beside the notebooks
standing("@NOTEBOOK@")"""


class BuildError(Exception):
    """Something the author must change, said in a sentence."""


@dataclass(frozen=True)
class Course:
    """Where the course lives: on this disk, and on GitHub."""

    root: Path
    repository: str
    branch: str

    @property
    def name(self) -> str:
        """The repository without its owner: the folder that a clone makes."""
        return self.repository.split("/")[1]

    def masters(self) -> list[Path]:
        """Every master, in the order of the course."""
        return sorted((self.root / "solutions").glob("[0-9][0-9]_*.ipynb"))

    def learners(self) -> list[Path]:
        """Every notebook that the learner opens."""
        return sorted((self.root / "notebooks").glob("*.ipynb"))


def read_course(root: Path) -> Course:
    """Read the repository and branch from pyproject.toml. Raises BuildError that says which line to change."""
    try:
        settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["course"]
        repository, branch = settings["repository"], settings["branch"]
    except tomllib.TOMLDecodeError as error:
        raise BuildError(f"pyproject.toml: this line can't be read, is a quotation mark missing? {error}.") from None
    except KeyError as error:
        raise BuildError(f"pyproject.toml: [tool.course] needs the lines repository and branch; no {error}.") from None
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", str(repository)) or str(repository).endswith(".git"):
        raise BuildError(f"pyproject.toml: repository must look like OWNER/REPO, not {repository!r}.")
    if not re.fullmatch(r"[\w./-]+", str(branch)):
        raise BuildError(f"pyproject.toml: branch must be a branch's name such as main, not {branch!r}.")
    return Course(root, repository, branch)


# ---------------------------------------------------------------- what is generated


def badges(course: Course, path: str) -> str:
    """Markdown badges that open exactly this file on Colab and on Binder."""
    colab = f"https://colab.research.google.com/github/{course.repository}/blob/{course.branch}/{path}"
    binder = f"https://mybinder.org/v2/gh/{course.repository}/{course.branch}?urlpath=lab/tree/{path}"
    return (
        f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({colab}) "
        f"[![Open in Binder](https://mybinder.org/badge_logo.svg)]({binder})"
    )


def setup_source(course: Course) -> str:
    """The first code cell: the same in every notebook."""
    values = {"@REPOSITORY@": course.repository, "@NAME@": course.name, "@BRANCH@": course.branch}
    return re.sub("@[A-Z]+@", lambda mark: values[mark[0]], SETUP)


def generated_cells(course: Course, path: str) -> tuple[NotebookNode, NotebookNode, NotebookNode]:
    """The badges, the first code cell and the line on progress of the notebook at this path."""
    badge = new_markdown_cell(badges(course, path), id="badges", metadata={"tags": ["generated"]})
    setup = new_code_cell(setup_source(course), id="setup", metadata={"tags": ["generated", "setup"]})
    shown = PROGRESS.replace("@NOTEBOOK@", Path(path).stem)
    return badge, setup, new_code_cell(shown, id="progress", metadata={"tags": ["generated"]})


def readme_parts(course: Course) -> dict[str, str]:
    """The parts of README.md that are written here, by the name in their markers."""
    workflow = f"https://github.com/{course.repository}/actions/workflows/ci.yml"
    tests = f"[![Tests]({workflow}/badge.svg?branch={course.branch})]({workflow})"
    return {"badges": f"{badges(course, 'notebooks/00_start_here.ipynb')} {tests}", "notebooks": readme_table(course)}


def readme_table(course: Course) -> str:
    """One row a notebook: its title, minutes and aim as its own first cell gives them, and where to open it."""
    rows = ["| notebook | minutes | afterwards you will be able to | open | answers |", "|---|---|---|---|---|"]
    for master in course.masters():
        title, minutes, able = introduction(read_notebook(master))
        path = f"notebooks/{master.name}"
        answers = f"[solution](solutions/{master.name})"
        rows.append(f"| [{title}]({path}) | {minutes} | {able} | {badges(course, path)} | {answers} |")
    return "\n".join(rows)


def introduction(notebook: NotebookNode) -> tuple[str, str, str]:
    """Title, minutes and "You will be able to ..." from the first markdown cell that is the author's own."""
    own = [c.source for c in notebook.cells if c.cell_type == "markdown" and "generated" not in tags(c)]
    text = own[0] if own else ""
    title = re.search(r"^# +(.+)$", text, re.M)
    minutes = re.search(r"(\d+(?: ?(?:-|–|to) ?\d+)?)\W+minutes", text)
    able = re.search(r"You will be able to[*_:…. ]*(.+?)(?:\.(?=\s|$)|\n\s*\n(?!\s*(?:[-*]|\d+\.) )|\Z)", text, re.S)
    items = re.split(r"\n\s*[-*] |\n\s*\d+\. ", able[1]) if able else []
    aim = "; ".join(" ".join(item.split()).strip("*;, ") for item in items if item.strip())
    return (title[1] if title else ""), (minutes[1] if minutes else ""), aim.replace("|", "\\|")


def stored_readme(course: Course) -> str:
    """README.md as it is on disk."""
    path = course.root / "README.md"
    if not path.is_file():
        raise BuildError(f"There is no {path}, which holds the table of notebooks.")
    return path.read_text(encoding="utf-8")


def readme_text(course: Course) -> str:
    """README.md with its marked parts written afresh."""
    text = stored_readme(course)
    for name, part in readme_parts(course).items():
        begin, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise BuildError(f"README.md: it needs one line {begin} and one line {end}.")
        text = f"{text.split(begin)[0]}{begin}\n{part}\n{end}{text.split(end)[1]}"
    return text


def pages(course: Course) -> dict[Path, str]:
    """The pages that modules of labs/ write, and what each must hold; those of modules that aren't there are left out.

    notebooks/cheat_sheet.html is all theirs; in TEACHING.md it is what stands between two marks.
    """
    found = {}
    if sheet := said_by(course, "cheat_sheet"):
        found[course.root / "notebooks/cheat_sheet.html"] = sheet
    if wrong := said_by(course, "teaching"):
        path = course.root / "TEACHING.md"
        before, _, rest = path.read_text(encoding="utf-8").partition("<!-- generated: wrong answers -->\n")
        after = rest.partition("<!-- end: wrong answers -->")[2]
        found[path] = f"{before}<!-- generated: wrong answers -->\n{wrong}<!-- end: wrong answers -->{after}"
    return found


def said_by(course: Course, module: str) -> str:
    """What `python -m labs.MODULE` writes, or nothing if there is no such module."""
    if not (course.root / f"labs/{module}.py").is_file():
        return ""
    command = [sys.executable, "-m", f"labs.{module}"]
    done = subprocess.run(command, cwd=course.root, capture_output=True, text=True, encoding="utf-8")
    if done.returncode:
        raise BuildError(f"labs/{module}.py: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


# ---------------------------------------------------------------- from master to learner


def tags(cell: NotebookNode) -> list[str]:
    """The cell's tags, or none."""
    return cell.metadata.get("tags", [])


def read_notebook(path: Path) -> NotebookNode:
    """Read a notebook, giving an id to cells that an older program wrote without one."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    for position, cell in enumerate(raw["cells"]):
        text = "".join(cell["source"])
        cell.setdefault("id", hashlib.sha256(f"{position}{text}".encode()).hexdigest()[:8])
    raw["nbformat_minor"] = max(raw["nbformat_minor"], 5)
    return nbformat.from_dict(nbformat.reads(json.dumps(raw), as_version=4))


def write_notebook(notebook: NotebookNode, path: Path) -> None:
    """Write a valid notebook in one move, so that nobody ever reads half of it."""
    nbformat.validate(notebook)
    write_text(nbformat.writes(notebook) + "\n", path)


def write_text(text: str, path: Path) -> None:
    """Write beside the file, then take its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8", newline="\n")
    beside.replace(path)


def without_answers(source: str) -> str:
    """Replace each solution by a stub at its own indentation."""
    kept: list[str] = []
    inside = False
    for line in source.split("\n"):
        if line.strip() == BEGIN and not inside:
            inside = True
            kept.append(line[: len(line) - len(line.lstrip())] + STUB)
        elif line.strip() == END and inside:
            inside = False
        elif line.strip() in (BEGIN, END):
            raise BuildError(f"{line.strip()!r} without its partner")
        elif not inside:
            kept.append(line)
    if inside:
        raise BuildError(f"{BEGIN!r} without its partner")
    return "\n".join(kept)


def tidy_metadata(notebook: NotebookNode) -> dict:
    """The notebook's metadata without anything that depends on the machine that saved it.

    metadata.widgets goes in particular: saved without its state, it makes GitHub say "Invalid Notebook".
    """
    kept = {"kernelspec": KERNELSPEC, "language_info": LANGUAGE}
    if "accelerator" in notebook.metadata:
        kept["accelerator"] = notebook.metadata["accelerator"]
    if "gpuType" in notebook.metadata.get("colab", {}):
        kept["colab"] = {"gpuType": notebook.metadata["colab"]["gpuType"]}
    return kept


def tidy_cell(cell: NotebookNode) -> NotebookNode:
    """A copy of the cell with its id, source, tags and nothing else."""
    metadata = {key: cell.metadata[key] for key in ("jupyter", "tags") if key in cell.metadata}
    new = new_code_cell if cell.cell_type == "code" else new_markdown_cell
    if cell.cell_type == "raw":
        raise BuildError("is a raw cell; use code or markdown")
    return new(cell.source, id=cell.id, metadata=metadata)


def tidy_master(course: Course, master: NotebookNode, path: str) -> NotebookNode:
    """The master as it must be stored: generated cells fresh, no outputs yet."""
    cells = [each_cell(path, number, cell, tidy_cell) for number, cell in enumerate(master.cells, 1)]
    badge, setup, progress = generated_cells(course, path)
    where = setup_position(cells)
    own = [cell for cell in cells if "generated" not in tags(cell)]
    own[where:where] = [setup, progress]
    return notebook_of([badge, *own], tidy_metadata(master))


def setup_position(cells: list[NotebookNode]) -> int:
    """Where, among the author's own cells, the first code cell belongs: where it was, if no code comes before it."""
    before = 0
    for cell in cells:
        if "setup" in tags(cell) or (cell.cell_type == "code" and "generated" not in tags(cell)):
            return before
        before += "generated" not in tags(cell)
    return min(1, before)


def notebook_of(cells: list[NotebookNode], metadata: dict) -> NotebookNode:
    """A notebook in the format's version 4.5, the first with cell ids."""
    return nbformat.from_dict({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})


def each_cell(path: str, number: int, cell: NotebookNode, change):
    """Apply a change to a cell; an error says where it happened."""
    try:
        return change(cell)
    except BuildError as error:
        raise BuildError(f"{path}: cell {number} ({cell.id}) {error}.") from None


def learner_of(course: Course, master: NotebookNode, name: str) -> NotebookNode:
    """The learner's notebook that a tidy master gives, without outputs."""

    def shown(cell: NotebookNode) -> NotebookNode:
        copy = tidy_cell(cell)
        copy.source = without_answers(cell.source) if cell.cell_type == "code" else cell.source
        if "reveal" in tags(cell):  # folded until it is run, so that a stored answer doesn't spoil the prediction
            copy.metadata["jupyter"] = {"outputs_hidden": True}
        return copy

    fresh = {cell.id: cell for cell in generated_cells(course, f"notebooks/{name}")}
    cells = [
        fresh[cell.id] if "generated" in tags(cell) else each_cell(f"solutions/{name}", number, cell, shown)
        for number, cell in enumerate(master.cells, 1)
        if "solution-only" not in tags(cell)
    ]
    for cell in cells:  # a master's links to what lies beside the learner's notebook
        cell.source = cell.source.replace("](../notebooks/", "](")
    return notebook_of(cells, master.metadata)


def pair(course: Course, name: str) -> dict[str, NotebookNode]:
    """Both notebooks of this name as they must be, outputs aside, by their paths from the root."""
    master = tidy_master(course, read_notebook(course.root / "solutions" / name), f"solutions/{name}")
    return {f"solutions/{name}": master, f"notebooks/{name}": learner_of(course, master, name)}


# ---------------------------------------------------------------- running


def execute(notebook: NotebookNode, folder: Path, path: str) -> None:
    """Run every cell in a fresh kernel of this very Python, in the notebook's folder; outputs go into the notebook."""
    from jupyter_client import AsyncKernelManager
    from jupyter_client.kernelspec import KernelSpec
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    class ThisPython(AsyncKernelManager):
        """Starts sys.executable, whatever kernels the machine has installed under the name python3."""

        @property
        def kernel_spec(self) -> KernelSpec:
            argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=ERROR"]
            return KernelSpec(argv=argv, display_name="Python 3", language="python")

    client = NotebookClient(
        notebook, timeout=CELL_SECONDS, record_timing=False, store_widget_state=False,
        kernel_manager_class=ThisPython, resources={"metadata": {"path": str(folder)}},
    )
    with tempfile.TemporaryDirectory() as profile:
        try:
            client.execute(env=kernel_environment(profile))
        except CellExecutionError:
            pass  # the cell's own output says more, and is looked at next
        except (CellTimeoutError, DeadKernelError) as error:
            raise BuildError(f"{path}: {str(error).splitlines()[0]}") from None
    tidy_outputs(notebook)


def kernel_environment(profile: str) -> dict[str, str]:
    """The environment of a kernel that neither reads nor writes anything of the author's own."""
    environment = {key: value for key, value in os.environ.items() if key != "MPLBACKEND"}
    return environment | {"LABS_PROGRESS": "off", "IPYTHONDIR": profile, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}


def tidy_outputs(notebook: NotebookNode) -> None:
    """Make the outputs the same on every run: counts from 1, streams joined, widgets' ids taken from the cell."""
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = LANGUAGE
    count = 0
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.metadata.pop("execution", None)
        cell.outputs = joined_streams(cell.outputs)
        ran = bool(cell.source.strip())
        count += ran
        cell.execution_count = count if ran else None
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count
            if "outputs_hidden" in cell.metadata.get("jupyter", {}) and "text/html" in output.get("data", {}):
                output.data["text/html"] = FOLDED + output.data["text/html"]
        for view, model_id in zip(widget_views(cell), widget_ids(cell), strict=True):
            view["model_id"] = model_id


def joined_streams(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Neighbouring pieces of one stream as one: where the kernel cuts them is a matter of timing."""
    joined: list[NotebookNode] = []
    for output in outputs:
        before = joined[-1] if joined else None
        if before and output.output_type == before.output_type == "stream" and output.name == before.name:
            before.text += output.text
        else:
            joined.append(output)
    return joined


def widget_views(cell: NotebookNode) -> list[NotebookNode]:
    """The cell's widgets, as its outputs name them."""
    return [output.data[WIDGET] for output in cell.outputs if WIDGET in output.get("data", {})]


def widget_ids(cell: NotebookNode) -> list[str]:
    """The ids that the cell's widgets get in the file: the kernel's own are random."""
    return [hashlib.sha256(f"{cell.id} {k}".encode()).hexdigest()[:32] for k in range(len(widget_views(cell)))]


# ---------------------------------------------------------------- what must hold


def complaints(notebook: NotebookNode, path: str) -> list[str]:
    """What is wrong with a notebook as it is stored, a sentence each."""
    found = []
    if "widgets" in notebook.metadata:
        found.append(f"{path}: metadata.widgets is there, which GitHub shows as an invalid notebook; build it again.")
    count = 0
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type != "code":
            continue
        count += bool(cell.source.strip())
        where = f"{path}: cell {number} ({cell.id})"
        found += [f"{where} {problem}" for problem in cell_complaints(cell, count)]
    return found


def cell_complaints(cell: NotebookNode, count: int) -> list[str]:
    """What is wrong with one executed code cell, the count-th of its notebook."""
    found = []
    if length(cell) > LONGEST:
        found.append(f"has {length(cell)} lines, more than {LONGEST}; move some of it to labs/.")
    errors = [output for output in cell.outputs if output.output_type == "error"]
    if errors:
        return [*found, f"stops with {errors[0].ename}: {errors[0].evalue}"]
    if cell.source.strip() and cell.execution_count != count:
        found.append("has not been run in order; build the notebook again.")
    for output in cell.outputs:
        shown = str(output.get("text", "")) + str(output.get("data", ""))
        if any(words in shown for words in NOT_REAL):
            found.append("was not measured on a real server: name a vLLM with LABS_VLLM_PYTHON and build it.")
        if output.output_type == "stream" and output.name == "stderr":
            found.append(f"writes to stderr: {textwrap.shorten(output.text, 300)}")
        if re.search(r" at 0x[0-9a-fA-F]{6,}", shown):
            found.append("shows a memory address, different on each run; end the cell with `_ =` or plt.show().")
    if [view["model_id"] for view in widget_views(cell)] != widget_ids(cell):
        found.append("holds a widget's id as the kernel gave it; build the notebook again.")
    return found


def length(cell: NotebookNode) -> int:
    """Lines of the cell that a reader reads: the solution's markers aside."""
    return sum(line.strip() not in (BEGIN, END) for line in cell.source.split("\n"))


def differences(stored: NotebookNode, wanted: NotebookNode, path: str) -> list[str]:
    """Where the stored notebook is not, outputs aside, what the builder writes: a sentence for the first cell."""
    again = f"run python solutions/build.py {Path(path).stem}"
    for number, (one, other) in enumerate(zip(stored.cells, wanted.cells, strict=False), 1):
        if tidy_form(one) != tidy_form(other):
            return [f"{path}: cell {number} ({one.id}) is not what the builder writes; {again}.\n{changes(one, other)}"]
    if len(stored.cells) != len(wanted.cells):
        return [f"{path}: it has {len(stored.cells)} cells, the builder writes {len(wanted.cells)}; {again}."]
    if {k: v for k, v in stored.metadata.items() if k != "widgets"} != wanted.metadata:
        return [f"{path}: its metadata is not what the builder writes; {again}."]
    return []


def tidy_form(cell: NotebookNode) -> tuple:
    """What of a cell must be as the builder writes it."""
    return cell.get("id"), cell.cell_type, cell.source, json.dumps(cell.metadata, sort_keys=True)


def changes(stored: NotebookNode, wanted: NotebookNode) -> str:
    """The lines in which two cells differ, those of the stored one first."""
    one, other = (f"{tidy_form(c)[:2]} {tidy_form(c)[3]}\n{c.source}".split("\n") for c in (stored, wanted))
    return "\n".join(f"    {line}" for line in difflib.unified_diff(one, other, "stored", "wanted", lineterm="", n=0))


# ---------------------------------------------------------------- commands


def build_one(course: Course, name: str, record: bool = False) -> str:
    """Build, run and write one pair of notebooks; says how long each took. `record` runs a cell more in the master."""
    built, report = pair(course, name), []
    for path, notebook in built.items():
        begun = time.monotonic()
        folder = course.root / Path(path).parent
        folder.mkdir(exist_ok=True)
        more = [new_code_cell(RECORD)] if record and path.startswith("solutions/") else []
        notebook.cells += more
        execute(notebook, folder, path)
        for cell in [notebook.cells.pop() for _ in more]:
            if any(output.output_type == "error" for output in cell.outputs):
                raise BuildError(f"{path}: nothing was recorded: {cell.outputs[-1].evalue}")
        if found := complaints(notebook, path):
            raise BuildError("\n".join(found))
        report.append(f"{path}: {time.monotonic() - begun:.1f} s")
        report += [
            f"  note: cell {number} ({cell.id}) has {length(cell)} lines, more than {LONG}"
            for number, cell in enumerate(notebook.cells, 1)
            if cell.cell_type == "code" and length(cell) > LONG
        ]
    for path, notebook in built.items():
        write_notebook(notebook, course.root / path)
    return "\n".join(report)


def build(course: Course, names: list[str], record: bool = False) -> list[str]:
    """Build these notebooks, then README.md; returns what went wrong.

    One after the other: some cells measure this machine, and would measure the other notebook too.
    """
    failed = []
    # matplotlib says on stderr that it builds its font cache: let it do that here, not in a notebook.
    subprocess.run([sys.executable, "-c", "import matplotlib.font_manager"], check=False, capture_output=True)
    for name in names:
        try:
            print(build_one(course, name, record), flush=True)
        except BuildError as error:
            failed.append(str(error))
        except (ValueError, KeyError, nbformat.ValidationError) as error:
            failed.append(f"solutions/{name}: it can't be read as a notebook: {error}")
    for path, text in pages(course).items():
        write_text(text, path)
    write_text(readme_text(course), course.root / "README.md")
    return failed


def links(course: Course) -> None:
    """Rewrite everything that depends on the repository line, and keep all outputs."""
    for folder in FOLDERS:
        for path in sorted((course.root / folder).glob("*.ipynb")):
            notebook = read_notebook(path)
            fresh = {cell.id: cell for cell in generated_cells(course, f"{folder}/{path.name}")}
            for cell in notebook.cells:
                if "generated" in tags(cell) and cell.id in fresh:
                    cell.source = fresh[cell.id].source
            write_notebook(notebook, path)
    write_text(readme_text(course), course.root / "README.md")


def check(course: Course, names: list[str]) -> list[str]:
    """What of the stored files is not what this builder would write, without running anything."""
    found = []
    for name in names:
        try:
            wanted = pair(course, name)
        except BuildError as error:
            found.append(str(error))
            continue
        for path, notebook in wanted.items():
            found += check_one(course.root, path, notebook)
    masters = {path.name for path in course.masters()}
    orphans = [path.name for path in course.learners() if path.name not in masters]
    found += [f"notebooks/{name}: there is no solutions/{name}." for name in orphans]
    for path, text in pages(course).items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            found.append(f"{path.relative_to(course.root)}: it is not what labs/ gives; run python solutions/build.py.")
    if readme_text(course) != stored_readme(course):
        found.append("README.md: a generated part is out of date; run python solutions/build.py --links.")
    return found


def check_one(root: Path, path: str, wanted: NotebookNode) -> list[str]:
    """What is wrong with one stored notebook, given what it must be."""
    if not (root / path).is_file():
        return [f"{path}: it is missing; run python solutions/build.py {Path(path).stem}."]
    raw = json.loads((root / path).read_text(encoding="utf-8"))
    if (raw["nbformat"], raw["nbformat_minor"]) != (4, 5) or not all("id" in cell for cell in raw["cells"]):
        return [f"{path}: it was saved in an old format; run python solutions/build.py {Path(path).stem}."]
    stored = read_notebook(root / path)
    return differences(stored, wanted, path) or complaints(stored, path)


def chosen(course: Course, names: list[str]) -> list[str]:
    """File names of the masters that the reader of the command line meant, all when none was named."""
    known = {path.stem: path.name for path in course.masters()}
    wanted = [Path(name).stem for name in names] or list(known)
    if unknown := [name for name in wanted if name not in known]:
        raise BuildError(f"There is no solutions/{unknown[0]}.ipynb; there is {', '.join(known) or 'none'}.")
    return [known[name] for name in wanted]


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; 0 if all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="notebooks to build or check (all)")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository (this one)")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="change nothing; fail if anything differs")
    mode.add_argument("--links", action="store_true", help="rewrite the generated parts; run nothing")
    parser.add_argument("--record", action="store_true", help="keep what the notebooks named measure as a recording")
    options = parser.parse_args(arguments)
    try:
        course = read_course(options.root.resolve())
        names = chosen(course, options.names)
        if options.links:
            links(course)
            return 0
        failed = check(course, names) if options.check else build(course, names, options.record)
    except BuildError as error:
        failed = [str(error)]
    for sentence in failed:
        print(sentence, file=sys.stderr)
    if options.check and not failed:
        print(f"What is committed is what this builder writes: {', '.join(Path(name).stem for name in names)}.")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
