"""Questions to check yourself: one to answer in your own words, and beside it a part that is marked."""
from __future__ import annotations

import re
from dataclasses import dataclass, field
from string import ascii_lowercase
from typing import Any


@dataclass(frozen=True)
class Choice:
    """One of several replies, and why it is right or wrong."""

    text: str
    why: str
    right: bool = False


@dataclass(frozen=True, repr=False)
class Marked:
    """Whether a reply passed, and a sentence on why."""

    passed: bool
    message: str

    def __repr__(self) -> str:
        return f"{'Right' if self.passed else 'Not quite'}. {self.message}"


@dataclass(frozen=True)
class Question:
    """`recall` is to be answered in your own words, `answer` is a model answer; `ask` is the part that is marked.

    That part has either `options`, exactly one of them right, or a `value` in `unit` with an absolute `tolerance`,
    what it comes from (`because`), and `slips`: wrong values that are recognised, with what is wrong.
    `page` counts the page's "Check Yourself" questions from 1; 0 is a question of our own.
    """

    id: str
    notebook: str
    recall: str
    answer: str
    ask: str
    options: tuple[Choice, ...] = ()
    value: float | None = None
    unit: str = ""
    tolerance: float = 0.0
    because: str = ""
    slips: tuple[tuple[float, str], ...] = field(default=(), repr=False)
    page: int = 0

    @property
    def prompt(self) -> str:
        """Both parts, to be shown together."""
        return f"{self.recall} Say it to yourself, then answer: {self.ask}"

    @property
    def solution(self) -> str:
        """The right reply."""
        if self.options:
            return next(option.text for option in self.options if option.right)
        return f"{self.value:,.6g} {self.unit}".rstrip()

    @property
    def choices(self) -> tuple[str, ...]:
        """The texts to choose from; empty where a number is asked for."""
        return tuple(option.text for option in self.options)

    def mark(self, reply: Any) -> Marked:
        """Mark a choice (its text, its letter from "a" on, or its index from 0 on) or a number (or a text of one).

        Raises ValueError, with what to reply instead, for a reply that can't be read: that is no wrong answer.
        """
        return self._mark_choice(reply) if self.options else self._mark_number(reply)

    def _mark_choice(self, reply: Any) -> Marked:
        """The chosen option's verdict and reason."""
        letters = ascii_lowercase[:len(self.options)]
        texts = [text.lower() for text in self.choices]
        name = reply.strip().lower() if isinstance(reply, str) else reply
        if isinstance(name, str) and name in [*letters, *texts]:
            name = letters.index(name) if name in [*letters] else texts.index(name)
        if isinstance(name, bool) or not isinstance(name, int) or not 0 <= name < len(self.options):
            raise ValueError(f"Choose one of the replies, a to {letters[-1]}.")
        return Marked(self.options[name].right, _sentence(self.options[name].why))

    def _mark_number(self, reply: Any) -> Marked:
        """Right within the tolerance; else the slip that it looks like, or which way to go."""
        number = _number(reply)
        if number is None:
            raise ValueError(f"Reply with a number{f' ({self.unit})' if self.unit else ''}.")
        if "%" in str(reply) and self.unit != "%":
            raise ValueError(f"Reply with a plain number{f' ({self.unit})' if self.unit else ''}, not in per cent.")
        as_share = self.unit == "%" and "%" not in str(reply)  # 0.25 is accepted for 25 %
        if self._near(number, self.value) or as_share and self._near(100 * number, self.value):
            return Marked(True, _sentence(self.because))
        for slip, why in self.slips:
            if self._near(number, slip):
                return Marked(False, _sentence(why))
        return Marked(False, "It is less than that." if number > self.value else "It is more than that.")

    def _near(self, number: float, target: float) -> bool:
        return abs(number - target) <= self.tolerance + 1e-9


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _number(reply: Any) -> float | None:
    """The number in a reply such as 5668, "5,668", "74.6 %", "74,6 %" or "12 steps", or None."""
    if isinstance(reply, (bool, bytes)) or reply is None:
        return None
    if isinstance(reply, str):
        if re.search(r"^([^,.\d]*0,\d+|[^,.]*\d,(\d{1,2}|\d{4,}))(?!\d)[^,.]*$", reply):  # a comma for a point
            reply = reply.replace(",", ".")
        found = re.fullmatch(r"\s*([-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?)\s*(?:x|%|[a-z -]*)\s*", reply.lower())
        reply = found[1].replace(",", "") if found else ""
    try:
        number = float(reply)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < float("inf") else None


