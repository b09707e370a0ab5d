"""The command line: vLLM's flags where it has the thing, and a few of our own."""
from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields

import uvicorn

from labs.engine import StepTime
from labs.live.simulated.app import create_app
from labs.scheduler import SchedulerConfig

# A small model on two CPU cores, as measured: 9 ms a token alone, 13 with eight others, 17 with 32.
STEP_TIME = StepTime(base=0.0087, per_sequence=0.00026, per_prefill_token=0.00002)
_SETTINGS = {"max_num_seqs": 128, "max_num_batched_tokens": 2048, "num_gpu_blocks": 4097, "block_size": 16,
             "max_model_len": 2048, "long_prefill_token_threshold": 0, "max_num_active_seqs": None}
_NO_EFFECT = ("--enforce-eager", "--no-enable-prefix-caching", "--no-async-scheduling", "--disable-log-requests",
              "--no-enable-log-requests")
_NO_EFFECT_VALUE = ("--dtype", "--gpu-memory-utilization", "--load-format", "--attention-backend", "--tokenizer",
                    "--chat-template")
_ABSENT = {"--enable-prefix-caching": "the simulated server has no prefix cache: leave it out",
           "--trust-remote-code": "the simulated server has no model: leave it out"}
log = logging.getLogger("uvicorn.error")


class _Absent(argparse.Action):
    """A flag of vLLM's for a thing that is not simulated: better refused than taken without effect."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        raise argparse.ArgumentError(self, _ABSENT[self.option_strings[0]])


def parser() -> argparse.ArgumentParser:
    """All flags."""
    p = argparse.ArgumentParser(prog="python -m labs.live.simulated", allow_abbrev=False,
                                description="A SIMULATED vLLM server: no model, no GPU, nothing beyond 127.0.0.1.")
    p.add_argument("--host", default="127.0.0.1", choices=["127.0.0.1"])
    p.add_argument("--port", type=int, default=8000)
    p.add_argument("--model", default="simulated")
    p.add_argument("--served-model-name")
    p.add_argument("--api-key", default=os.environ.get("VLLM_API_KEY") or None)
    for name, default in _SETTINGS.items():
        flag = "--num-gpu-blocks-override" if name == "num_gpu_blocks" else "--" + name.replace("_", "-")
        p.add_argument(flag, dest=name, type=int, default=default)
    p.add_argument("--scheduling-policy", dest="policy", default="fcfs", choices=["fcfs", "priority"])
    p.add_argument("--watermark", type=float, default=0.0)
    for flag, default in (("--enable-chunked-prefill", True), ("--scheduler-reserve-full-isl", True),
                          ("--long-prefill-token-threshold-adaptive", False)):
        p.add_argument(flag, action=argparse.BooleanOptionalAction, default=default)
    p.add_argument("--max-num-queued-reqs", type=int)
    p.add_argument("--max-num-queued-tokens", type=int)
    p.add_argument("--disable-uvicorn-access-log", action="store_true")
    own = p.add_argument_group("of the simulation")
    own.add_argument("--static", action="store_true", help="static batching: nobody is admitted while anything runs")
    own.add_argument("--step-time", type=float, nargs=3, metavar=("BASE", "PER_SEQUENCE", "PER_PREFILL_TOKEN"),
                     default=(STEP_TIME.base, STEP_TIME.per_sequence, STEP_TIME.per_prefill_token), help="in seconds")
    own.add_argument("--speed", type=float, default=1.0, help="how many times faster than that")
    own.add_argument("--seed", type=int, default=0, help="decides where answers end by themselves")
    none = p.add_argument_group("taken, without effect")
    for flag in _NO_EFFECT:
        none.add_argument(flag, action="store_true")
    for flag in _NO_EFFECT_VALUE:
        none.add_argument(flag)
    for flag in _ABSENT:
        p.add_argument(flag, action=_Absent, nargs=0, help=argparse.SUPPRESS)
    return p


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until a signal comes."""
    p = parser()
    given = p.parse_args(arguments)
    try:
        config = SchedulerConfig(**{f.name: getattr(given, f.name) for f in fields(SchedulerConfig)})
        app = create_app(config, StepTime(*given.step_time), given.served_model_name or given.model, given.api_key,
                         given.speed, static=given.static, seed=given.seed,
                         max_num_queued_reqs=given.max_num_queued_reqs,
                         max_num_queued_tokens=given.max_num_queued_tokens)
    except ValueError as error:
        p.error(str(error))
    server = uvicorn.Server(uvicorn.Config(app, given.host, given.port, timeout_graceful_shutdown=1,
                                           access_log=not given.disable_uvicorn_access_log, backlog=2048))
    log.warning("SIMULATED server: no model and no GPU; the steps are labs.engine's, their times a straight line.")
    with suppress(KeyboardInterrupt):  # uvicorn has shut down by then, and raises it again
        server.run()
    if not server.started:
        raise SystemExit(1)
