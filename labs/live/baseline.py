"""What people start from, measured: transformers' `generate` on padded batches, beside a server's `Measurement`.

`run_batches` runs labs/live/batched_script.py in the environment that holds vLLM, on the same model: no server, no
queue, no streaming. A batch takes as many steps as its longest answer, and nobody has an answer before it has ended.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from labs.live import engines, launch, models
from labs.live.diagnosis import ServerError, find_cause, shorten
from labs.live.measurement import Ask, Measurement, Row, pooled
from labs.live.processes import Process, last_line, tail

SCRIPT = Path(__file__).with_name("batched_script.py")
ENGINE = "transformers generate"
TURN = 0.1  # seconds between two looks at what has come


@dataclass(frozen=True)
class Batch:
    """One padded batch. Times are seconds since the first batch began; a row's tokens are those of its own answer.

    step_ends: when each step ended; the first computes the prompts too. width: prompt tokens a row, padding included.
    """

    started: float
    ended: float
    step_ends: tuple[float, ...]
    width: int
    prompts: tuple[int, ...]
    tokens: tuple[int, ...]
    finish: tuple[str, ...]
    texts: tuple[str, ...] = field(repr=False)

    def __post_init__(self) -> None:
        parts = (self.prompts, self.tokens, self.finish, self.texts)
        if not self.tokens or len({*map(len, parts)}) > 1 or self.steps < max(self.tokens):
            raise ValueError("a batch needs rows, each with its prompt, tokens, reason and text, and enough steps")

    @property
    def steps(self) -> int:
        """Forward passes: each gives every row one token, wanted or not."""
        return len(self.step_ends)

    @property
    def computed(self) -> int:
        """Row-steps: what was computed."""
        return self.steps * len(self.tokens)

    @property
    def wasted(self) -> int:
        """Row-steps that were computed for rows whose answer had ended."""
        return self.computed - sum(self.tokens)

    @property
    def padding(self) -> int:
        """Prompt positions that hold no token of a prompt."""
        return self.width * len(self.prompts) - sum(self.prompts)

    @property
    def gaps(self) -> np.ndarray:
        """Seconds from one token to the next inside the script: what nobody outside it sees."""
        return np.diff(self.step_ends)


@dataclass(frozen=True)
class Baseline:
    """A run of the script. `about` says with which versions, threads and number type it ran.

    `measurement` is the run as its user sees it, for a table with a server's.
    """

    measurement: Measurement
    batches: tuple[Batch, ...]
    about: Mapping[str, object]

    @property
    def steps(self) -> int:
        """Forward passes of all batches."""
        return sum(batch.steps for batch in self.batches)

    @property
    def waste(self) -> float:
        """Share of the row-steps that were computed for answers that had ended; NaN if nothing ran."""
        computed = sum(batch.computed for batch in self.batches)
        return sum(batch.wasted for batch in self.batches) / computed if computed else math.nan

    def gaps(self) -> np.ndarray:
        """Seconds from one token to the next inside the script, one value a step after a batch's first."""
        return pooled(batch.gaps for batch in self.batches)


def run_batches(
    asks: Sequence[Ask], model: str | None = None, *, batch_size: int, timeout: float = 600.0,
    python: str | None = None, log_path: str | Path | None = None,
    closed_loop: bool = False, progress: Callable[[int, int], None] | None = None,
) -> Baseline:  # fmt: skip
    """Answer `asks` in batches of `batch_size`, in their order, and measure it; concurrency 1 is batch_size=1.

    `model` is as in labs.live.server.start: "tiny", "smollm2", a folder or a hub's name. Asks with `ignore_eos` get
    exactly `max_tokens`; the others end by themselves; a run takes one kind only. Loading and a short warm-up come
    first and are not part of the times (`about` has them), but the deadline of `timeout` seconds holds for it all.
    All asks are there at time 0 and wait for their batch, or with `closed_loop` come when their batch begins.
    `python` is one that has transformers, by default the one that has vLLM. `progress(done, total)` counts requests.
    An interrupt (KeyboardInterrupt) ends the script and returns what had come, with `interrupted` set.
    Raises ServerError if the script cannot run or nothing came, ValueError for asks that it cannot serve.
    """
    _check(asks, batch_size)
    until, python, log = time.monotonic() + timeout, _python(python), launch.log_file(log_path, "batched-script")
    model = model or models.TINY
    order = dict(
        model=models.resolve(model, python), random_weights=model == models.TINY, ignore_eos=asks[0].ignore_eos,
        batches=[[_request(ask) for ask in batch] for batch in _batches(asks, batch_size)],
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="labs-") as folder:
        paths = [Path(folder, name) for name in ("order.json", "result.jsonl")]
        paths[0].write_text(json.dumps(order), encoding="utf-8")
        paths[1].touch()
        begun = datetime.now(UTC)
        env = launch.VLLM_ENV | ({"HF_HUB_OFFLINE": "1"} if Path(order["model"]).is_dir() else {})
        command = [python, "-P", str(SCRIPT), *map(str, paths)]  # -P: labs/live is no place to import from
        process = Process(command, log=log, env=env | {"PYTHONPATH": "", "PYTHONHOME": ""}, cwd=Path(folder))
        ending = _follow(process, paths[1], until, asks, batch_size, progress)
        lines = _lines(paths[1])
    if not lines and ending[0] != "cut":
        raise _no_result(ending, log, timeout)
    about, batches = lines[0] if lines else {}, tuple(_batch(line) for line in lines[1:])
    rows = _rows(asks, batches, batch_size, closed_loop, ending)
    wall = batches[-1].ended if batches else math.nan
    measured = Measurement(
        rows, min(batch_size, len(asks)), wall, begun.isoformat(timespec="seconds"), f"batches of {batch_size}",
        ENGINE, launch.NAMES.get(model, Path(model).name), interrupted=ending[0] == "cut",
    )  # fmt: skip
    return Baseline(measured, batches, about)


