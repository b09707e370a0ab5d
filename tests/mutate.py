"""Plant faults in labs/, one at a time, and see whether the tests notice: python tests/mutate.py --mutants 60 --seed 0.

A mutant is one changed spot in a module's syntax tree: a comparison, an arithmetic operator, a numeric constant, a
returned value or a condition. Every module gets its share of them by its lines of code; kinds and spots are drawn at
random. Left out are only spots that nothing runs: docstrings, annotations, and what stands under `if __name__`.

The faults are planted in a temporary copy. For each, the tests named after its module run first, then the others,
up to the first failure, without those that need a browser, a server or whole notebooks. A run that hangs counts as
caught. Tests that fail on the untouched code are named and left out: they could not tell a fault from none.
Prints a table, and ends with 1 if fewer than 90 % were caught. Needs Linux or macOS.
"""

from __future__ import annotations

import argparse
import ast
import os
import platform
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_COPIED = (".venv*", "__pycache__", ".*_cache", ".hypothesis", ".ipynb_checkpoints", "shared")
STYLE = "tests/test_repo.py::test_ruff_is_content"  # would tell a mutant by its spelling
MARKERS = "not (browser or notebook or vllm or slow)"
TARGET = 0.9
MEMORY = 6 * 2**30  # bytes for the tests: a fault can turn a loop into one that never stops growing

COMPARISONS = {ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE),
               ast.GtE: (ast.Gt, ast.Lt), ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,),
               ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,)}
ARITHMETIC = {ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Div, ast.Add), ast.Div: (ast.Mult,),
              ast.FloorDiv: (ast.Mult, ast.Div), ast.Mod: (ast.Mult, ast.FloorDiv), ast.Pow: (ast.Mult,)}

Change = Callable[[ast.AST], None]


@dataclass(frozen=True)
class Spot:
    """A place in a module that can be changed, as its number in the order of `ast.walk`, and the ways to change it."""

    node: int
    kind: str
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Mutant:
    """A module with one fault in it."""

    path: Path
    line: int
    kind: str
    change: str
    source: str


@dataclass(frozen=True)
class Run:
    """What the tests said: passed or not, which of them failed, and how long it took."""

    passed: bool
    failed: list[str]
    seconds: float


# ---- where faults can be planted ------------------------------------------------------------------------------------

def spots(tree: ast.Module) -> list[Spot]:
    """All of a module's spots."""
    never_run = {id(inner) for node in ast.walk(tree) for part in _idle(node) for inner in ast.walk(part)}
    return [spot for number, node in enumerate(ast.walk(tree)) if id(node) not in never_run
            for spot in _spots_at(number, node)]


