"""Read a server's /metrics, name what limits it, and watch it while a load runs."""
from labs.live.monitor.between import delta, normalised_latency
from labs.live.monitor.histogram import Histogram
from labs.live.monitor.limits import LIMITS, Caps, Diagnosis, diagnose
from labs.live.monitor.page import Metrics, read_metrics
from labs.live.monitor.watch import Series, Watch, watch

__all__ = ["LIMITS", "Caps", "Diagnosis", "Histogram", "Metrics", "Series", "Watch", "delta", "diagnose",
           "normalised_latency", "read_metrics", "watch"]
