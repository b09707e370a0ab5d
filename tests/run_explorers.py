"""Move every control of every explorer as a browser would, and compare what is shown with numbers computed apart.

Needs only what the course needs, with ipywidgets 7.7 or later: `python tests/run_explorers.py`. A failure exits 1.
"""

from __future__ import annotations

import heapq
import math
import random
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import ipywidgets as w

from labs import explorers, workload

EXPLORERS = (explorers.eight_requests, explorers.simulator, explorers.sigma_sweep)


# ---- the schedulers once more, as slowly and plainly as the page has them -------------------------------------------


def lognormal(n: int, mu: float, sigma: float, seed: int) -> list[int]:
    generator = random.Random(seed)
    return [max(1, int(generator.lognormvariate(mu, sigma))) for _ in range(n)]


def static(lengths: list[int], slots: int, arrivals: list[int] | None = None) -> tuple[int, list[float]]:
    """(steps, normalised latencies), group by group of those that wait by then."""
    arrivals, now, first, latencies = arrivals or [0] * len(lengths), 0, 0, []
    while first < len(lengths):
        now, last = max(now, arrivals[first]), first + 1
        while last < min(first + slots, len(lengths)) and arrivals[last] <= now:
            last += 1
        now += max(lengths[first:last])
        latencies += [(now - arrivals[i]) / lengths[i] for i in range(first, last)]
        first = last
    return now, latencies


def continuous(lengths: list[int], slots: int, arrivals: list[int] | None = None) -> tuple[int, list[float]]:
    """(steps, normalised latencies), each request in the slot that is free first."""
    free, latencies = [0] * slots, []
    for length, arrival in zip(lengths, arrivals or [0] * len(lengths), strict=True):
        done = max(heapq.heappop(free), arrival) + length
        latencies.append((done - arrival) / length)
        heapq.heappush(free, done)
    return max(free), latencies


def poisson(lengths: list[int], slots: int, load: float, seed: int) -> list[int]:
    """Arrivals at a load, each in the step after it comes."""
    rate = load * slots / (sum(lengths) / len(lengths))
    return [math.ceil(arrival) for arrival in workload.poisson_arrivals(len(lengths), rate, seed)]


def law(lengths: list[int], slots: int) -> float:
    """E[length] / E[longest of `slots`]."""
    n = len(lengths)
    longest = sum(x * (((i + 1) / n) ** slots - (i / n) ** slots) for i, x in enumerate(sorted(lengths)))
    return sum(lengths) / n / longest


def p99(values: list[float]) -> float:
    return sorted(values)[min(int(0.99 * len(values)), len(values) - 1)]


def expected_eight(settings: dict[str, Any]) -> list[str]:
    """The large numbers that the eight requests' panel must show."""
    lengths, slots, i = [int(x) for x in settings["lengths"].split(",")], settings["slots"], settings["request"]
    (before, slow), (after, fast) = static(lengths, slots), continuous(lengths, slots)
    waits = max(lengths[i - i % slots:i - i % slots + slots]) - lengths[i]
    return [f"{before:,} → {after:,}",
            f"{_percent(lengths, slots, before)} → {_percent(lengths, slots, after)}",
            f"{waits:,} → 0", f"{max(slow) / min(slow):.1f} → {max(fast) / min(fast):.1f}"]


def expected_simulator(settings: dict[str, Any]) -> list[str]:
    """The large numbers that the simulator must show."""
    lengths = lognormal(settings["requests"], settings["mu"], settings["sigma"], settings["seed"])
    slots, arrivals = settings["slots"], _arrivals(lengths, settings)
    (before, slow), (after, fast) = static(lengths, slots, arrivals), continuous(lengths, slots, arrivals)
    over = [arrivals and settings["load"] >= limit for limit in (law(lengths, slots), 1)]
    tails = ["overloaded" if o else f"{p99(v):,.1f}" for o, v in zip(over, (slow, fast), strict=True)]
    return [f"{before:,} → {after:,}",
            f"{_percent(lengths, slots, before)} → {_percent(lengths, slots, after)}",
            " → ".join(tails), _gain(before / after, p99(slow) / p99(fast), bool(arrivals), any(over))]