def _idle(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that nothing runs."""
    for name in ("annotation", "returns"):
        if isinstance(part := getattr(node, name, None), ast.AST):
            yield part
    if isinstance(node, ast.If) and any(name in ast.unparse(node.test) for name in ("__name__", "TYPE_CHECKING")):
        yield node


def _spots_at(number: int, node: ast.AST) -> Iterator[Spot]:
    """The spots that one node of the tree gives."""
    match node:
        case ast.Compare():
            for i, op in enumerate(node.ops):
                yield Spot(number, "comparison", tuple(_into_list("ops", i, new) for new in COMPARISONS[type(op)]))
        case ast.BinOp() | ast.AugAssign() if type(node.op) in ARITHMETIC:
            yield Spot(number, "arithmetic", tuple(_into("op", new) for new in ARITHMETIC[type(node.op)]))
        case ast.UnaryOp(op=ast.USub()):
            yield Spot(number, "arithmetic", (_into("op", ast.UAdd),))
        case ast.Constant(value=bool() | int() | float()):
            yield Spot(number, "constant", tuple(_value(value) for value in _other_values(node.value)))
        case ast.Return(value=ast.AST()) if not _is_none(node.value):
            yield Spot(number, "return", _other_returns(node.value))
        case ast.BoolOp():
            yield Spot(number, "condition", (_into("op", ast.Or if isinstance(node.op, ast.And) else ast.And),))
        case ast.UnaryOp(op=ast.Not()):
            yield Spot(number, "condition", (_negate("operand"),))
        case ast.If() | ast.While() | ast.IfExp():
            yield Spot(number, "condition", (_negate("test"),))
        case ast.comprehension(ifs=[_, *_]):
            yield Spot(number, "condition", (_negate_first_filter,))


def _other_values(value: float) -> tuple[float, ...]:
    """What a number could be by mistake."""
    if isinstance(value, bool):
        return (not value,)
    return (value + 1, value - 1) if isinstance(value, int) else (value * 2 or 1.0, value / 2 or 1.0)


def _other_returns(value: ast.AST) -> tuple[Change, ...]:
    """None, and where there is something to swap or to negate, that too."""
    changes = [_returned(lambda old: ast.Constant(None))]
    if isinstance(value, ast.Tuple) and len(value.elts) > 1:
        changes.append(_returned(lambda old: ast.Tuple([old.elts[1], old.elts[0], *old.elts[2:]], ast.Load())))
    if isinstance(value, ast.Compare | ast.BoolOp):
        changes.append(_returned(lambda old: ast.UnaryOp(ast.Not(), old)))
    return tuple(changes)


def _is_none(value: ast.AST) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _into(name: str, new: type[ast.AST]) -> Change:
    return lambda node: setattr(node, name, new())


def _into_list(name: str, i: int, new: type[ast.AST]) -> Change:
    return lambda node: getattr(node, name).__setitem__(i, new())


def _value(value: float) -> Change:
    return lambda node: setattr(node, "value", value)


def _returned(change: Callable[[ast.AST], ast.AST]) -> Change:
    return lambda node: setattr(node, "value", change(node.value))


def _negate(name: str) -> Change:
    return lambda node: setattr(node, name, ast.UnaryOp(ast.Not(), getattr(node, name)))


def _negate_first_filter(node: ast.AST) -> None:
    node.ifs[0] = ast.UnaryOp(ast.Not(), node.ifs[0])


# ---- drawing mutants ------------------------------------------------------------------------------------------------

def code_lines(tree: ast.Module) -> int:
    """Lines that hold code: no blank ones, comments or docstrings."""
    return len({node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt | ast.expr)
                and not (isinstance(node, ast.Constant) and isinstance(node.value, str))})


def shares(sizes: dict[Path, int], mutants: int) -> dict[Path, int]:
    """So many mutants for each module, by its size, the largest remainders rounded up."""
    exact = {path: mutants * size / sum(sizes.values()) for path, size in sizes.items()}
    given = {path: int(share) for path, share in exact.items()}
    by_remainder = sorted(exact, key=lambda path: given[path] - exact[path])
    for path in by_remainder[:mutants - sum(given.values())]:
        given[path] += 1
    return given


def draw(root: Path, mutants: int, seed: int, only: list[str], leave_out: list[str]) -> list[Mutant]:
    """`mutants` faults spread over the modules that `only` names (none: all); seed and code alone decide which."""
    def wanted(path: str) -> bool:
        return (not only or any(name in path for name in only)) and not any(name in path for name in leave_out)

    rng = random.Random(seed)
    modules = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted((root / "labs").rglob("*.py"))
               if wanted(path.relative_to(root).as_posix())}
    found = {path: spots(tree) for path, tree in modules.items()}
    sizes = {path: code_lines(tree) for path, tree in modules.items() if found[path]}
    return [_plant(root, path, spot, rng) for path, share in shares(sizes, mutants).items()
            for spot in _choose(found[path], share, rng)]


def _choose(found: list[Spot], share: int, rng: random.Random) -> list[Spot]:
    """`share` different spots: first a kind, so that none crowds out the others, then one of that kind."""
    left, chosen = list(found), []
    while left and len(chosen) < share:
        kind = rng.choice(sorted({spot.kind for spot in left}))
        chosen.append(rng.choice([spot for spot in left if spot.kind == kind]))
        left.remove(chosen[-1])
    return chosen


def _plant(root: Path, path: Path, spot: Spot, rng: random.Random) -> Mutant:
    """The module with one of the spot's changes made, and not a character changed anywhere else."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    node = list(ast.walk(tree))[spot.node]
    old, before = _part(node), _shown(node)
    place = _around(tree, old)
    rng.choice(spot.changes)(node)
    new = ast.unparse(_part(node) if place is old else place)
    source = _spliced(source, place, f"({new})" if isinstance(place, ast.expr) else new)
    ast.parse(source)
    return Mutant(path.relative_to(root), old.lineno, spot.kind, f"`{before}` -> `{_shown(node)}`", source)


def _part(node: ast.AST) -> ast.AST:
    """What is written anew: of a compound statement or a comprehension its condition, else the whole."""
    if isinstance(node, ast.comprehension):
        return node.ifs[0]
    return node.test if isinstance(node, ast.If | ast.While) else node


def _around(tree: ast.Module, part: ast.AST) -> ast.AST:
    """The outermost f-string around a part, since places inside one are not known before Python 3.12, else the part."""
    strings = (node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr))
    return next((string for string in strings if any(inner is part for inner in ast.walk(string))), part)


