"""Play every preset of the step player as a browser would, and compare what is shown with the engine's records.

Needs only what the course needs, with ipywidgets 7.7 or later: `python tests/run_player.py`. A failure exits 1.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterator
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import ipywidgets as w

from labs import engine, explorers
from labs.engine import StepRecord
from labs.knobs import SchedulerConfig
from labs.presets import PRESETS, Preset
from labs.workload import Request

KNOBS = ("max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks", "enable_chunked_prefill", "policy")


# ---- what must be shown, from records of runs apart from the player's -----------------------------------------------


def records(preset: Preset, **knobs: Any) -> tuple[list[StepRecord], SchedulerConfig]:
    """A preset's records under its own settings, or others."""
    config = replace(preset.config, **knobs)
    return list(engine.run(preset.requests, config, stops=preset.stops, aborts=preset.aborts).records), config


def expected(record: StepRecord, config: SchedulerConfig) -> list[str]:
    """The large numbers of a step."""
    used = sum(record.prefill.values()) + sum(record.decode.values())
    total = config.num_gpu_blocks - 1
    return [f"{used:,} of {config.max_num_batched_tokens:,}", f"{len(record.running):,} of {config.max_num_seqs:,}",
            f"{len(record.waiting):,}", f"{total - record.free_blocks:,} of {total:,}"]


def expected_split(record: StepRecord) -> str:
    """What stands under the first of them."""
    return f"tokens: {sum(record.prefill.values()):,} prefill + {len(record.decode):,} decode"


# ---- what is shown --------------------------------------------------------------------------------------------------


def shown(panel: explorers.Panel) -> list[str]:
    """The large numbers in the panel's HTML."""
    return re.findall(r'class="number"[^>]*>([^<]*)<', panel.children[2].value)


def assert_shows(panel: explorers.Panel, record: StepRecord, config: SchedulerConfig, where: str) -> None:
    """Numbers, table, title and picture are this record's."""
    assert not panel.error, f"{where}: {panel.error}"
    assert shown(panel) == expected(record, config), f"{where}: {shown(panel)} is not {expected(record, config)}"
    assert expected_split(record) in panel.children[2].value, where
    picture = panel.children[3].value
    assert picture.count("<svg") == 1 and f"step {record.step}: " in picture, where
    assert record.binding_limit in picture or record.binding_limit == "none" and "no limit binds" in picture, where
    rows = panel.view.rows[1:]
    assert sum(_number(row[2]) for row in rows) == sum(record.prefill.values()) + len(record.decode), where
    assert sum(_number(row[5]) for row in rows) == config.num_gpu_blocks - 1 - record.free_blocks, where


def _number(words: str) -> int:
    return int(words.replace(",", ""))


# ---- the checks -----------------------------------------------------------------------------------------------------


def every_step(preset: Preset) -> Iterator[str]:
    """The slider at each step, and back to the first."""
    panel, (found, config) = explorers.step_player(preset.name), records(preset)
    slider = panel.controls["step"]
    assert (slider.min, slider.max, slider.value) == (0, len(found) - 1, preset.start)
    assert panel.play.max == slider.max
    for record in [*found, found[0]]:
        slider.set_state({"value": record.step})
        assert_shows(panel, record, config, f"{preset.name}, step {record.step}")
        yield f"{preset.name}: step {record.step}"


def every_knob(preset: Preset) -> Iterator[str]:
    """Each knob at its ends: what runs is shown, what cannot is refused in a sentence and leaves the picture."""
    for name in KNOBS:
        panel = explorers.step_player(preset.name)
        control = panel.controls[name]
        for state in _ends(control):
            before = panel.children[3].value
            control.set_state(state)
            where = f"{preset.name}: {name} at {control.value}"
            knobs = {knob: panel.values[knob] for knob in KNOBS}
            try:
                found, config = records(preset, **knobs)
            except ValueError as error:
                assert panel.error == str(error), f"{where}: {panel.error!r} is not {str(error)!r}"
                assert "Not drawn" in panel.children[1].value and panel.children[3].value == before, where
            else:
                if not found:
                    assert panel.error.startswith("no step ran"), f"{where}: {panel.error}"
                    continue
                assert panel.controls["step"].max == len(found) - 1, where
                assert_shows(panel, found[panel.values["step"]], config, where)
            yield where
        panel.reset()
        assert panel.values == explorers.step_player(preset.name).values, f"{preset.name}: reset after {name}"