def expected_sigma(settings: dict[str, Any]) -> list[str]:
    """The large numbers that the sweep's panel must show for lognormal lengths."""
    lengths, slots = lognormal(500, 4.2, settings["sigma"], settings["seed"]), settings["slots"]
    arrivals, limit = _arrivals(lengths, settings), law(lengths, slots)
    (before, slow), (after, fast) = static(lengths, slots, arrivals), continuous(lengths, slots, arrivals)
    over = bool(arrivals) and settings["load"] >= min(limit, 1)
    return [_percent(lengths, slots, before), _percent(lengths, slots, after), f"{100 * limit:.1f} %",
            _gain(before / after, p99(slow) / p99(fast), bool(arrivals), over)]


def _arrivals(lengths: list[int], settings: dict[str, Any]) -> list[int] | None:
    if settings["arrivals"] == "backlog":
        return None
    return poisson(lengths, settings["slots"], settings["load"], settings["seed"])


def _gain(steps: float, tail: float, with_arrivals: bool, overloaded: bool) -> str:
    return "no steady state" if overloaded else f"{tail if with_arrivals else steps:.1f}x"


EXPECTED: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "eight_requests": expected_eight, "simulator": expected_simulator, "sigma_sweep": expected_sigma}


def _percent(lengths: list[int], slots: int, steps: int) -> str:
    return f"{100 * sum(lengths) / (slots * steps):.1f} %"


# ---- controls, as a browser moves them ------------------------------------------------------------------------------


