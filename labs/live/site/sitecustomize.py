"""On the PYTHONPATH of a vLLM that runs on a CPU: where it would spin on sched_yield, let others have the core.

On few cores its spinning froze every other process for seconds, the measuring client included.
"""

import os
import time

os.sched_yield = lambda: time.sleep(0)
