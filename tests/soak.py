"""Thousands of slider events on each explorer: does it stay as quick, and as small, as it was?

`python tests/soak.py [events]` moves the sliders of each explorer in turn, in a process each, and prints memory after
500 events and at the end, the median time of the first and of the last hundred, and whether the last value is drawn.
Ends with status 1 if memory grew by more than 5 MB, a figure was left, or the last value isn't drawn. Times are shown,
not judged: the machine may be busy. The last hundred events repeat the first hundred, so that their times compare.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

EVENTS, SETTLED, GROWTH = 10_000, 500, 5.0  # events; events until the level is taken; MB
EXPLORERS = ("eight_requests", "simulator", "sigma_sweep", "step_player", "dial")


def memory() -> float:
    """This process's memory now, in MB."""
    gc.collect()
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


def values(control, i: int):
    """The i-th stop of a walk up and down a slider."""
    steps = round((control.max - control.min) / control.step)
    place = i % (2 * steps) if steps else 0
    return control.min + min(place, 2 * steps - place) * control.step


def soak(name: str, events: int) -> dict:
    """Move one explorer's sliders `events` times."""
    import ipywidgets as w

    from labs import explorers

    panel = getattr(explorers, name)()
    sliders = [c for c in panel.controls.values() if isinstance(c, (w.IntSlider, w.FloatSlider))
               and not c.disabled and c.layout.display != "none"]
    times, level = [], memory()
    for i in range(events):
        place = i if i < events - 100 else i - (events - 100)  # the last hundred go where the first hundred went
        control = sliders[place % len(sliders)]
        kind = type(control.value)
        began = time.perf_counter()
        control.value = kind(round(values(control, place // len(sliders) + 1), 10))
        times.append(time.perf_counter() - began)
        if i + 1 == SETTLED:
            level = memory()
    grown, last = memory() - level, panel.shown.picture.inline(panel.model_id)
    drawn = panel._picture.value
    panel.render_now()
    pyplot = sys.modules.get("matplotlib.pyplot")
    return {"explorer": name, "events": events, "level_mb": level, "grown_mb": grown,
            "first_ms": 1e3 * median(times[:100]), "last_ms": 1e3 * median(times[-100:]), "error": panel.error,
            "last_drawn": last == drawn == panel._picture.value,
            "figures": len(pyplot.get_fignums()) if pyplot else 0}


def main(events: int) -> int:
    """Every explorer in a process of its own."""
    print(f"{'explorer':16}{'events':>8}{'MB after 500':>14}{'grown MB':>10}{'first 100 ms':>14}{'last 100 ms':>13}"
          f"{'ratio':>7}  last value drawn")
    bad = 0
    for name in EXPLORERS:
        done = subprocess.run([sys.executable, __file__, name, str(events)], capture_output=True, text=True, check=True)
        row = json.loads(done.stdout.splitlines()[-1])
        fine = row["grown_mb"] <= GROWTH and row["last_drawn"] and not row["figures"] and not row["error"]
        bad += not fine
        print(f"{name:16}{events:8,}{row['level_mb']:14.1f}{row['grown_mb']:10.1f}{row['first_ms']:14.2f}"
              f"{row['last_ms']:13.2f}{row['last_ms'] / row['first_ms']:7.2f}  {row['last_drawn']}"
              f"{'' if fine else '   <- amiss'}", flush=True)
    return bad


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print(json.dumps(soak(sys.argv[1], int(sys.argv[2]))))
    else:
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else EVENTS) > 0)