def _spliced(source: str, place: ast.AST, new: str) -> str:
    """The source with `new` in that place."""
    lines = source.encode().splitlines(keepends=True)
    first, last = place.lineno - 1, place.end_lineno - 1
    before, after = lines[first][:place.col_offset], lines[last][place.end_col_offset:]
    return b"".join([*lines[:first], before, new.encode(), after, *lines[last + 1:]]).decode()


def _shown(node: ast.AST) -> str:
    """A part's text on one line, cut short."""
    text = " ".join(ast.unparse(_part(node)).split()).replace("|", "\\|")
    return text if len(text) <= 70 else text[:67] + "..."


# ---- running the tests ----------------------------------------------------------------------------------------------

def run_tests(root: Path, files: list[Path], limit_s: float, *options: str) -> Run:
    """Run test files; a run that takes longer than `limit_s` is ended and counts as failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", MARKERS, f"--deselect={STYLE}"]
    command += [*options, *map(str, files)]
    surroundings = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "LABS_NO_SKIP": "0"}
    begun = time.monotonic()
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=surroundings, start_new_session=True, preexec_fn=_limit_memory) as process:
        try:
            said = process.communicate(timeout=limit_s)[0]
        except subprocess.TimeoutExpired:
            _end(process)
            return Run(False, [f"took over {limit_s:.0f} s"], time.monotonic() - begun)
    failed = re.findall(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", said, re.M)
    if process.returncode < 0:
        failed = [f"the tests died of {signal.Signals(-process.returncode).name}"]
    return Run(process.returncode in (0, 5), failed or ["no test could begin"], time.monotonic() - begun)


def _limit_memory() -> None:
    """Called in the new process, before the tests begin."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def _end(process: subprocess.Popen) -> None:
    """End the tests and whatever they have started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def order(root: Path, module: Path) -> tuple[list[Path], list[Path]]:
    """The test files named after a module or its folder, and all the others."""
    files = [path.relative_to(root) for path in sorted((root / "tests").rglob("test_*.py"))]
    names = [part for part in module.with_suffix("").parts[1:] if part != "__init__"]
    own = [path for path in files if any(name in path.stem for name in names)]
    # What is under tests/live tests labs/live alone, with servers and clocks: it would say nothing of the rest.
    return own, [path for path in files if path not in own and ("live" in path.parts) <= ("live" in names)]


def outcome(root: Path, mutant: Mutant, limit_s: float, left_out: list[str]) -> str:
    """Plant the fault, run the tests, take it out again; which test caught it, or "" if none did."""
    path = root / mutant.path
    right = path.read_text(encoding="utf-8")
    path.write_text(mutant.source, encoding="utf-8")
    try:
        for files in filter(None, order(root, mutant.path)):
            run = run_tests(root, files, limit_s, "-x", *(f"--deselect={test}" for test in left_out))
            if not run.passed:
                return run.failed[0].partition("[")[0]
        return ""
    finally:
        path.write_text(right, encoding="utf-8")


def main() -> int:
    """Plant, run, print the table; 0 if at least `TARGET` of the faults were caught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[], help="parts of paths of modules, such as slots")
    parser.add_argument("--leave-out", nargs="+", default=[], help="the same for modules to leave alone, such as live/")
    parser.add_argument("--list", action="store_true", help="show the faults without running the tests")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(ROOT, Path(folder) / "course", ignore=shutil.ignore_patterns(*NOT_COPIED))
        mutants = draw(copy, args.mutants, args.seed, args.only, args.leave_out)
        tests = sorted({path for mutant in mutants for part in order(copy, mutant.path) for path in part})
        begin = Run(True, [], 0) if args.list else run_tests(copy, tests, 3600)
        left_out = [] if begin.passed else begin.failed
        for test in left_out:
            print(f"left out, fails on the untouched code: {test}")
        print("| # | where | kind | change | outcome |\n|---|---|---|---|---|")
        survived = 0
        for i, mutant in enumerate(mutants, 1):
            said = "" if args.list else outcome(copy, mutant, 3 * begin.seconds + 30, left_out) or "**survived**"
            survived += said == "**survived**"
            print(f"| {i} | {mutant.path}:{mutant.line} | {mutant.kind} | {mutant.change} | {said} |", flush=True)
    if args.list:
        return 0
    caught = len(mutants) - survived
    print(f"\n{caught} of {len(mutants)} caught ({caught / len(mutants):.0%}), {survived} survived; seed {args.seed}, "
          f"Python {platform.python_version()}, {begin.seconds:.0f} s for all tests on the untouched code")
    return 0 if caught >= TARGET * len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