def _ends(control: w.Widget) -> list[dict[str, Any]]:
    if isinstance(control, w.IntSlider):
        return [{"value": control.min}, {"value": control.max}]
    return [{"index": 0}, {"index": len(control.options) - 1}]


def choosing() -> Iterator[str]:
    """Every preset from the list, in one panel; buttons; speed."""
    panel = explorers.step_player()
    for i, (name, _) in enumerate(panel.controls["preset"].options):
        panel.controls["preset"].set_state({"index": i})
        found, config = records(PRESETS[name])
        assert panel.preset.name == name and panel.values["step"] == PRESETS[name].start
        assert_shows(panel, found[PRESETS[name].start], config, name)
        assert escape(PRESETS[name].sentence) in panel.children[1].value
        yield name
    found, config = records(PRESETS["one request alone"])
    for button, at in ((panel.back, 0), (panel.next, 1), (panel.next, 2), (panel.back, 1)):
        button.click()
        assert_shows(panel, found[at], config, "buttons")
    panel.controls["step"].set_state({"value": len(found) - 1})
    panel.next.click()
    assert_shows(panel, found[-1], config, "next at the end")
    panel.play.set_state({"value": 7})
    assert panel.values["step"] == 7
    assert_shows(panel, found[7], config, "playing")
    panel.controls["step"].set_state({"value": 3})
    assert panel.play.value == 3
    panel.speed.set_state({"index": 2})
    assert panel.play.interval == 150
    yield "buttons and speed"


def own_requests() -> Iterator[str]:
    """A reader's own requests, one of them refused, one with markup for a name."""
    requests = [Request("<b>&\"'", 40, 5), Request("long", 900, 5), Request("x" * 60, 20, 9, arrival=2)]
    config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64, num_gpu_blocks=9, max_model_len=1024)
    panel = explorers.step_player((iter(requests), config))
    found = list(engine.run(requests, config).records)
    for record in found:
        panel.controls["step"].set_state({"value": record.step})
        assert_shows(panel, record, config, f"own, step {record.step}")
        assert "<b>" not in panel.children[3].value + panel.children[4].value
    assert "Long was refused: the request needs 57 KV blocks" in panel.children[1].value, panel.children[1].value
    yield "own requests"
    panel.controls["preset"].set_state({"index": 1})
    assert panel.values["preset"] == "two long prompts beside 180"
    yield "from own requests to a preset"
    nobody = explorers.step_player(([], config))
    assert nobody.error == "no step ran: there are no requests", nobody.error
    yield "no requests"


def display() -> Iterator[str]:
    """What a notebook stores is the same for each run, and shows something without a kernel."""
    bundles = [explorers.step_player()._repr_mimebundle_() for _ in range(2)]
    for bundle in bundles:
        assert bundle.pop("application/vnd.jupyter.widget-view+json")["model_id"]
    assert bundles[0] == bundles[1] and "<img alt=" in bundles[0]["text/html"]
    yield "display"


def main() -> int:
    """Run all checks; the number of failures."""
    checks = [lambda p=p, f=f: f(p) for p in PRESETS.values() for f in (every_step, every_knob)]
    done, failures = 0, 0
    for check in [*checks, choosing, own_requests, display]:
        try:
            done += sum(1 for _ in check())
        except Exception:
            failures += 1
            traceback.print_exc()
    print(f"ipywidgets {w.__version__}, Python {sys.version.split()[0]}: {done} checks passed, {failures} failed")
    return failures


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