def stops(control: w.Widget) -> list[dict[str, Any]]:
    """The states that a browser would send for a control's ends and middle; each choice of a list."""
    if isinstance(control, w.SelectionSlider):
        return [{"index": i} for i in (0, len(control.options) // 2, len(control.options) - 1)]
    if isinstance(control, w.Dropdown):
        return [{"index": i} for i in range(len(control.options))]
    if isinstance(control, (w.IntSlider, w.FloatSlider)):
        kind = int if isinstance(control, w.IntSlider) else float
        steps = round((control.max - control.min) / control.step)
        return [{"value": kind(round(control.min + i * control.step, 10))} for i in (0, steps // 2, steps)]
    return []


def upload(control: w.FileUpload, name: str, content: bytes) -> None:
    """Choose a file, in the way of the ipywidgets that is installed."""
    about = {"name": name, "type": "text/csv", "size": len(content), "lastModified": 0}
    if w.__version__.startswith("7."):
        control.set_state({"metadata": [about], "data": [memoryview(content)], "_counter": 1})
    else:
        about["last_modified"] = about.pop("lastModified")
        control.set_state({"value": [about | {"content": memoryview(content)}]})


def shown(panel: explorers.Panel) -> list[str]:
    """The large numbers that stand in the panel's HTML."""
    found = re.findall(r'class="number"[^>]*>([^<]*)<', panel.children[2].value)
    assert found == [value for value, _ in panel.view.numbers]
    return found


# ---- the checks -----------------------------------------------------------------------------------------------------


def every_stop(make: Callable[[], explorers.Panel]) -> Iterator[str]:
    """Each control at its ends and in the middle, the others as they began."""
    expected = EXPECTED[make.__name__]
    for name in make().controls:
        panel = make()
        for state in stops(panel.controls[name]):
            panel.controls[name].set_state(state)
            where = f"{make.__name__}: {name} at {state}"
            if panel.values.get("workload") == "own":
                assert panel.error.startswith("choose a CSV"), f"{where}: {panel.error}"
                continue
            assert not panel.error, f"{where}: {panel.error}"
            if panel.values.get("workload", "lognormal") == "lognormal":
                apart = expected(panel.values)
                assert shown(panel) == apart, f"{where}: {shown(panel)} is not {apart}"
            assert panel.children[3].value.count("<svg") == 1, f"{where}: not exactly one picture"
            yield where
        panel.reset()
        assert panel.values == make().values, f"{make.__name__}: reset after {name} gave {panel.values}"
        assert shown(panel) == expected(panel.values)


def with_arrivals(make: Callable[[], explorers.Panel]) -> Iterator[str]:
    """Each load, also where static batching, or both, are overloaded."""
    panel = make()
    if "load" not in panel.controls:
        return
    assert panel.controls["load"].disabled
    panel.controls["arrivals"].set_state({"index": 1})
    assert not panel.controls["load"].disabled
    for state in stops(panel.controls["load"]):
        panel.controls["load"].set_state(state)
        assert not panel.error, panel.error
        assert shown(panel) == EXPECTED[make.__name__](panel.values), f"load {state}"
        said = panel.children[1].value + panel.children[2].value + panel.children[4].value
        assert ("overloaded" in said) == (state["value"] > 0.2), f"load {state}: {said}"
        yield f"{make.__name__}: load {state}"


def own_files() -> Iterator[str]:
    """A reader's own log in each form, and files that cannot be read."""
    metrics = "\n".join(f'vllm:request_generation_tokens_bucket{{engine="0",le="{le}"}} {n}'
                        for le, n in (("10.0", 5), ("100.0", 90), ("+Inf", 100)))
    good = {"log.csv": b"\xef\xbb\xbfid,output_tokens\n" + b"".join(b"%d,%d\n" % (i, 1 + i % 40) for i in range(300)),
            "log.jsonl": b'{"output_tokens": 12}\n{"output_tokens": 80}\n', "metrics.txt": metrics.encode()}
    bad = {"other.csv": (b"id,tokens\n1,2\n", "no column 'output_tokens'"),
           "text.csv": (b"output_tokens\n12\nmany\n", "3 has 'many'"),
           "large.csv": (b"output_tokens\n" + b"12\n" * 3_400_000, "large.csv has 10.2 MB, and the panel takes 10"),
           "empty.csv": (b"", "its first line is empty"), "empty.txt": (b"", "no vllm:request_generation_tokens")}
    for name, content in good.items():
        panel = explorers.sigma_sweep()
        panel.set(workload="own")
        said = panel.children[1].value
        assert "Not drawn yet: choose a CSV" in said and "D55E00" not in said, "nothing is wrong yet"
        upload(panel.controls["file"], name, content)
        assert not panel.error, f"{name}: {panel.error}"
        assert "your workload" in panel.children[3].value
        panel.reset()
        assert panel.values["workload"] == "lognormal" and not panel.error
        yield name
    for name, (content, message) in bad.items():
        panel = explorers.sigma_sweep()
        panel.set(workload="own")
        upload(panel.controls["file"], name, content)
        assert message in panel.error, f"{name}: {panel.error}"
        panel.set(workload="lognormal")
        assert not panel.error, "a bad file must not break the panel"
        yield name
    panel = explorers.sigma_sweep()
    panel.set(workload="own", pasted=metrics)
    assert not panel.error, panel.error
    yield "a pasted /metrics page"


def bad_lengths() -> Iterator[str]:
    """Text that holds no lengths is answered in words, and the last good picture stays."""
    panel = explorers.eight_requests()
    before = panel.children[3].value
    for words in ("", "0", "12, -3", "12, many", "nan", "1e9", "12.5", "9" * 400, "inf", ", ,", "<b>", "5 " * 65):
        panel.controls["lengths"].set_state({"value": words})
        assert panel.error and "Not drawn" in panel.children[1].value, words
        assert panel.children[3].value == before, f"{words!r} took the picture away"
        yield f"lengths {words[:12]!r}: {panel.error}"
    panel.controls["lengths"].set_state({"value": "7, 9"})
    assert not panel.error and "Not drawn" not in panel.children[1].value


def asking() -> Iterator[str]:
    """Predictions and progress."""
    said: list[float] = []
    panel = explorers.prediction("How much is wasted?", 0, 100, "%", said.append)
    panel.slider.set_state({"value": 40})
    panel.button.click()
    panel.button.click()
    assert "committed: 40 %" in panel.children[2].value and panel.slider.disabled and said[0] == 40
    yield "prediction"
    bar, progress = explorers.progress_bar(3)
    for i in range(3):
        progress(i + 1, 3)
    assert "3 of 3" in bar.children[0].children[1].value
    yield "progress bar"


def display(make: Callable[[], explorers.Panel]) -> Iterator[str]:
    """What a notebook stores is the same for each run, and shows something without a kernel."""
    bundles = [make()._repr_mimebundle_() for _ in range(2)]
    for bundle in bundles:
        assert bundle.pop("application/vnd.jupyter.widget-view+json")["model_id"]
    assert bundles[0] == bundles[1] and "<img alt=" in bundles[0]["text/html"]
    yield f"{make.__name__}: display"


def main() -> int:
    """Run all checks; the number of failures."""
    checks = [lambda m=m, f=f: f(m) for m in EXPLORERS for f in (every_stop, with_arrivals, display)]
    checks += [own_files, bad_lengths, asking]
    done, failures = 0, 0
    for check in checks:
        try:
            done += sum(1 for _ in check())
        except Exception:
            failures += 1
            traceback.print_exc()
    print(f"ipywidgets {w.__version__}, Python {sys.version.split()[0]}: {done} checks passed, {failures} failed")
    return failures


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
