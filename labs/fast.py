"""The step loop by events: the same steps as `labs.scheduler`, at a cost that follows events, not tokens.

A decoding sequence takes one token in every step: the budget is never below `max_num_seqs`, so those ahead of it
leave it one. So nobody needs to look at it again. What it will do is known when its decoding starts:

- its last step (`ends`, a heap of last steps), since its output tokens and its stop token are drawn beforehand;
- the steps in which it opens a new block, every `block_size`-th one: `due[r]` counts those who do so in the steps
  with step % block_size == r, and that one number is all the blocks that the decoding sequences need in a step.

Looked at one by one are arrivals, aborts, admissions, prompt chunks and ends; the steps between are written at once.
Where the counts don't prove that all get their share (too few free blocks, or prompts that eat the budget of those
behind them), `_walk` follows the rules through the whole running list, for that step alone. Who goes without its
token there is late: its last step and its block steps move by one.

tests/test_fast.py compares every record with the readable path's on random workloads.
"""
from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import accumulate, repeat
from operator import neg, sub

import numpy as np

from labs.scheduler import LIMITS, Scheduler, SchedulerConfig
from labs.workload import Request

NONE, CAP, BUDGET, BLOCKS, GATE = map(LIMITS.index, ("none", "sequence cap", "token budget", "KV blocks",
                                                     "full-prompt gate"))
NEVER = -1


@dataclass(frozen=True)
class Series:
    """One array for each quantity of a step's record, one entry a step; queues are given by their lengths."""

    time: np.ndarray
    seconds: np.ndarray
    prefill_tokens: np.ndarray
    decode_tokens: np.ndarray
    running: np.ndarray
    waiting: np.ndarray
    preempted: np.ndarray
    lost: np.ndarray
    free_blocks: np.ndarray
    kv_usage: np.ndarray
    limit: np.ndarray = field(repr=False)

    @property
    def binding_limit(self) -> np.ndarray:
        """The binding limits in words; `limit` has them as places in `LIMITS`."""
        return np.array(LIMITS)[self.limit]


@dataclass(frozen=True)
class Trace:
    """A run in numbers. Requests, in order of arrival, go by their place; a step is `NEVER` if it never came.

    `aborted` gives (step, time), `chunks` (step, request, prompt tokens), `victims` and `late` (step, request):
    enough for `replay` to tell who was where in every step.
    """

    requests: Sequence[Request]
    policy: str
    series: Series
    queued: list[int]
    scheduled: list[int]
    first_token: list[int]
    ended: list[int]
    output: list[int]
    preemptions: list[int]
    stopped: set[int]
    refused: dict[int, str]
    aborted: dict[int, tuple[int, float]]
    chunks: list[tuple[int, int, int]]
    victims: list[tuple[int, int]]
    late: list[tuple[int, int]]


def trace(requests: Sequence[Request], config: SchedulerConfig, step_time: Callable[[int, int], float] | None = None,
          stops: Mapping[str, int] | None = None, aborts: Iterable[tuple[float, str]] = (),
          max_steps: int = 1_000_000) -> Trace:
    """Run `requests` until all are done; they and the `aborts` (time, id) come sorted by time.

    Raises RuntimeError after `max_steps`.
    """
    loop = _Loop(requests, config, step_time, stops or {}, aborts)
    while loop.happen():
        if loop.step == max_steps:
            raise RuntimeError(f"not done after {max_steps:,} steps: give it more KV blocks, or raise max_steps")
        loop.advance(max_steps - loop.step)
    return loop.trace()


