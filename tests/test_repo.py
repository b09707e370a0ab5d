"""The repository as a whole: its commands, its links, its names, and the order in which modules import each other."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest

from solutions import build

ROOT = Path(__file__).resolve().parent.parent
COURSE = build.read_course(ROOT)
NOTEBOOKS = sorted(path for folder in build.FOLDERS for path in (ROOT / folder).glob("*.ipynb"))
TEST_COMMAND = "python3 -m venv .venv && .venv/bin/pip install -r tests/requirements.txt && .venv/bin/pytest"
START_COMMAND = (
    "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt"
    " && .venv/bin/jupyter lab notebooks/00_start_here.ipynb"
)


@cache
def tracked() -> dict[str, str]:
    """Every text file of the repository, tracked or about to be, by its path; bytes of pictures aside."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    texts = {}
    for name in sorted(filter(None, names)):
        try:
            texts[name] = (ROOT / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
        if name.endswith(".ipynb"):
            texts[name] = re.sub(r"[A-Za-z0-9+/=\\]{200,}", "", texts[name])
    return texts


def readme() -> str:
    """README.md."""
    return (ROOT / "README.md").read_text(encoding="utf-8")


# ---------------------------------------------------------------- commands


def test_the_readme_gives_the_two_commands() -> None:
    blocks = re.findall(r"```bash\n(.*?)```", readme(), re.S)
    assert blocks[0] == START_COMMAND + "\n"
    assert TEST_COMMAND + "\n" in blocks
    assert len(re.findall(r"```powershell\n", readme())) == 2


def test_ci_runs_exactly_the_readmes_test_command() -> None:
    lines = [line.strip() for line in (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()]
    assert lines.count(TEST_COMMAND) == 1


def test_the_files_that_the_commands_name_are_there() -> None:
    pattern = r"(?:^|[\s`])((?:tests|solutions|notebooks|labs)/\w[\w.-]*\w|\.ci/run|requirements\.txt)"
    named = re.findall(pattern, readme())
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_workflow_runs_what_ci_runs_on_each_supported_python() -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    assert re.search(r"run: \.ci/run$", text, re.M)
    for version in ("3.11", "3.12", "3.13"):
        assert f'"{version}"' in text
    for event in ("push:", "pull_request:", "schedule:", "workflow_dispatch:"):
        assert event in text


def requirements(path: str) -> dict[str, str]:
    """Names and version ranges in a requirements file."""
    lines = (line.split("#")[0].strip() for line in (ROOT / path).read_text().splitlines())
    return dict(re.match(r"([\w.-]+)(.*)", line).groups() for line in lines if line and not line.startswith("-r"))


def test_binder_installs_what_the_learner_installs() -> None:
    learner, binder = requirements("requirements.txt"), requirements("binder/requirements.txt")
    assert binder.items() <= learner.items()
    assert {"numpy", "matplotlib"} <= set(binder)
    assert "vllm" not in learner | binder
    assert (ROOT / "binder/runtime.txt").read_text().strip() == "python-3.12"


SKIPPING = """
import pytest

def test_skips():
    pytest.skip("nothing here")

@pytest.mark.skipif(True, reason="nothing there")
def test_is_skipped():
    pass

@pytest.mark.xfail(reason="known", strict=True)
def test_known():
    assert False
"""


@pytest.mark.parametrize(("strict", "outcome"), [("0", "3 skipped, 1 xfailed"), ("1", "1 failed, 1 xfailed, 2 errors")])
def test_where_nothing_may_skip_a_skip_fails(tmp_path: Path, strict: str, outcome: str) -> None:
    shutil.copyfile(ROOT / "tests/conftest.py", tmp_path / "conftest.py")
    (tmp_path / "test_skipping.py").write_text(SKIPPING)
    (tmp_path / "test_whole.py").write_text("import pytest\npytest.skip('no', allow_module_level=True)\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--continue-on-collection-errors", "."]
    own = {k: v for k, v in os.environ.items() if k != "PYTEST_ADDOPTS"} | {"LABS_NO_SKIP": strict}
    done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True)
    assert f"= {outcome} in " in done.stdout
    assert (done.returncode == 0) is (strict == "0")


# ---------------------------------------------------------------- links and names


def markdown_sources() -> list[tuple[Path, str]]:
    """Every page of markdown that a reader may read: the README and each notebook's text."""
    pages = [(ROOT / "README.md", readme())]
    for path in NOTEBOOKS:
        cells = nbformat.read(path, as_version=4).cells
        pages.append((path, "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")))
    return pages


