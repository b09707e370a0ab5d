"""What the installed vLLM says of itself, as JSON: run with its Python, `-m tests.conformance.facts`."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, get_args
from unittest import mock

from tests.conformance.real import VERSION, model_folder  # sets vLLM's environment: it comes first
from tests.conformance.workloads import REFUSED

# isort: split
from vllm.config import CacheConfig, SchedulerConfig
from vllm.config.scheduler import SchedulerPolicy
from vllm.engine import arg_utils
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.core.sched import scheduler, utils
from vllm.v1.engine import core, detokenizer
from vllm.v1.metrics import loggers

GIB = 2**30


def server_flags() -> list[str]:
    """Every option of the server."""
    parser = make_arg_parser(FlexibleArgumentParser())
    return sorted(option for action in parser._actions for option in action.option_strings)


def server_defaults(model: str) -> dict[str, Any]:
    """What a server on this machine would run with if no flag is given."""
    arguments = arg_utils.EngineArgs(model=model, skip_tokenizer_init=True)
    config = arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)
    names = ("max_num_batched_tokens", "max_num_seqs", "policy", "enable_chunked_prefill", "async_scheduling",
             "long_prefill_token_threshold", "long_prefill_token_threshold_adaptive", "max_num_active_seqs",
             "scheduler_reserve_full_isl", "watermark", "max_num_queued_reqs", "max_num_queued_tokens")  # fmt: skip
    return {name: getattr(config.scheduler_config, name) for name in names} | {
        "enable_prefix_caching": config.cache_config.enable_prefix_caching,
        "block_size": config.cache_config.block_size,
    }


def async_if_asked(model: str) -> bool:
    """Whether this platform lets asynchronous scheduling on when it is asked for."""
    arguments = arg_utils.EngineArgs(model=model, skip_tokenizer_init=True, async_scheduling=True)
    return arguments.create_engine_config(UsageContext.OPENAI_API_SERVER).scheduler_config.async_scheduling


def batch_defaults(gib: float, name: str) -> tuple[int, int]:
    """max_num_batched_tokens and max_num_seqs of a server on a GPU of that name and memory."""
    gpu = SimpleNamespace(
        get_device_total_memory=lambda: gib * GIB, get_device_name=lambda: name,
        is_tpu=lambda: False, is_cpu=lambda: False,
    )  # fmt: skip
    with mock.patch.object(arg_utils, "current_platform", gpu):
        tokens, seqs = arg_utils.EngineArgs.get_batch_defaults(1)
    return tokens[UsageContext.OPENAI_API_SERVER], seqs[UsageContext.OPENAI_API_SERVER]


def refused(settings: dict[str, Any]) -> bool:
    """Whether vLLM refuses these settings of the scheduler."""
    good = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 2048, "is_encoder_decoder": False}
    try:
        SchedulerConfig(**good | settings)
    except ValueError:
        return True
    return False


def order(source: str, *marks: str) -> bool:
    """Whether all marks are in the source, in this order."""
    places = [source.find(mark) for mark in marks]
    return -1 not in places and places == sorted(places)


def collect(model: str) -> dict[str, Any]:
    """All facts."""
    schedule, stop = inspect.getsource(scheduler.Scheduler.schedule), inspect.getsource(utils.check_stop)
    preempt = inspect.getsource(scheduler.Scheduler._preempt_request)
    return {
        "version": VERSION,
        "platform": current_platform.device_name,
        "policies": get_args(SchedulerPolicy),
        "defaults": server_defaults(model),
        "async_if_asked": async_if_asked(model),
        "batch_defaults": {
            f"{name}, {gib} GiB": batch_defaults(gib, name)
            for name, gib in (("Tesla T4", 15), ("L4", 22), ("A100", 80), ("H100", 80), ("H200", 139), ("B200", 180))
        },
        "flags": server_flags(),
        "metrics": sorted(set(re.findall(r'"(vllm:\w+)"', inspect.getsource(loggers)))),
        "refused": [refused(settings) for settings in ({}, *REFUSED)],
        "settings with swap in their names": [
            f.name for kind in (CacheConfig, SchedulerConfig) for f in fields(kind) if "swap" in f.name
        ],
        "step order": order(inspect.getsource(core.EngineCore.step), ".schedule(", ".execute_model(",
                            ".update_from_output("),
        "running before waiting": order(schedule, "while req_index < len(self.running)",
                                        "if not preempted_reqs", "while token_budget > 0"),
        "preemption frees and recomputes": order(preempt, "_free_request_blocks(request)",
                                                 "num_computed_tokens = 0", "prepend_request(request)"),
        "stop tokens before lengths": order(stop, "eos_token_id", "stop_token_ids",
                                            ">= max_model_len", ">= request.max_tokens"),
        "the scheduler knows stop strings": "stop_string" in stop + inspect.getsource(scheduler),
        "the detokenizer knows stop strings": hasattr(detokenizer, "check_stop_strings"),
    }  # fmt: skip


if __name__ == "__main__":
    with model_folder() as folder:
        print("\n" + json.dumps(collect(folder)))
