"""Schedules and sweeps as SVG text: quick enough to redraw while a slider moves, with words for who cannot see them.

Time runs left to right in steps, slots top to bottom. Useful work has its request's colour (its scheduler's, where
requests are too many to tell apart); a slot held by a finished request is pale grey and hatched; an empty slot is
blank. Nothing here simulates, except `python -m labs.svg OUT.svg`, which writes the picture of the eight requests.
"""

from labs.svg.chart import Axis, chart
from labs.svg.curve import sweep_curve
from labs.svg.marks import COLOURS, DRAIN, FAINT, HATCH, HELD, INK, OKABE_ITO, Picture, on
from labs.svg.occupancy import MOST_BINS, binned_occupancy, occupancies
from labs.svg.over_time import message
from labs.svg.step import step
from labs.svg.timeline import request_colours, request_names, timelines
from labs.svg.watched import running_and_waiting

__all__ = ["Axis", "COLOURS", "DRAIN", "FAINT", "HATCH", "HELD", "INK", "MOST_BINS", "OKABE_ITO", "Picture",
           "binned_occupancy", "chart", "message", "occupancies", "on", "request_colours", "request_names",
           "running_and_waiting", "step", "sweep_curve", "timelines"]