def anchors(path: Path) -> set[str]:
    """The anchors that the headings of a markdown file or notebook make, on GitHub and in JupyterLab."""
    text = dict(markdown_sources()).get(path) or path.read_text(encoding="utf-8")
    titles = [re.sub(r"[*`]", "", title.strip()) for title in re.findall(r"^#+ (.+)$", text, re.M)]
    github = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    own = set(re.findall(r"""\b(?:id|name)=["']([^"']+)""", text))
    return github | own | {title.replace(" ", "-") for title in titles}


def relative_links(text: str) -> list[str]:
    """Targets of links and pictures that are files of the repository."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)
    found = re.findall(r"\]\(([^)\s]+)(?: \"[^\"]*\")?\)", text) + re.findall(r"""(?:src|href)=["']([^"']+)""", text)
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def broken(page: Path, target: str) -> bool:
    """Whether a link leads nowhere."""
    name, _, anchor = unquote(target).partition("#")
    file = (page.parent / name).resolve() if name else page
    return not file.exists() or (bool(anchor) and anchor not in anchors(file))


def test_every_relative_link_leads_somewhere() -> None:
    pages = markdown_sources()
    assert [(page.name, link) for page, text in pages for link in relative_links(text) if broken(page, link)] == []


def test_a_learners_links_stay_in_the_folder_that_jupyterlab_shows() -> None:
    """Started as the README says, with a notebook's name, JupyterLab shows notebooks/ and nothing above it."""
    out = [(page.name, link) for page, text in markdown_sources() if page.parent.name == "notebooks"
           for link in relative_links(text) if not (page.parent / link).resolve().is_relative_to(page.parent)]
    assert out == []


def test_a_link_to_nowhere_is_seen() -> None:
    page = ROOT / "README.md"
    assert relative_links('[a](x.md) ![b](y.png "t") <img src="z.svg"> [c](https://x.y) `[d](q)`') == [
        "x.md", "y.png", "z.svg"
    ]  # fmt: skip
    assert broken(page, "nowhere.md")
    assert broken(page, "LICENSE#no-such-heading")
    assert broken(page, "#no-such-heading")
    assert not broken(page, "#credits-for-data")


def repositories(text: str) -> set[str]:
    """Repositories that a badge opens or that a clone fetches."""
    own = r"colab\.research\.google\.com/github/|mybinder\.org/v2/gh/|git clone \S*github\.com/"
    workflows = r"github\.com/(?=[\w.-]+/[\w.-]+/actions/workflows/)"
    return set(re.findall(rf"(?:{own}|{workflows})([\w.-]+/[\w.-]+)", text))


def test_every_place_names_the_one_repository() -> None:
    elsewhere = {name: repositories(text) - {COURSE.repository} for name, text in tracked().items()}
    shown = {name: others for name, others in elsewhere.items() if others and not name.startswith("tests/")}
    assert shown == {}
    assert repositories(readme()) == {COURSE.repository}


def test_no_placeholder_is_left_once_the_course_is_published() -> None:
    if COURSE.repository != "OWNER/REPO":
        exempt = ("tests/", "solutions/build.py")
        assert [name for name, text in tracked().items() if "OWNER/REPO" in text and not name.startswith(exempt)] == []


def test_no_path_of_a_machine_and_no_registry() -> None:
    hosts = "|".join(re.escape(host + ".org") for host in ("pypi", "pythonhosted", "npmjs", "deb.debian"))
    paths = "|".join(f"/{folder}/" for folder in ("root", "work", "home/\\w+", "Users/\\w+", "opt/\\w+", "tmp/\\w+"))
    pattern = re.compile(rf"{hosts}|(?<![\w.$}}:/]){paths}")
    found = {name: pattern.findall(text) for name, text in tracked().items()}
    assert {name: what for name, what in found.items() if what} == {}


# ---------------------------------------------------------------- labs/

ORDER = (
    *("words", "workload", "slots", "metrics", "blocks", "knobs", "scheduler", "fast", "engine", "gaps"),
    *("serving", "situations", "crossing", "presets", "sweep", "planner", "alerts"),
    *("progress", "svg", "plots", "checks", "quiz", "drills", "standing", "certificate", "cheat_sheet", "teaching",
      "explorers", "course"),
)
# Which outside packages, besides the standard library, a module may import when it is itself imported.
OUTSIDE = {
    **dict.fromkeys(("workload", "slots", "metrics", "engine", "fast", "sweep", "planner", "alerts"), {"numpy"}),
    **dict.fromkeys(("gaps", "serving", "situations", "crossing"), {"numpy"}),
    **dict.fromkeys(("svg", "checks", "quiz", "drills"), {"numpy"}),
    "plots": {"numpy", "matplotlib"},
    "explorers": {"numpy", "ipywidgets", "IPython", "anywidget", "traitlets"},
    "course": {"numpy", "IPython"},
}


def module_files(name: str) -> list[Path]:
    """The files of a module, which may be a package."""
    return [*(ROOT / "labs").glob(f"{name}.py"), *(ROOT / "labs").glob(f"{name}/**/*.py")]


MODULES = [name for name in ORDER if module_files(name)]


def labs_module(parts: list[str]) -> str | None:
    """The module of labs/ that a dotted name belongs to."""
    return parts[1] if parts[0] == "labs" and len(parts) > 1 else None


def imports(path: Path) -> list[tuple[str, bool]]:
    """Dotted names that a file imports, and whether it does so at module level."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {
        id(node) for outer in ast.walk(tree) if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(outer)
    }  # fmt: skip
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    found = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{stem}.{alias.name}" for alias in node.names]
        found += [(name, id(node) not in inside) for name in names]
    return found


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_from_those_above_it(name: str) -> None:
    allowed = {*ORDER[: ORDER.index(name)], name}
    used = {labs_module(dotted.split(".")) for path in module_files(name) for dotted, _ in imports(path)}
    files = {module for module in used - {None} if module in ORDER or module_files(module)}
    assert files <= allowed


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_the_packages_it_may(name: str) -> None:
    tops = {dotted.split(".")[0] for path in module_files(name) for dotted, top in imports(path) if top}
    assert tops - set(sys.stdlib_module_names) - {"labs"} <= OUTSIDE.get(name, set())


@pytest.mark.parametrize("name", [name for name in MODULES if name != "explorers"])
def test_only_explorers_imports_ipywidgets_anywhere(name: str) -> None:
    assert not [d for path in module_files(name) for d, _ in imports(path) if d.split(".")[0] == "ipywidgets"]


def test_every_module_has_its_place_in_the_order() -> None:
    names = {path.stem for path in (ROOT / "labs").glob("*.py")} - {"__init__"}
    assert names - set(ORDER) == set()


LIGHT = [name for name in MODULES if name not in ("plots", "explorers", "course")]


@pytest.mark.parametrize("name", LIGHT)
def test_importing_it_loads_no_plotting_widgets_or_client(name: str) -> None:
    code = f"import sys, labs.{name}; print(*{{'matplotlib', 'ipywidgets', 'openai'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("", "")


# ---------------------------------------------------------------- style


def test_ruff_is_content() -> None:
    beside = shutil.which("ruff", path=str(Path(sys.executable).parent))
    command = [beside or "ruff", "check", "--no-cache", "--output-format", "concise", "."]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[f"{p.parent.name}/{p.stem}" for p in NOTEBOOKS])
def test_no_cell_is_too_long(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert {cell.id: build.length(cell) for cell in cells if build.length(cell) > build.LONGEST} == {}


def test_settings_hold_no_package() -> None:
    assert set(tomllib.loads((ROOT / "pyproject.toml").read_text())) == {"tool"}
