"""How fast `labs.engine.run` is, beside vLLM's own scheduler and other simulators: python tests/bench_engine.py.

BENCH_VLLM, BENCH_DYNAMO and BENCH_SR_SIM (or --vllm ...) name the Python of an environment that has vllm, ai-dynamo or
vllm-sr-sim; what isn't named is left out, and said to be. Each keeps its own process, with its requests ready, and
they take turns with ours, so that a busy moment hits all. Times are the shortest of the turns, on the wall clock, and
the ratios are what to look at; where only our own times are compared with each other, they are CPU times.
Takes about 3 minutes on an idle machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from labs.engine import run  # noqa: E402
from labs.scheduler import SchedulerConfig  # noqa: E402
from labs.workload import Request, measured_lengths, uniform_lengths  # noqa: E402

AMPLE = SchedulerConfig(256, 2048, 100_000)

# Each peer reads one JSON line with settings and requests, then a line a turn, and answers with a JSON line.
VLLM = """
import hashlib, json, sys, time
from tests.conformance.real import VERSION, ModelRunnerOutput, as_vllm, knobs, make_scheduler, model_folder, workload
given = json.loads(input())
config = knobs.SchedulerConfig(**given["config"])

def turn(look, model):
    scheduler = make_scheduler(config, model)
    for request in [as_vllm(workload.Request(*row)) for row in given["requests"]]:
        scheduler.add_request(request)
    steps, digest, begun = 0, hashlib.sha256(), time.perf_counter()
    while scheduler.has_unfinished_requests():
        plan = scheduler.schedule()
        if look:
            queues = [[r.request_id for r in queue] for queue in (scheduler.running, scheduler.waiting)]
            usage = round(scheduler.kv_cache_manager.usage, 12)
            digest.update(json.dumps([plan.num_scheduled_tokens, sorted(plan.preempted_req_ids or ()), queues, usage])
                          .encode())
        ids = list(plan.num_scheduled_tokens)
        states = [scheduler.requests[i] for i in ids]
        tokens = [[3] if r.num_computed_tokens >= r.num_tokens else [] for r in states]
        scheduler.update_from_output(plan, ModelRunnerOutput(
            req_ids=ids, req_id_to_index={i: place for place, i in enumerate(ids)}, sampled_token_ids=tokens,
            logprobs=None, prompt_logprobs_dict={}, pooler_output=[]))
        steps += 1
    return {"seconds": time.perf_counter() - begun, "steps": steps, "digest": digest.hexdigest(), "version": VERSION}

with model_folder() as model:
    for line in sys.stdin:
        print(json.dumps(turn(json.loads(line), model)), flush=True)