def _check(asks: Sequence[Ask], batch_size: int) -> None:
    """Refuse what a plain script does not do."""
    if not asks:
        raise ValueError("there is nothing to generate: asks is empty")
    if batch_size < 1:
        raise ValueError(f"a batch has 1 request or more, got {batch_size}")
    if len({ask.ignore_eos for ask in asks}) > 1:
        raise ValueError("a run of the script takes asks with ignore_eos or without, not both")
    if any(ask.temperature or ask.stop or ask.extra for ask in asks):
        raise ValueError("the script takes the likeliest token: ask with temperature 0, no stop strings and no extra")
    if any(ask.max_tokens < 1 or not ask.prompt for ask in asks):
        raise ValueError("each ask needs a prompt, and max_tokens of 1 or more")


def _python(named: str | None) -> str:
    """The Python named, or the one that has vLLM, and so transformers."""
    if named:
        return named
    found = next(filter(None, (engines.find(kind) for kind in ("vllm", "vllm-cpu"))), None)
    if not found:
        raise ServerError(
            "No Python with transformers was found: the script runs in the environment that holds vLLM.",
            "Install it with labs.live.install.install(), or name a Python that has transformers as python=.",
        )
    return found.python


def _batches(asks: Sequence[Ask], size: int) -> list[Sequence[Ask]]:
    return [asks[first : first + size] for first in range(0, len(asks), size)]


def _request(ask: Ask) -> dict[str, object]:
    prompt = ask.prompt if isinstance(ask.prompt, str) else list(ask.prompt)
    return dict(prompt=prompt, max_tokens=ask.max_tokens, chat=ask.chat)


def _follow(
    process: Process, result: Path, until: float, asks: Sequence[Ask], size: int,
    progress: Callable[[int, int], None] | None,
) -> tuple[str, str]:  # fmt: skip
    """Wait for the script, however it ends; give the status of what has not come, and why. Nothing of it is left."""
    shown = 0
    try:
        while process.exit_code() is None:
            if time.monotonic() > until:
                return "timeout", "not done at the deadline"
            done = min(len(asks), size * max(0, len(_lines(result)) - 1))
            if progress and done != shown:
                shown = done
                progress(done, len(asks))
            time.sleep(TURN)
        if code := process.exit_code():
            return "error", f"the script ended with exit code {code}: {_cause(process.log)[0]}"
    except KeyboardInterrupt:
        return "cut", "interrupted"
    finally:
        process.stop()
    if progress and shown != len(asks):
        progress(len(asks), len(asks))
    return "error", "the script ended without this answer"


def _lines(result: Path) -> list[dict]:
    """The whole lines that have come."""
    return [json.loads(line) for line in result.read_text(encoding="utf-8").split("\n")[:-1]]


def _batch(line: Mapping) -> Batch:
    """A batch from its line. Raises ServerError if the script's own count of steps is another than its clock's."""
    if line["steps"] != len(line["step_ends"]):
        raise ServerError(
            f"The script made {line['steps']} tokens a row in {len(line['step_ends'])} steps.",
            "This version of transformers generates otherwise: take the one that vLLM brings.",
        )
    kept = {key: value for key, value in line.items() if key != "steps"}
    return Batch(**{key: tuple(value) if isinstance(value, list) else value for key, value in kept.items()})


def _rows(
    asks: Sequence[Ask], batches: Sequence[Batch], size: int, closed_loop: bool, ending: tuple[str, str]
) -> tuple[Row, ...]:  # fmt: skip
    """A row for each ask. The user has nothing before the batch has ended, so there is no first token and no TTFT."""
    rows = []
    for i, ask in enumerate(asks):
        if i // size >= len(batches):
            rows.append(Row(ask, 0.0, 0.0, status=ending[0], error=ending[1]))
            continue
        batch, j = batches[i // size], i % size
        start = batch.started if closed_loop else 0.0
        rows.append(
            Row(ask, start, start, done=batch.ended, completion_tokens=batch.tokens[j], prompt_tokens=batch.prompts[j],
                finish_reason=batch.finish[j], text=batch.texts[j])
        )  # fmt: skip
    return tuple(rows)


def _no_result(ending: tuple[str, str], log: Path, timeout: float) -> ServerError:
    """Why there is nothing at all."""
    if ending[0] == "timeout":
        return ServerError(
            f"The script had no answer after {timeout:.0f} s.", "Give it a longer timeout, or fewer requests.", log
        )
    wrong, do = _cause(log)
    return ServerError(f"The script gave no answer: {wrong}.", do, log)


def _cause(log: Path) -> tuple[str, str]:
    """What its log says went wrong, and what to do."""
    said = last_line(tail(log))
    return find_cause(tail(log)) or (f"its last words were: {shorten(said)}" if said else "it said nothing", "Read it.")
