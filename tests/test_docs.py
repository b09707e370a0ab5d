"""The pages for those who carry the course on: what they name is there."""

from __future__ import annotations

import ast
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "TEACHING.md", "COOKBOOK.md")
HERE = [page for page in PAGES if (ROOT / page).exists()]
MADE = {"site", "tests/nightly_report.md"}  # by a command on the same page


def arrows() -> list[tuple[str, str]]:
    """(from, to) for each arrow of the README's picture."""
    picture = re.search(r"```mermaid\n(.*?)```", README, re.S)[1]
    found = []
    for line in picture.splitlines()[1:]:
        steps = [[node.strip().split("[")[0] for node in part.split("&")] for part in line.split("-->")]
        found += [(a, b) for left, right in zip(steps, steps[1:], strict=False) for a in left for b in right]
    return found


def imported(name: str) -> set[str]:
    """The modules of labs/ that a module's files import."""
    files = [*(ROOT / "labs").glob(f"{name}.py"), *(ROOT / "labs").glob(f"{name}/**/*.py")]
    found: set[str] = set()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "labs":
                parts = node.module.split(".")[1:]
                found |= {parts[0]} if parts else {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize(("above", "below"), arrows())
def test_the_picture_of_the_modules_is_true(above: str, below: str) -> None:
    place = {"simulated": "live/simulated", "live": "live", "notebooks": "notebooks"}
    for name in (above, below):
        known = place.get(name, name)
        assert [p for base in ("labs", ".") for p in (ROOT / base).glob(f"{known}*")], name
    if below != "notebooks":
        assert above in imported(place.get(below, below)), f"{below} imports nothing from {above}"


@pytest.mark.parametrize("page", HERE)
def test_files_and_links_on_the_page_are_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:labs|tests|solutions|notebooks|lite|binder|\.ci|\.github)/[\w./-]*\w)", text))
    linked = {link for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text) if "://" not in link}
    missing = [name for name in named | linked if name not in MADE and "NN" not in name and not (ROOT / name).exists()]
    assert missing == []


@pytest.mark.parametrize("page", HERE)
def test_commands_on_the_page_name_scripts_that_are_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for command in re.findall(r"`([^`\n]*python [^`\n]+)`", text):
        for word in shlex.split(command.split("&&")[-1]):
            if word.endswith(".py"):
                assert (ROOT / word).is_file(), command


def test_the_citation_and_the_changelog_speak_of_the_same_version() -> None:
    version = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M)[1]
    assert f"\n## {version} " in (ROOT / "CHANGELOG.md").read_text()


def test_the_pinned_pythons_are_those_that_ci_runs() -> None:
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["target-version"] == "py311"
    assert '["3.11", "3.12", "3.13"]' in workflow


def test_the_lowest_versions_are_read_from_the_requirements() -> None:
    sys.path.insert(0, str(ROOT / "tests"))
    from versions import lowest

    assert lowest("# a\nnumpy>=1.26,<3\n./labs/jupyter  # b\n-r x.txt\nuvicorn[standard]>=0.30\n") == [
        "numpy==1.26", "./labs/jupyter", "uvicorn[standard]==0.30"]
