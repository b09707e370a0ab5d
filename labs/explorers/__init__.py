"""Every control that a reader touches: a call makes a panel; end a cell with it, or read its `.values` and `.view`."""

from labs.explorers.asking import prediction, progress_bar, quiz
from labs.explorers.dial import dial
from labs.explorers.drills import drills
from labs.explorers.eight import eight_requests
from labs.explorers.live import StatusLine, live
from labs.explorers.panel import Panel, View
from labs.explorers.player import step_player
from labs.explorers.proof import certificate
from labs.explorers.sigma import sigma_sweep
from labs.explorers.simulator import simulator

__all__ = ["Panel", "StatusLine", "View", "certificate", "dial", "drills", "eight_requests", "live", "prediction",
           "progress_bar", "quiz", "sigma_sweep", "simulator", "step_player"]