class _Urgent:
    """The queue of the priority policy: a heap that answers like a deque, the most urgent request at its front."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._ranked = sorted(range(len(requests)), key=lambda i: _urgency(requests[i]))
        self._rank = {i: rank for rank, i in enumerate(self._ranked)}
        self._heap: list[int] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __getitem__(self, front: int) -> int:
        return self._ranked[self._heap[front]]

    def append(self, i: int) -> None:
        heappush(self._heap, self._rank[i])

    appendleft = append

    def popleft(self) -> int:
        return self._ranked[heappop(self._heap)]

    def remove(self, i: int) -> None:
        self._heap.remove(self._rank[i])
        heapify(self._heap)


class _Loop:
    """The state between two steps. Sequences go by the place of their request; `step` is the next one to run."""

    def __init__(self, requests: Sequence[Request], config: SchedulerConfig,
                 step_time: Callable[[int, int], float] | None, stops: Mapping[str, int],
                 aborts: Iterable[tuple[float, str]]) -> None:
        self.requests, self.config, self.step_time = requests, config, step_time
        self.size, self.blocks = config.block_size, config.num_gpu_blocks - 1
        self.reserve = int(config.watermark * config.num_gpu_blocks)
        self._read_lengths(stops)
        self._read_times(list(aborts))
        n = len(requests)
        self.made, self.preemptions = [0] * n, [0] * n  # made: output tokens when its decoding began, or at its end
        self.queued, self.scheduled, self.first_token, self.ended = ([NEVER] * n for _ in range(4))
        self.joined, self.last, self.key = ([NEVER] * n for _ in range(3))  # of those who decode: see _decode_after
        self.aborted: dict[int, tuple[int, float]] = {}
        self.waiting = _Urgent(requests) if config.policy == "priority" else deque()
        self.running: dict[int, None] = {}  # in list order; a dict keeps it, and lets anyone out at once
        self.prefilling: dict[int, int] = {}  # those who run with a prompt to compute: what is computed so far
        self.complete: list[int] = []  # those whose prompt this step completes
        self.decoding, self.due, self.ends = 0, [0] * self.size, []
        self.step, self.time, self.free = 0, 0.0, self.blocks
        self.starts, self.frees, self.spans, self.span_seconds = array("d"), array("q"), [], []
        self.chunks, self.victims, self.late = [], [], []

    def _read_lengths(self, stops: Mapping[str, int]) -> None:
        """How many tokens each will make, and who is refused."""
        prompt = np.array([r.prompt_tokens for r in self.requests], dtype=np.int64)
        output = np.array([r.output_tokens for r in self.requests], dtype=np.int64)
        longest = np.minimum(prompt + output, self.config.max_model_len)
        never = (prompt >= self.config.max_model_len) | (-(-(longest - 1) // self.size) > self.blocks)
        self.refused = {i: _refusal(self.config, self.requests[i]) for i in np.flatnonzero(never).tolist()}
        self.prompt, self.total, self.stopped = prompt.tolist(), (longest - prompt).tolist(), set()
        for i, request in enumerate(self.requests) if stops else ():
            token = stops.get(request.request_id, 0)
            if 1 <= token <= self.total[i] and token == int(token):
                self.total[i] = int(token)
                self.stopped.add(i)

    def _read_times(self, aborts: list[tuple[float, str]]) -> None:
        """Who comes and who goes, the earliest first; those refused never come."""
        place = {r.request_id: i for i, r in enumerate(self.requests)} if aborts else {}
        self.coming = deque((r.arrival, i) for i, r in enumerate(self.requests) if i not in self.refused)
        self.going = deque((when, place[name]) for when, name in aborts if name in place)
        self.next_event = -math.inf

    # ---- between two steps ------------------------------------------------------------------------------------------

    def happen(self) -> bool:
        """Let in who has arrived, take out whose abort is due; with nobody here, wait for the next. False: all done."""
        while True:
            if self.time >= self.next_event:
                self._arrive_and_abort()
            if self.running or self.waiting:
                return True
            if not self.coming:
                return False
            arrival = self.coming[0][0]
            self.time = arrival if self.step_time else float(math.ceil(arrival))

    def _arrive_and_abort(self) -> None:
        """All that is due by now."""
        coming, going = self.coming, self.going
        while coming and coming[0][0] <= self.time:
            i = coming.popleft()[1]
            self.queued[i] = self.step
            self.waiting.append(i)
        while going and going[0][0] <= self.time:
            i = going.popleft()[1]
            if self.queued[i] != NEVER and self.ended[i] == NEVER and i not in self.aborted:
                self._abort(i)
        self.next_event = min(coming[0][0] if coming else math.inf, going[0][0] if going else math.inf)

    def _abort(self, i: int) -> None:
        """Take `i` out, running or waiting."""
        self.aborted[i] = self.step, self.time
        if i in self.running:
            self.free += self._blocks(self._leave(i))
        else:
            self.waiting.remove(i)

    # ---- one step, or several alike ---------------------------------------------------------------------------------

    def advance(self, most: int) -> None:
        """Run one step or, where nobody is admitted or computes a prompt, all up to the next event, `most` at most."""
        first_chunk, self.lost, self.floor = len(self.chunks), 0, 0
        threshold = self._threshold()
        budget, victims, late = self._share(threshold) or self._walk(threshold)
        limit = BLOCKS if victims else self._admit(budget, threshold, late)
        decode, prefill = self.decoding - late, sum([chunk[2] for chunk in self.chunks[first_chunk:]])
        seconds = self.step_time(decode, prefill) if self.step_time else 1.0
        length = 1
        if prefill or victims or late:
            self.starts.append(self.time)
            self.frees.append(self.free)
            self.time += seconds
        else:
            length = self._repeat(most, seconds)
        self.spans.append((length, prefill, decode, len(self.running), len(self.waiting), victims, self.lost, limit))
        self.span_seconds.append(seconds)
        if prefill:
            self._complete_prompts()
        self.step += length
        self._end()

    def _threshold(self) -> int:
        """Rule 2: the most prompt tokens one request may take in this step; 0 is no limit."""
        threshold, present = self.config.long_prefill_token_threshold, len(self.running) + len(self.waiting)
        if threshold == 0 or present <= 1:
            return 0
        if self.config.long_prefill_token_threshold_adaptive:
            return max(threshold, self.config.max_num_batched_tokens // present)
        return threshold

    def _share(self, threshold: int) -> tuple[int, int, int] | None:
        """Rules 1 and 3 by the counts: all that run get what they want. None if that isn't certain.

        Returns what is left of the budget, 0 victims and 0 late ones.
        """
        budget, need = self.config.max_num_batched_tokens - self.decoding, self.due[self.step % self.size]
        wanted = {}
        if self.prefilling:
            for i, computed in self.prefilling.items():
                n = self.prompt[i] + self.made[i] - computed
                wanted[i] = min(n, threshold) if threshold else n
            last = next(reversed(self.running))
            if last in wanted:  # it takes what the others leave
                wanted[last] = min(wanted[last], max(1, budget - sum(wanted.values()) + wanted[last]))
            need += sum(self._blocks(self.prefilling[i] + n) - self._blocks(self.prefilling[i])
                        for i, n in wanted.items())
            budget -= sum(wanted.values())
        if need > self.free or budget < 0:
            return None
        self.free -= need
        for i, n in wanted.items():
            self._chunk(i, n)
        return budget, 0, 0

    def _walk(self, threshold: int) -> tuple[int, int, int]:
        """Rules 1 to 5 over the whole running list. Returns what is left of the budget, the victims and the late."""
        order, plan, budget, at, victims = list(self.running), {}, self.config.max_num_batched_tokens, 0, 0
        while at < len(order) and budget > 0:
            i, n, need = order[at], *self._want(order[at], threshold, budget)
            while need > self.free and i in self.running:
                victim = order[-1] if self.config.policy == "fcfs" else max(order, key=self._least_urgent)
                if order.index(victim) < at:
                    at -= 1
                order.remove(victim)
                budget += plan.get(victim, 0)
                self._preempt(victim, plan.pop(victim, 0))
                victims += 1
            if i not in self.running:
                break
            plan[i] = n
            self.free -= need
            budget -= n
            at += 1
        for i in [i for i in plan if i in self.prefilling]:
            self._chunk(i, plan[i])
        late = [i for i in order if i not in plan and i not in self.prefilling] if len(plan) < len(order) else []
        for i in late:
            self._postpone(i)
        return budget, victims, len(late)

    def _want(self, i: int, threshold: int, budget: int) -> tuple[int, int]:
        """Tokens that `i` would take, and the blocks that it lacks for them."""
        if i not in self.prefilling:
            return 1, int(self.key[i] == self.step % self.size)
        computed = self.prefilling[i]
        n = min(self.prompt[i] + self.made[i] - computed, budget)
        n = min(n, threshold) if threshold else n
        return n, self._blocks(computed + n) - self._blocks(computed)

    def _admit(self, budget: int, threshold: int, late: int) -> int:
        """Rules 6, 7 and 8: admit from the head of the queue until something forbids it; return what did."""
        config, waiting, size = self.config, self.waiting, self.size
        cap = config.max_num_active_seqs or config.max_num_seqs
        while waiting:
            if budget == 0:
                return BUDGET
            if len(self.running) >= cap:
                return CAP
            i = waiting[0]
            n = tokens = self.prompt[i] + self.made[i]
            if threshold:
                n = min(n, threshold)
            if n > budget:
                if not config.enable_chunked_prefill:
                    return BUDGET
                n = budget
            reserve = self.reserve if self.running else 0
            need = -(-n // size)
            if need + reserve > self.free:
                return BLOCKS
            if config.scheduler_reserve_full_isl and -(-tokens // size) + reserve > self.free:
                self.floor = need + reserve  # below it, the blocks are what's missing
                return GATE
            waiting.popleft()
            self.running[i] = None
            self.prefilling[i] = 0
            self.free -= need
            budget -= n
            self._chunk(i, n)
        return BUDGET if budget == 0 and (self.prefilling or late) else NONE

    def _chunk(self, i: int, n: int) -> None:
        """Let `i` compute `n` tokens of its prompt, or of what preemption made it lose."""
        if self.scheduled[i] == NEVER:
            self.scheduled[i] = self.step
        self.chunks.append((self.step, i, n))
        self.prefilling[i] += n
        if self.prefilling[i] == self.prompt[i] + self.made[i]:
            del self.prefilling[i]
            self.complete.append(i)

    def _repeat(self, most: int, seconds: float) -> int:
        """Write this step and those after it that are like it; return how many.

        They go on until a request ends, comes or is aborted, until the blocks run short for those who run, or for the
        head of the queue so that another limit binds.
        """
        length = min(most, self.ends[0] // len(self.requests) - self.step + 1) if self.ends else most
        if self.next_event < math.inf and seconds > 0:
            length = min(length, int((self.next_event - self.time) / seconds) + 2)  # at least the steps until then
        turn = (self.step + 1) % self.size
        growth = (self.due[turn:] + self.due[:turn]) * (length // self.size + 1)
        frees, starts, first = self.frees, self.starts, self.step
        frees.extend(accumulate(growth[:length - 1], sub, initial=self.free))
        length = bisect_right(frees, -self.floor, first, key=neg) - first
        starts.extend(accumulate(repeat(seconds, length), initial=self.time))
        length = bisect_left(starts, self.next_event, first, first + length) - first
        self.time, self.free = starts[first + length], frees[first + length - 1]
        del frees[first + length:], starts[first + length:]
        return length

    # ---- what becomes of a sequence ---------------------------------------------------------------------------------

    def _complete_prompts(self) -> None:
        """Rule 9: who has computed all its tokens makes one. With one left that it made before, it decodes again."""
        for i in self.complete:
            if self.made[i] == 0:
                self.first_token[i] = self.step
            self._decode_after(self.step, i)
        self.complete.clear()
        for i in [i for i, computed in self.prefilling.items() if self.made[i] and self._left(i) == 1]:
            del self.prefilling[i]
            self._decode_after(self.step + 1, i)

    def _left(self, i: int) -> int:
        """Tokens of a prompt still to compute."""
        return self.prompt[i] + self.made[i] - self.prefilling[i]

    def _decode_after(self, joined: int, i: int) -> None:
        """`i` makes its next token in step `joined`, and one in each later step: say when it ends and needs blocks.

        Before step s > joined it has computed prompt + made + s - joined - 1 tokens, so it opens a block in the steps
        in which that is a multiple of the block size.
        """
        self.joined[i] = joined
        self.key[i] = key = (joined + 1 - self.prompt[i] - self.made[i]) % self.size
        self.due[key] += 1
        self.decoding += 1
        self.last[i] = last = joined + self.total[i] - self.made[i] - 1
        heappush(self.ends, last * len(self.requests) + i)

    def _postpone(self, i: int) -> None:
        """`i` decodes, but went without its token in this step."""
        self.late.append((self.step, i))
        self.due[self.key[i]] -= 1
        self.decoding -= 1
        self._decode_after(self.joined[i] + 1, i)

    def _preempt(self, i: int, n: int) -> None:
        """Rule 5: `i`, which was to compute `n` tokens in this step, loses its blocks and waits at the front."""
        computed = self._leave(i)
        self.free += self._blocks(computed + n)
        self.lost += computed
        self.preemptions[i] += 1
        self.victims.append((self.step, i))
        self.waiting.appendleft(i)

    def _leave(self, i: int) -> int:
        """Take `i` out of those who run, its output so far noted; return how many tokens it had computed."""
        del self.running[i]
        if i in self.prefilling:
            return self.prefilling.pop(i)
        decoded = self.step - self.joined[i]
        self.made[i] += decoded
        self.due[self.key[i]] -= 1
        self.decoding -= 1
        self.last[i] = NEVER
        return self.prompt[i] + self.made[i] - 1

    def _end(self) -> None:
        """Rule 10: whoever had its last step in the steps so far frees its blocks."""
        n = len(self.requests)
        while self.ends and self.ends[0] < self.step * n:
            last, i = divmod(heappop(self.ends), n)
            if self.last[i] != last:
                continue  # it was preempted, postponed or aborted meanwhile
            self._leave(i)
            self.free += self._blocks(self.prompt[i] + self.total[i] - 1)
            self.made[i], self.ended[i] = self.total[i], last

    def _blocks(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens."""
        return -(-tokens // self.size)

    def _least_urgent(self, i: int) -> tuple[int, float]:
        """Rule 4: under the priority policy, the victim has the greatest."""
        return self.requests[i].priority, self.requests[i].arrival

    # ---- the result -------------------------------------------------------------------------------------------------

    def trace(self) -> Trace:
        """All that happened."""
        columns = np.array(self.spans, dtype=np.int64).reshape(-1, 8).T
        length, prefill, decode, running, waiting, victims, lost, limit = columns
        free = np.array(self.frees)
        series = Series(np.array(self.starts), np.repeat(np.array(self.span_seconds, dtype=float), length),
                        *(np.repeat(column, length) for column in (prefill, decode, running, waiting, victims, lost)),
                        free, 1 - free / self.blocks, np.repeat(limit, length))
        return Trace(self.requests, self.config.policy, series, self.queued, self.scheduled, self.first_token,
                     self.ended, self.made, self.preemptions, self.stopped, self.refused, self.aborted, self.chunks,
                     self.victims, self.late)


def _refusal(config: SchedulerConfig, request: Request) -> str:
    """Why the scheduler refuses `request`."""
    try:
        Scheduler(config).add(request)
    except ValueError as error:
        return str(error)
    raise AssertionError(f"{request} can be served")


def _urgency(request: Request) -> tuple[int, float, str]:
    """Under the priority policy, the smallest goes first."""
    return request.priority, request.arrival, request.request_id


# ---- the records, from the trace ------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Membership:
    """Who did what in one step, by request id: what a step's record says beyond the series."""

    prefill: dict[str, int]
    decode: dict[str, int]
    running: tuple[str, ...]
    waiting: tuple[str, ...]
    preempted: tuple[str, ...]
    made: tuple[str, ...]
    finished: tuple[str, ...]


def replay(trace: Trace) -> Iterator[Membership]:
    """The steps of `trace`, one after the other. It applies what was written down, and knows no scheduling rule."""
    queues = _Queues(trace)
    arrived = _by_step((step, i) for i, step in enumerate(trace.queued))
    aborted = _by_step((step, i) for i, (step, _) in trace.aborted.items())
    chunks, victims, late = _by_step(trace.chunks), _by_step(trace.victims), _by_step(trace.late)
    for step in range(len(trace.series.time)):
        queues.change(*(happened.get(step, ()) for happened in (arrived, aborted, victims)))
        yield queues.run(step, dict(chunks.get(step, ())), victims.get(step, ()), late.get(step, ()))


def _by_step(entries: Iterable[tuple[int, ...]]) -> dict[int, list]:
    """Entries (step, what ...) gathered by step; the step left out."""
    gathered: dict[int, list] = {}
    for step, *what in entries:
        gathered.setdefault(step, []).append(tuple(what) if len(what) > 1 else what[0])
    return gathered


class _Queues:
    """Both queues as the trace tells them, with each sequence's tokens counted one by one."""

    def __init__(self, trace: Trace) -> None:
        self.requests, self.ended, self.by_urgency = trace.requests, trace.ended, trace.policy == "priority"
        self.running: list[int] = []
        self.waiting: list[int] = []
        self.computed, self.output = [0] * len(trace.requests), [0] * len(trace.requests)

    def change(self, arrived: Collection[int], aborted: Collection[int], victims: Collection[int]) -> None:
        """Who came, who was taken out, who lost its blocks and what it had computed."""
        for i in arrived:
            self._queue(i, len(self.waiting))
        for i in aborted:
            (self.running if i in self.running else self.waiting).remove(i)
        for i in victims:
            self.running.remove(i)
            self.computed[i] = 0
            self._queue(i, 0)

    def run(self, step: int, chunks: dict[int, int], victims: Collection[int], late: Collection[int]) -> Membership:
        """Admit who has a chunk and doesn't run yet, give all their tokens, and let go of those who end here."""
        admitted = {i for i in chunks if i not in self.running}
        if admitted:
            self.waiting = [i for i in self.waiting if i not in admitted]
            self.running += [i for i in chunks if i in admitted]
        decode = [i for i in self.running
                  if i not in chunks and i not in late and self.output[i] and self._left(i) == 1]
        plan = {**chunks, **dict.fromkeys(decode, 1)}
        for i, n in plan.items():
            self.computed[i] += n
        made = [i for i in self.running if i in plan and self._left(i) == 0]
        for i in made:
            self.output[i] += 1
        finished = [i for i in made if self.ended[i] == step]
        name = self._names
        seen = Membership(dict(zip(name(chunks), chunks.values(), strict=True)), dict.fromkeys(name(decode), 1),
                          name(self.running), name(self.waiting), name(victims), name(made), name(finished))
        self.running = [i for i in self.running if self.ended[i] != step]
        return seen

    def _left(self, i: int) -> int:
        """Tokens to compute before the next one can be made."""
        return self.requests[i].prompt_tokens + self.output[i] - self.computed[i]

    def _queue(self, i: int, place: int) -> None:
        """Put `i` at its place in the queue; under the priority policy its urgency says which."""
        if self.by_urgency:
            insort(self.waiting, i, key=lambda i: _urgency(self.requests[i]))
        else:
            self.waiting.insert(place, i)

    def _names(self, places: Iterable[int]) -> tuple[str, ...]:
        """The ids of requests given by their places."""
        return tuple([self.requests[i].request_id for i in places])