def for_notebook(notebook: str) -> list[Question]:
    """The questions of one notebook ("01", "02", ...), in order."""
    return [question for question in QUESTIONS if question.notebook == notebook]


def of_the_page() -> list[Question]:
    """The page's twelve "Check Yourself" questions, in its order, whichever notebook has them."""
    return sorted((question for question in QUESTIONS if question.page), key=lambda question: question.page)


def question(question_id: str) -> Question:
    """The question with this id. Raises ValueError if there is none."""
    for candidate in QUESTIONS:
        if candidate.id == question_id:
            return candidate
    raise ValueError(f"there is no question {question_id!r}")


QUESTIONS: tuple[Question, ...] = (

    # ---- 01: eight requests ----

    Question(
        "granularity", "01", page=1,
        recall="In one sentence: how do static and continuous batching differ?",
        answer="Static batching decides once for each group, which runs together and comes back together. Continuous "
               "batching decides before every token step who is in the batch: a request that is done leaves at once, "
               "and one that waits takes its slot.",
        ask="Eight slots hold A, which makes 12 tokens, to H, which makes 950, and a ninth request has been waiting "
            "since step 0. At which step does it begin under continuous batching?",
        value=12, unit="steps", because="A is done after 12 steps, and its slot is free at once.",
        slips=((950, "that is static batching, where the ninth waits for H."),
               (0, "at step 0 all eight slots are taken."),
               (13, "steps count from 0: A works in steps 0 to 11, so its slot is free at step 12."),
               (11, "in step 11 A is still making its last token."),
               (938, "that is how long A's slot is held for nothing under static batching."))),
    Question(
        "head_of_line", "01", page=2,
        recall="What is head-of-line blocking in a static batch, and what does it cost?",
        answer="A request that is done keeps its slot until the longest of its group is done. That costs compute: with "
               "the eight requests 5,668 of 7,600 slot-steps, 74.6 %. And it costs time: A has its last token at step "
               "12, and its slot and its answer are held for another 938 steps.",
        ask="Requests of 10, 20 and 90 tokens share one static batch of 3 slots. What percentage of slot-steps is "
            "wasted?",
        value=100 * 150 / 270, unit="%", tolerance=0.5,
        because="3 slots x 90 steps are 270 slot-steps, and 120 of them made a token.",
        slips=((100 * 120 / 270, "that is the useful part."),
               (150, "that is how many slot-steps are wasted: out of how many?"),
               (100 * 80 / 90, "that is the waste in one slot, the shortest request's: count all three."),
               (100 * 150 / 120, "that compares waste with useful work: compare it with all slot-steps."))),
    Question(
        "normalised", "01", page=3,
        recall="What is normalised latency, and what does it show that latency hides?",
        answer="The steps (or seconds) from arrival until the answer is returned, divided by its output tokens. In the "
               "static batch all eight have a latency of 950 steps, which looks fair; normalised, A pays 79.2 steps "
               "for each of its 12 tokens and H pays 1. Say beside the number when an answer is returned: here, when "
               "the batch ends. And waiting for a slot is in it, so read it in two parts, queueing and service.",
        ask="F makes 60 tokens, and its answer comes back when the batch ends, at step 950. What is its normalised "
            "latency?",
        value=950 / 60, unit="steps per output token", tolerance=0.2, because="950 steps for 60 tokens.",
        slips=((1, "that would be so if F came back with its own last token."),
               (60 / 950, "upside down: steps per token."),
               (890 / 60, "that counts the wait alone: latency includes the steps that made the tokens."),
               (950, "that is its latency: divide by its tokens."))),
    Question(
        "two_failures", "01",
        recall="A static batcher is changed to stream each answer as it is made. What does that mend, and what not?",
        answer="It mends what A sees: its 12 tokens arrive in its first 12 steps. The slot is held all the same, so "
               "just as much compute is wasted, and whoever waits still waits for the whole group: membership is "
               "closed.",
        ask="Which number stays the same when a static batch returns each answer as soon as it is done?",
        options=(
            Choice("The wasted slot-steps", "the slot of a finished request stays held until the group ends.",
                   right=True),
            Choice("A's latency", "its answer comes back at step 12 instead of 950."),
            Choice("The spread of normalised latency",
                   "within one group it vanishes: each request then pays 1 step per output token."),
            Choice("Nothing: that is continuous batching",
                   "continuous batching also gives the slot away, at once; here the next request still waits."))),

    # ---- 02: the simulator ----

    Question(
        "faster", "02", page=4,
        recall="Does continuous batching make a request faster?",
        answer="Not its work: a request of n tokens takes n steps in its slot under either. What goes is waiting, for "
               "a slot and for others to finish. A step itself may take a little longer, because the batch is fuller: "
               "so it is for a backlog on a real engine. At an equal arrival rate it can turn round, since static "
               "batching lets arrivals pile up into full batches. Both are there to be measured.",
        ask="Many requests wait. Which of these does continuous batching shorten?",
        options=(
            Choice("The steps that a request spends making its tokens",
                   "its n tokens take n steps in a slot, as before."),
            Choice("The time that one step takes", "a step does the same forward pass; a fuller batch makes it longer, "
                                                   "if anything."),
            Choice("The wait for a slot", "a slot is given away as soon as its request is done.", right=True),
            Choice("The output of a long request", "a scheduler doesn't change what is generated, nor how much."))),
    Question(
        "drain", "02",
        recall="Continuous batching reaches 83.7 % on the 500 requests. Where are the other slot-steps?",
        answer="In the drain. 2,206 steps on 32 slots are 70,592 slot-steps, and 59,092 made a token. While requests "
               "were waiting, every slot worked: 100 %. Once the last one is admitted, a slot that empties stays "
               "empty. So 83.7 % says how long the run was; it is no ceiling.",
        ask="How many slot-steps stood empty in that run?",
        value=11_500, unit="slot-steps", because="2,206 x 32 = 70,592, less the 59,092 that made a token.",
        slips=((59_092, "those made a token."), (70_592, "those are all: take the useful ones away."),
               (2_206, "those are steps, and each has 32 slots."),
               (227_052, "that is what static batching leaves idle."))),
    Question(
        "all_at_once", "02",
        recall="Why is normalised latency not flat under continuous batching in this simulation?",
        answer="Because all 500 requests arrive at step 0. Most of what they pay is queueing, and a short request pays "
               "it over few tokens. So p99 / p50 is 17.9 under continuous batching and 18.1 under static: the same "
               "spread, at a level 5.8 times lower. Let requests arrive over time, at half of what continuous batching "
               "can serve, and it is flat: p50 and p99 are 1.0.",
        ask="What makes normalised latency flat under continuous batching?",
        options=(
            Choice("More requests, so that the drain matters less", "the queue gets longer, and with it the spread."),
            Choice("Arrivals spread over time, below capacity", "nobody queues, so each pays for its own tokens only.",
                   right=True),
            Choice("Serving the longest requests first",
                   "the short ones would then wait longest, and pay it over few tokens."),
            Choice("Returning answers earlier", "continuous batching does so already: what is left is queueing."))),
    Question(
        "percentile", "02",
        recall="What exactly is the p99 in these notebooks, and what should stand beside any p99?",
        answer="sorted(values)[int(0.99 n)]: of 500 values the one with index 495, so 4 are larger. Other methods, "
               "such as numpy's default, interpolate and give another number: name the method. And give n: of 100 "
               "values or fewer, this p99 is simply the largest, which says little about a tail.",
        ask="60 values, no two alike. How many are larger than their p99?",
        value=0, unit="values", because="the index is int(0.99 x 60) = 59, the last one: this p99 is the largest "
                                        "value.",
        slips=((1, "the index is int(59.4) = 59, counted from 0: nothing comes after it."),
               (0.6, "a value is larger or it isn't: int() cuts 59.4 down to an index."),
               (59, "those are the smaller ones."))),

    # ---- 03: the sigma sweep ----

    Question(
        "where_from", "03", page=8,
        recall="Where does continuous batching's advantage come from, mathematically?",
        answer="It has two causes. For a backlog, variance in output length: a group of s requests wastes s x longest "
               "- sum, and static batching's utilisation is E[L] / E[longest of s]. With equal lengths that is 100 %. "
               "With arrivals there is a second cause, membership: whoever comes just after a group has begun waits "
               "for all of it, even at equal lengths. At half load and sigma 0, static p50 and p99 are 1.5 and 2.0 "
               "steps per output token; continuous has 1.0 and 1.0.",
        ask="Half of all requests make 10 tokens, half 90, drawn at random into static groups of 2. What is the "
            "utilisation, in the long run?",
        value=100 * 50 / 70, unit="%", tolerance=0.5,
        because="the mean length is 50; three groups in four hold a 90, so the mean longest is 70.",
        slips=((100 * 50 / 90, "that divides by 90, but one group in four has no long request."),
               (100 * 20 / 70, "that is the wasted part."),
               (100 * 7 / 9, "that averages the groups' utilisations: long groups last longer and count for more."),
               (70, "that is the mean longest, in steps."))),
    Question(
        "benchmark", "03", page=9,
        recall="A colleague finds no gain over a simple batched script. What do you ask?",
        answer="How many requests were in flight: with one, or no more than there are slots, nobody waits for a slot. "
               "How output lengths varied: a fixed max_tokens with stopping ignored makes them equal, which static "
               "batching serves without waste. And how requests arrived: a backlog hides what closed groups cost. If "
               "many were in flight, lengths varied and there was still no gain, look closer. Published benchmarks do "
               "vary lengths: those of the Orca and the vLLM papers do.",
        ask="On 32 slots, which backlog gains most from continuous batching, in steps?",
        options=(
            Choice("500 requests of exactly 256 tokens", "equal lengths waste nothing in full groups: the gain is 1."),
            Choice("500 requests, lognormal lengths, sigma 1.1",
                   "one long request in a group holds 31 slots: the gain is 4.1.", right=True),
            Choice("32 requests, lognormal lengths, sigma 1.1",
                   "all fit at once, so no slot is ever given to anyone: both take as long as the longest."),
            Choice("500 requests, lognormal lengths, sigma 0.1",
                   "lengths vary too little: the gain is 1.2."))),
    Question(
        "when_static", "03", page=12,
        recall="When would you choose static batching?",
        answer="For an offline job of equal output lengths, where nobody waits for an answer and the machine is yours: "
               "the gain is then about 1, and the simpler system has less to go wrong. That is narrow, and it is the "
               "shape of many a benchmark.",
        ask="64 requests of exactly 256 tokens wait for 16 slots. What are static steps / continuous steps?",
        value=1, tolerance=0.001, because="both take 4 x 256 steps, and no slot ever idles.",
        slips=((4, "that is the number of groups, which both need."), (0, "a gain of 1 means no difference."),
               (16, "that is what 16 slots gain over one, under either scheduler."))),
    Question(
        "load", "03",
        recall="What does a load of 0.5 mean, and why may a scheduler have no p99 at it?",
        answer="Requests bring half of the tokens that continuous batching can make: 0.5 x slots / mean length "
               "requests per step. For the 500 lengths and 32 slots that is 0.135. Static batching can sustain only "
               "its utilisation on full groups, about 0.20 here: above it the queue grows as long as the run lasts, "
               "and a percentile would measure the run.",
        ask="32 slots, a mean of 100 tokens. How many requests per step are a load of 0.5?",
        value=0.16, unit="requests per step", tolerance=0.0005,
        because="32 slots make 32 tokens a step: 0.32 requests; half of it.",
        slips=((0.32, "that is load 1."), (6.25, "upside down: those are the steps between two arrivals."),
               (16, "those are tokens per step."), (0.005, "that is one slot's share: there are 32."))),
    Question(
        "which_workload", "03",
        recall="Do your output lengths vary, or are they nearly equal, and how do you find out before deploying?",
        answer="Look at the output lengths in your log. If p99 is near p50 and CV is near 0, continuous batching gains "
               "little on a backlog. If p99 is many times p50, it matters a lot. Then run both schedulers over "
               "the lengths themselves: two logs of equal mean and CV may gain differently, and a lognormal fitted to "
               "a log may miss its gain by far.",
        ask="Which of these says least about the gain on a backlog?",
        options=(
            Choice("p99 / p50 of output lengths", "it is a measure of spread: the wider, the more a group waits."),
            Choice("The coefficient of variation of output lengths", "it is a measure of spread, whatever the mean."),
            Choice("The mean output length", "twice as long, all of it, takes twice the steps under both: the gain "
                                             "stays.",
                   right=True),
            Choice("E[longest of a group] / E[length]", "that is the law itself: the gain without drain."))),

    # ---- 04: the step loop ----

    Question(
        "one_step", "04", page=5,
        recall="Walk through one scheduler step of vLLM V1.",
        answer="Schedule: the running requests first, in order, each with its tokens while the token budget lasts; "
               "where KV blocks are short, one is preempted, and its cache is computed again when it resumes. Only if "
               "nobody was preempted are waiting requests admitted, from the head of the queue, while budget, "
               "max_num_seqs and blocks allow. Execute: one forward pass; each decode gives a token, an unfinished "
               "prefill chunk gives none. Then retire: at EOS, a stop token or max_tokens a request leaves, and its "
               "blocks are free before the next schedule. A stop string is found where text is decoded, and the "
               "request is then aborted.",
        ask="Whose tokens does one step schedule first?",
        options=(
            Choice("Those of waiting requests", "they come last, and not at all in a step that preempted somebody."),
            Choice("Those of running requests", "running comes first; what is left of the budget goes to waiting ones.",
                   right=True),
            Choice("Those of the shortest request", "nobody knows how long an answer will be."),
            Choice("Those of requests that were preempted",
                   "a preempted request waits: under fcfs at the head of the queue."))),
    Question(
        "paging", "04", page=6,
        recall="What does PagedAttention do for continuous batching?",
        answer="It makes changing the batch cheap, and the batch large. Where each sequence owns one contiguous "
               "region, memory is reserved for the longest answer, or moved about as sequences come and go. With block "
               "tables, joining or leaving only changes which tables are handed to the kernel. It isn't strictly "
               "required: Orca scheduled by iteration before it, on memory reserved contiguously.",
        ask="What happens to the other sequences' KV cache when one leaves the batch, with paging?",
        options=(
            Choice("It is compacted", "that is what a contiguous cache would need: here nothing moves."),
            Choice("It is computed again", "only a preempted sequence's own cache is computed again, when it resumes."),
            Choice("Nothing", "the leaver's blocks go back to the pool; every other block table stays as it is.",
                   right=True),
            Choice("It is swapped to CPU memory", "no other sequence is touched; V1 has no swapping at preemption."))),
    Question(
        "ragged", "04", page=7,
        recall="How can one forward pass serve sequences at different positions?",
        answer="Outside attention every token is worked on alike, whatever its position, with the same weights: they "
               "are read once for the whole batch, which is where the efficiency comes from. In attention each "
               "sequence looks at its own cache, as long as that is, through its own block table.",
        ask="What do all sequences of one step share?",
        options=(
            Choice("The weights", "they are read once for all; attention is for each sequence on its own.", right=True),
            Choice("The block table", "each has its own, which points to its own blocks."),
            Choice("The position", "one may be at token 12 and another at 803."),
            Choice("The attention scores", "each attends over its own cache."))),

    Question(
        "page_order", "04",
        recall="Many texts list a step as schedule, execute, retire, admit, preempt. In which order does vLLM V1 do "
               "these, with synchronous scheduling, and what follows from it?",
        answer="Schedule holds three of them: it goes through the running requests, preempting where blocks are short, "
               "and then admits. After it comes the forward pass, and after that retiring. So a step's batch is fixed "
               "before its forward pass, and the slot and the blocks of a request that finishes are given away by the "
               "next schedule.",
        ask="Steps count from 0. All slots are taken, one request waits, and a running one makes its last token in "
            "step 7. In which step does the waiting one run first?",
        value=8, because="step 7's batch was fixed before its forward pass; the next schedule finds the slot free.",
        slips=((7, "in step 7 the slot is still held: whoever finishes leaves after the forward pass."),
               (9, "no step is lost: the slot and the blocks are free before the very next schedule."))),
    Question(
        "preempted", "04",
        recall="KV blocks run out. Who is preempted, what does it lose, and what does it keep?",
        answer="Under fcfs the last of the running requests; under priority the least urgent, and of equals the one "
               "that arrived last. It loses all its blocks, and so the keys and values of every token that it had "
               "computed. It keeps its output: what was streamed is not made again. Under fcfs it waits at the head "
               "of the queue, under priority where its urgency puts it. When it resumes, prompt and output are "
               "computed again as prefill. Nothing is swapped to CPU memory.",
        ask="A request with a prompt of 300 tokens has made 41 when it is preempted. How many tokens does it compute "
            "before it makes the next one?",
        value=341, unit="tokens", because="its prompt and its 41 output tokens are one prefill now.",
        slips=((300, "its output is kept as tokens, but their keys and values are gone as well."),
               (41, "the keys and values of its prompt are gone as well."),
               (340, "that is what was thrown away: its newest token had not been computed yet, and must be, too."),
               (1, "that would do if its blocks had been kept: preemption frees all of them."))),
    Question(
        "chunks", "04",
        recall="180 sequences decode, and two prompts of 2,000 tokens arrive. What do the next steps look like, at a "
               "max_num_batched_tokens of 2,048 and of 8,192?",
        answer="Those who decode come first, with a token each, and leave 1,868 for prefill: a chunk of the first "
               "prompt. The next step takes its last 132 tokens, so that it has its first output token, and 1,736 of "
               "the second prompt. In the third step 181 decode, and the last 264 prompt tokens are computed. With "
               "8,192 all is done in one step, a long one, which everybody who decodes waits for.",
        ask="With 1,024 instead, how many steps does it take, counted with the first that computes a prompt, until the "
            "second request has its first token?",
        value=5, because="a step has room for 844 prompt tokens, and for one fewer once the first request decodes.",
        slips=((3, "that is so at 2,048."),
               (4, "that spends the whole budget on prompts: those who decode take theirs first."),
               (6, "what the first prompt leaves over in its last step goes to the second at once."))),
    Question(
        "not_memory", "04",
        recall="running stays below max_num_seqs while requests wait. Which reasons may that have, and what tells them "
               "apart?",
        answer="Memory is one: the head's whole prompt needs more blocks than are free, and nobody behind it is tried; "
               "or a step had to preempt, and then admits nobody. Another is the token budget, used up by those who "
               "decode and by chunks of long prompts. And vLLM may defer a request, for a LoRA adapter or a KV "
               "transfer. vllm:kv_cache_usage_perc, vllm:num_preemptions_total and "
               "vllm:num_requests_waiting_by_reason tell them apart.",
        ask="max_num_seqs is 256 and the token budget 2,048. 180 sequences decode, two prompts of 2,000 tokens arrive, "
            "and in the next step 181 run and one waits, with 1,000 KV blocks of 16 tokens free. What holds it back?",
        options=(
            Choice("The sequence cap", "181 of 256 slots are taken."),
            Choice("Too few free KV blocks", "its whole prompt needs 125 blocks, and 1,000 are free."),
            Choice("Its place behind a prompt that doesn't fit", "it is the head of the queue itself."),
            Choice("The token budget", "180 decodes and a chunk of 1,868 use up all 2,048.", right=True))),
    Question(
        "gate", "04",
        recall="A step computes only a chunk of a long prompt. How many blocks must be free to admit it, and who else "
               "is held up by that?",
        answer="By default as many as all its tokens so far need, not only the chunk (scheduler_reserve_full_isl). "
               "Else long prompts would be begun that can't all be finished, and would preempt each other. Only the "
               "head of the queue is tried, so everybody behind it waits as well, even if they would fit. Its "
               "max_tokens don't count: output may still run into preemption.",
        ask="The head's prompt has 1,000 tokens, 100 are left of the token budget, and block_size is 16. How many KV "
            "blocks must be free to admit it?",
        value=63, unit="blocks", because="1,000 / 16 is 62.5, and the part of a block is a block.",
        slips=((7, "that is for this step's chunk alone: the whole prompt must fit."),
               (62, "the last 8 tokens need a block as well."), (62.5, "blocks are given whole."),
               (1000, "those are tokens: 16 of them share a block."))),

    # ---- 05: the live server ----
    Question(
        "exact_start", "05",
        recall="When does a real engine take exactly as many steps as the slot simulation says, and when not?",
        answer="When all requests are queued before the first step: pause the server, send them in order, let it go. "
               "Then lengths and slots decide everything. Sent to a running engine, the first request gets steps of "
               "its own before the others arrive, and under static batching it forms a group alone.",
        ask="Four requests of 40 tokens meet a static engine with 4 slots that is running. The first arrives a moment "
            "before the others. How many steps does it take for all?",
        value=80, unit="steps", because="the first forms a group alone, and the other three the next one.",
        slips=((40, "that is the exact start, with all four in one group."),
               (160, "the other three are there when the first has ended: they share a group."),
               (41, "under static batching nobody joins a group that runs."))),
    Question(
        "chunk_itl", "05",
        recall="Why is the gap between two chunks not inter-token latency, and how do you get that?",
        answer="A busy server puts several tokens into one chunk. So count the tokens of each chunk, by their ids or "
               "by a usage that comes with it, and share the wait before a chunk among its tokens. One request's mean "
               "is (last - first) / (tokens - 1), with the server's own count of tokens.",
        ask="Chunks come at 100, 400 and 600 ms and hold 1, 3 and 2 tokens. What is the mean gap between two tokens?",
        value=100, unit="ms", because="the last comes 500 ms after the first, with 5 tokens after it.",
        slips=((250, "that is the mean gap between chunks."),
               (500 / 6, "six tokens have five gaps between them."),
               (120, "that begins at 0: the wait for the first token is TTFT."))),
    Question(
        "honest_row", "05",
        recall="Is each user's ITL worse under continuous batching?",
        answer="With a backlog, yes: the batch is kept full, while a static group thins out as its members end. At an "
               "equal arrival rate it turns round in the middle: static batching lets arrivals pile up into full "
               "groups. Once static batching is overloaded, its queue is a backlog again.",
        ask="Both serve the same traffic, at a middling rate that static batching keeps up with. Who has the longer "
            "mean ITL?",
        options=(
            Choice("Static batching", "arrivals wait for its group to end and then run together, in large batches.",
                   right=True),
            Choice("Continuous batching", "that is so for a backlog, where its batch is always full."),
            Choice("Neither: ITL is the model's", "a step takes longer the more sequences are in it."))),
    Question(
        "colleague", "05",
        recall="A benchmark finds vLLM no faster than a script. Which things about it do you check before you believe "
               "it?",
        answer="How many requests ran at once, and how much their output lengths varied. Then whether failed requests "
               "were left out in silence, whether there was a warm-up, whether prompts were repeated with a prefix "
               "cache on, and whose count of tokens was used.",
        ask="It sent one request at a time, each for the same number of tokens, after a warm-up. What does it show?",
        options=(
            Choice("That continuous batching doesn't work", "there was nothing to batch: one request at a time."),
            Choice("That its model is too small", "the size of the model doesn't decide whether there is a batch."),
            Choice("What vLLM's server costs beside the model", "with nothing to schedule, only HTTP and the engine's "
                   "own overhead are left.", right=True),
            Choice("That the script is a good server", "it was never asked to serve two users at once."))),

    # ---- 06: dial it in ----

    Question(
        "itl_target", "06", page=10,
        recall="You must hold p95 ITL under 40 ms. How does continuous batching get in the way, and what do you do?",
        answer="Left alone it fills the batch to what memory allows, and a fuller batch makes each step longer. So set "
               "the limit from outside: measure p95 ITL against concurrency, find where it crosses 40 ms, set "
               "max_num_seqs below that, and add replicas for the rest of the load.",
        ask="p95 ITL crosses 40 ms just above 24 sequences. How many replicas hold 100 sequences at once within the "
            "target?",
        value=5, unit="replicas", because="100 / 24 is 4.17: the fifth takes the rest.",
        slips=((4, "4 x 24 = 96: four sequences are left over."),
               (100 / 24, "there is no part of a replica: round up."))),
    Question(
        "greedy_tenant", "06", page=11,
        recall="One tenant sends 50 requests of 4,000 tokens each. What happens to the others, and what helps?",
        answer="200,000 tokens are admitted first come first served, and hold slots and KV blocks for thousands of "
               "steps. The others wait at admission, which continuous batching does nothing about. Priority lets them "
               "pass the tenant's waiting requests, though a running one is never evicted to give them a slot. A limit "
               "at the gateway keeps the tenant's share small from the start. A pool of its own keeps it apart.",
        ask="Which of these helps the others least, when KV blocks are what is short?",
        options=(
            Choice("A higher max_num_seqs", "slots aren't short, blocks are: more sequences only preempt each other.",
                   right=True),
            Choice("Priority scheduling", "it helps those who wait: they are admitted before the tenant's waiting "
                                          "requests."),
            Choice("A limit on the tenant at the gateway", "it helps: fewer of its requests hold blocks at once."),
            Choice("A pool of replicas for long requests", "it helps: the others' blocks are then their own."))),
)
