"""A stand-in for a vLLM server where none can be had: the same HTTP API, driven by `labs.engine` in real time.

It holds no model and says in every answer that it is simulated. Which requests share a step, who is preempted and
how many tokens come back are those of vLLM's scheduling rules; the time that a step takes is a `StepTime`.
"""
from labs.live.simulated.app import VERSION, create_app

__all__ = ["VERSION", "create_app"]
