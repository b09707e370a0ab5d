"""What a notebook without the course's modules does for the explorers' pictures: the baseline of bench_sliders.py.

Each is one function under `interact`, written as tutorials write it: simulate with the page's loops, make a new pyplot
figure, draw one thing after another, print the numbers. The pictures show what the explorers' do.
"""

COMMON = '''
import random, statistics
import matplotlib.pyplot as plt
from ipywidgets import interact

COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999"]

def draw_lengths(sigma, n=500):
    random.seed(0)
    return [max(1, int(random.lognormvariate(4.2, sigma))) for _ in range(n)]

def static(lengths, slots):  # (request, slot, start, done, finish) of each request
    rows, step = [], 0
    for first in range(0, len(lengths), slots):
        group = lengths[first:first + slots]
        for slot, length in enumerate(group):
            rows.append((first + slot, slot, step, step + length, step + max(group)))
        step += max(group)
    return rows, step

def continuous(lengths, slots):
    rows, free = [], [0] * slots
    for request, length in enumerate(lengths):
        slot = free.index(min(free))
        rows.append((request, slot, free[slot], free[slot] + length, free[slot] + length))
        free[slot] += length
    return rows, max(free)

def report(lengths, slots):
    for name, schedule in (("static", static), ("continuous", continuous)):
        rows, steps = schedule(lengths, slots)
        norm = sorted(finish / lengths[i] for i, _, _, _, finish in rows)
        print(f"{name:12}{steps:8,} steps  utilisation {sum(lengths) / steps / slots:6.1%}  normalised latency "
              f"p50 {norm[len(norm) // 2]:8.1f}  p99 {norm[int(0.99 * len(norm))]:8.1f}")
'''

EIGHT_REQUESTS = '''
LENGTHS = [12, 15, 20, 40, 60, 85, 750, 950]

@interact(slots=(1, 32))
def plain(slots=8):
    fig, axes = plt.subplots(2, 1, figsize=(9, 5.8), sharex=True)
    for ax, name, schedule in zip(axes, ("static", "continuous"), (static, continuous)):
        rows, steps = schedule(LENGTHS, slots)
        for request, slot, start, done, finish in rows:
            ax.barh(slot, done - start, left=start, color=COLOURS[request], edgecolor="white")
            if finish > done:
                ax.barh(slot, finish - done, left=done, color="#eeeeee", hatch="///", edgecolor="#999999")
            ax.text(done + 4, slot, f"{'ABCDEFGH'[request]} {LENGTHS[request]}", va="center", fontsize=10)
        wasted = 1 - sum(LENGTHS) / steps / slots
        ax.set_title(f"{name}: {wasted:.1%} of slot-steps wasted, {steps:,} steps", loc="left", fontsize=12)
        ax.axvline(steps, color="black")
        ax.set_ylabel("slot", fontsize=11)
        ax.invert_yaxis()
    axes[1].set_xlabel("steps", fontsize=11)
    plt.show()
    report(LENGTHS, slots)
'''

SIMULATOR = '''
@interact(slots=(1, 256))
def plain(slots=32):
    lengths = draw_lengths(1.1)
    fig, axes = plt.subplots(2, 1, figsize=(9, 5.8), sharex=True)
    for ax, name, schedule in zip(axes, ("static", "continuous"), (static, continuous)):
        rows, steps = schedule(lengths, slots)
        useful, held = [0] * (steps + 1), [0] * (steps + 1)
        for _, _, start, done, finish in rows:
            useful[start] += 1; useful[done] -= 1
            held[start] += 1; held[finish] -= 1
        for counts in (useful, held):
            for step in range(steps):
                counts[step + 1] += counts[step]
        ax.fill_between(range(steps + 1), held, step="post", facecolor="#eeeeee", hatch="///", edgecolor="#999999")
        ax.fill_between(range(steps + 1), useful, step="post", color=COLOURS[name == "static"])
        used = sum(lengths) / steps / slots
        ax.set_title(f"{name}: {used:.1%} of slot-steps useful, {steps:,} steps", loc="left", fontsize=12)
        ax.axvline(steps, color="black")
        ax.set_ylabel("slots in use", fontsize=11)
    axes[1].set_xlabel("steps", fontsize=11)
    plt.show()
    report(lengths, slots)
'''

SIGMA_SWEEP = '''
@interact(sigma=(0.0, 2.0, 0.05))
def plain(sigma=1.1, slots=32):
    sigmas = [s / 10 for s in range(21)]
    fig, ax = plt.subplots(figsize=(9, 4))
    for name, schedule, colour in (("static", static, COLOURS[5]), ("continuous", continuous, COLOURS[0])):
        def utilisation(s):
            lengths = draw_lengths(s)
            return 100 * sum(lengths) / schedule(lengths, slots)[1] / slots
        values = [utilisation(s) for s in sigmas]
        ax.plot(sigmas, values, "o-", color=colour, label=name)
        ax.annotate(f"{name} {utilisation(sigma):.1f} %", (sigma, utilisation(sigma)), fontsize=11)
    law = []
    for s in sigmas:
        lengths = sorted(draw_lengths(s))
        n = len(lengths)  # P(longest of the group <= i-th smallest) = (i / n) ** slots
        longest = sum(x * (((i + 1) / n) ** slots - (i / n) ** slots) for i, x in enumerate(lengths))
        law.append(100 * statistics.mean(lengths) / longest)
    ax.plot(sigmas, law, "k--", label="E[L] / E[longest of the group]")
    ax.axvline(sigma, color="black")
    ax.set(ylim=(0, 101), xlabel="sigma: the spread of ln(output length)", ylabel="utilisation, %")
    ax.set_title("static batching falls as lengths spread", loc="left", fontsize=12)
    ax.legend()
    plt.show()
    report(draw_lengths(sigma), slots)
'''

CELLS = {"eight_requests": EIGHT_REQUESTS, "simulator": SIMULATOR, "sigma_sweep": SIGMA_SWEEP}
