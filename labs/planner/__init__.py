"""From lengths, an arrival rate, a step time and two targets to max_num_seqs, KV blocks and replicas."""

from labs.planner.asked import RESOURCES, Load, Settings, Targets
from labs.planner.judged import ALIKE, FEWEST, MISSES, REFUSED, Full, Margin, while_full
from labs.planner.plan import Plan, Planner

__all__ = ["ALIKE", "FEWEST", "MISSES", "REFUSED", "RESOURCES", "Full", "Load", "Margin", "Plan", "Planner",
           "Settings", "Targets", "while_full"]