"""
DYNAMO = """
import json, sys, tempfile, time
from importlib.metadata import version
from itertools import count
from dynamo.mocker import MockEngineArgs
from dynamo.replay import run_trace_replay
given, ids = json.loads(input()), count()
with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
    for _, prompt, output, _, _ in given["requests"]:
        names = [next(ids) for _ in range(-(-prompt // 512))]
        print(json.dumps(dict(timestamp=0, input_length=prompt, output_length=output, hash_ids=names)), file=file)
    file.flush()
    for line in sys.stdin:
        config = given["config"]
        names = ("num_gpu_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens")
        args = MockEngineArgs(**{name: config[name] for name in names}, enable_prefix_caching=False)
        done = run_trace_replay(file.name, extra_engine_args=args, replay_mode="offline", trace_block_size=512)
        assert done["completed_requests"] == len(given["requests"])
        seconds = done["wall_time_ms"] / 1000  # its own figure, which leaves the reading of the file out
        print(json.dumps({"seconds": seconds, "version": version("ai-dynamo")}), flush=True)
"""
SR_SIM = """
import json, sys, time
from importlib.metadata import version
from fleet_sim.core.instance import Instance
from fleet_sim.core.request import Request
from fleet_sim.gpu_profiles.manual import ManualProfile
given = json.loads(input())
config = given["config"]
gpu = ManualProfile(name="any", W=0.01, H=0.0001, chunk=config["max_num_batched_tokens"], blk_size=config["block_size"],
                    total_kv_blks=config["num_gpu_blocks"], max_slots=config["max_num_seqs"], cost_per_hr=1.0,
                    calibration_ctx=config["max_model_len"])
for line in sys.stdin:
    instance = Instance(0, "any", gpu, config["max_model_len"], max_queue=len(given["requests"]))
    assert instance.n_slots == config["max_num_seqs"]
    requests = [Request(i, 0.0, prompt, output) for i, (_, prompt, output, _, _) in enumerate(given["requests"])]
    begun = time.perf_counter()
    for request in requests:
        assert instance.accept(request)
    done = instance.advance_to(1e9)
    seconds = time.perf_counter() - begun
    assert len(done) == len(requests)
    print(json.dumps({"seconds": seconds, "version": version("vllm-sr-sim")}), flush=True)
"""
PEAK = """
import json, resource, sys, time
from tests.bench_engine import AMPLE, conversation, run
requests = conversation(int(sys.argv[1]))
begun = time.perf_counter()
done = run(requests, AMPLE)
seconds = time.perf_counter() - begun
scale = 1024 * (1024 if sys.platform == "darwin" else 1)
print(json.dumps([seconds, done.steps, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale]))
"""


# ---- workloads


def peers(n: int = 4000) -> list[Request]:
    """The workload on which other simulators were measured: all come at once."""
    rng = random.Random(0)
    lengths = [(rng.randint(10, 300), min(1500, max(1, int(rng.lognormvariate(4.2, 1.1))))) for _ in range(n)]
    return [Request(f"r{i}", *pair) for i, pair in enumerate(lengths)]


def conversation(n: int, longer: int = 1) -> list[Request]:
    """Outputs as in azure_conv_2023, times `longer`; prompts of 10 to 300 tokens."""
    outputs = measured_lengths("azure_conv_2023", n, 0) * longer
    prompts = uniform_lengths(n, 10, 300, 1)
    return [Request(f"r{i}", *pair) for i, pair in enumerate(zip(prompts.tolist(), outputs.tolist(), strict=True))]


# ---- two sides, in turns


class Peer:
    """Another program in a process of its own, which holds the requests and runs them when asked."""

    def __init__(self, python: str, program: str, requests: Iterable[Request], config: SchedulerConfig) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- open as long as the process
        self._process = subprocess.Popen([python, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, text=True,
                                         stdout=subprocess.PIPE, stderr=self._errors)
        self._say({"config": asdict(config), "requests": [list(asdict(r).values()) for r in requests]})

    def _say(self, what: object) -> None:
        print(json.dumps(what), file=self._process.stdin, flush=True)

    def turn(self, look: bool = False) -> dict:
        """Run once; with `look`, note each step, which takes its time."""
        self._say(look)
        for line in self._process.stdout:
            if line.startswith("{"):  # the rest is what a library has to say
                return json.loads(line)
        self._process.wait()
        self._errors.seek(0)
        raise RuntimeError(f"the other side gave up:\n{self._errors.read()[-2000:]}")

    def close(self) -> None:
        """Let it end."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()


@dataclass(frozen=True)
class Result:
    """The shortest turn of each side, in seconds; both digests if they were asked for."""

    ours: float
    theirs: float
    steps: int
    preemptions: int
    version: str
    same: bool | None = None


def side_by_side(peer: Peer, requests: list[Request], config: SchedulerConfig, turns: int, look: bool) -> Result:
    """Run both in turns."""
    ours, theirs = [], []
    for _ in range(turns):
        answer = peer.turn()
        theirs.append(answer["seconds"])
        for _ in range(3):
            begun = time.perf_counter()
            done = run(requests, config)
            ours.append(time.perf_counter() - begun)
    same = None
    if look:
        seen = peer.turn(look=True)
        same = (seen["steps"], seen["digest"]) == (done.steps, digest(done.records))
    return Result(min(ours), min(theirs), done.steps, done.preemptions, answer["version"], same)


def digest(records: Iterable) -> str:
    """All that vLLM's scheduler shows of its steps, in one number."""
    digest = hashlib.sha256()
    for record in records:
        plan = {**record.prefill, **record.decode}
        plan = {i: plan[i] for i in record.running if i in plan}
        queues = [list(record.running), list(record.waiting)]
        digest.update(json.dumps([plan, sorted(record.preempted), queues, round(record.kv_usage, 12)]).encode())
    return digest.hexdigest()


# ---- the three tables


def beside_vllm(python: str | None, turns: int) -> int:
    """`run()` beside a loop over vLLM's schedule() and update_from_output(); how many targets were missed."""
    print("\n## Beside vLLM's own scheduler\n")
    if not python:
        print("left out: BENCH_VLLM names no Python with vllm")
        return 0
    print("| running | KV blocks | requests | steps | preemptions | run(), ms | vLLM, ms | ratio | at least "
          "| records |\n|---|---|---|---|---|---|---|---|---|---|")
    missed = 0
    for seqs, blocks, n, least in ((8, 100_000, 400, 8), (64, 100_000, 1500, 8), (256, 100_000, 4000, 50),
                                   (8, 160, 400, 8), (64, 800, 1500, 8), (256, 2500, 4000, 8)):
        requests, config = peers(n), replace(AMPLE, max_num_seqs=seqs, num_gpu_blocks=blocks)
        peer = Peer(python, VLLM, requests, config)
        r = side_by_side(peer, requests, config, turns, look=True)
        peer.close()
        missed += r.theirs / r.ours < least or not r.same
        print(f"| {seqs} | {blocks:,} | {n:,} | {r.steps:,} | {r.preemptions:,} | {r.ours * 1000:.1f} "
              f"| {r.theirs * 1000:,.0f} | {r.theirs / r.ours:.0f}x | {least}x | "
              f"{'identical' if r.same else 'DIFFER'} |", flush=True)
    print(f"\nvllm {r.version}")
    return missed


def beside_peers(pythons: dict[str, str | None], turns: int) -> int:
    """Requests a second on the peers' workload; how many targets were missed."""
    print("\n## Beside other simulators: 4,000 requests at once, 256 running, a budget of 2,048, ample memory\n")
    requests, best = peers(), []
    print("| | version | requests/s | run() beside it, requests/s | ratio |\n|---|---|---|---|---|")
    for name, program in (("ai-dynamo", DYNAMO), ("vllm-sr-sim", SR_SIM)):
        if not pythons[name]:
            print(f"| {name} | left out: no Python named | | | |")
            continue
        peer = Peer(pythons[name], program, requests, AMPLE)
        r = side_by_side(peer, requests, AMPLE, 4 * turns, look=False)  # they are short, and a busy moment is not
        peer.close()
        best.append(r.ours)
        print(f"| {name} | {r.version} | {len(requests) / r.theirs:,.0f} | {len(requests) / r.ours:,.0f} "
              f"| {r.theirs / r.ours:.1f}x |", flush=True)
    for _ in range(3 * turns):
        begun = time.perf_counter()
        steps = run(requests, AMPLE).steps
        best.append(time.perf_counter() - begun)
    ours = min(best)
    print(f"\nrun(): {len(requests) / ours:,.0f} requests/s (at least 35,000) in {steps:,} steps (vLLM takes 3,208)")
    return (len(requests) / ours < 35_000) + (steps != 3208)


def cpu_seconds(requests: list[Request], config: SchedulerConfig, turns: int) -> tuple[float, int]:
    """The least CPU time of some turns, and the steps."""
    times = []
    for _ in range(turns):
        begun = time.process_time()
        done = run(requests, config)
        times.append(time.process_time() - begun)
    return min(times), done.steps


def by_events(turns: int) -> int:
    """The cost of a request whatever their number, and whatever its tokens; how many targets were missed."""
    print("\n## Cost by events, not by tokens: azure_conv_2023, 256 running\n")
    print("| requests | outputs | output tokens | steps | CPU, us a request | CPU, ns an output token |\n"
          "|---|---|---|---|---|---|")
    cost = {}
    for n, longer in ((1000, 1), (10_000, 1), (100_000, 1), (1000, 10), (1000, 100)):
        requests, config = conversation(n, longer), replace(AMPLE, max_model_len=1_000_000, num_gpu_blocks=10_000_000)
        seconds, steps = cpu_seconds(requests, config, turns)
        tokens = sum(r.output_tokens for r in requests)
        cost[n, longer] = seconds / n * 1e6
        print(f"| {n:,} | x{longer} | {tokens:,} | {steps:,} | {cost[n, longer]:.1f} | {seconds / tokens * 1e9:.2f} |",
              flush=True)
    many, longest = cost[100_000, 1] / cost[1000, 1], cost[1000, 100] / cost[1000, 1]
    print(f"\n100 times the requests: {many:.2f}x the cost of each (at most 1.5x); "
          f"100 times the tokens: {longest:.1f}x (at most 10x)")
    ran = subprocess.run([sys.executable, "-c", PEAK, "100000"], cwd=ROOT, capture_output=True, text=True, check=True)
    seconds, steps, peak = json.loads(ran.stdout)
    print(f"100,000 requests in a process of their own: {seconds:.1f} s (under 20) for {steps:,} steps, "
          f"peak memory {peak:.0f} MB (under 1,000)")
    return (many > 1.5) + (longest > 10) + (seconds >= 20) + (peak >= 1000)


def main() -> int:
    """Print the tables; 1 if a figure misses its target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", default=os.environ.get("BENCH_VLLM"), help="a Python with vllm")
    parser.add_argument("--dynamo", default=os.environ.get("BENCH_DYNAMO"), help="a Python with ai-dynamo")
    parser.add_argument("--sr-sim", default=os.environ.get("BENCH_SR_SIM"), help="a Python with vllm-sr-sim")
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    print(f"Python {platform.python_version()}, numpy {np.__version__}, {os.cpu_count()} cores, "
          f"best of {args.turns} turns")
    missed = by_events(args.turns)
    missed += beside_peers({"ai-dynamo": args.dynamo, "vllm-sr-sim": args.sr_sim}, args.turns)
    missed += beside_vllm(args.vllm, args.turns)
    print("\nall targets met" if not missed else f"\n{missed} targets missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
