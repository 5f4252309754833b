"""Who gets how much: E1, E3, E4, E5, E6, E7 of SCHEDULER.md §3.

A gap counts from when both are backlogged, step by step, in the papers' unit (input + 2·output tokens);
`worst` is over every window, which is what the published bounds speak of.

Refuses to know: files, tables.  Source: SCHEDULER.md §3; Sheng et al., OSDI 2024.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from executor.simulation.experiments import (
    Bar,
    Contender,
    Experiment,
    Figures,
    course,
    mean,
    of_tenants,
    play,
    slope,
    tail,
    tokens_per_s,
    ttfts_s,
)
from executor.simulation.machine import A10G
from executor.simulation.metrics import (
    Backlog,
    Service,
    difference,
    differences,
    served,
    worst_gap,
)
from executor.simulation.metrics_requests import asked, given, in_flight_alone
from executor.simulation.metrics_requests import tokens_per_s as seen_tokens_per_s
from executor.simulation.outcome import Run
from executor.simulation.work import NS, Request
from executor.simulation.workloads import even, merged, only, uniform

SETTLED_S = 40.0  # by then both are backlogged, whoever comes next
REQUEST_COST = 256 + 2 * 256
HEAVY = 5  # of the arena's tenants


def backlogged_gap(run: Run, from_s: float, to_s: float) -> tuple[float, float, float]:
    """Of t0 and t1, who are backlogged in all of it: worst over every window, at the end, and how much
    the fitted line rises."""
    log = [Service(e.at_s, e.tenant, e.amount) for e in run.in_tokens() if e.at_s >= from_s]
    both = [Backlog("t0", from_s, to_s), Backlog("t1", from_s, to_s)]
    points = course(log, "t1", "t0", from_s, to_s, 5.0)
    return worst_gap(log, both), abs(points[-1][1]), slope(points) * (to_s - from_s)


def e1(duration_s: float = 360.0, rates: tuple[float, float] = (1.5, 3.0)) -> Experiment:
    requests = uniform(rates, duration_s)

    def run(contender: Contender) -> Figures:
        seen = play(contender, requests, until_s=duration_s)
        worst, _, rise = backlogged_gap(seen, min(SETTLED_S, duration_s / 3), duration_s)
        at_s = duration_s - 30.0
        amounts = served(seen.in_tokens(), (0.0, at_s))
        return {
            f"gap_at_{at_s:.0f}s": max(amounts.values()) - min(amounts.values()),
            "worst_gap": worst,
            "gap_rise": rise,
            "tokens_per_s": tokens_per_s(seen, duration_s),
            "recomputed_part": seen.recomputed_part,
        }

    return Experiment(
        "E1",
        "two tenants overload, 1:2",
        run,
        (
            Bar(
                "gap flat: fair's line rises by < 1 request",
                lambda f: abs(f["fair"]["gap_rise"]) < REQUEST_COST,
            ),
            Bar(
                "fair's worst gap < vtc*/5",
                lambda f: f["fair"]["worst_gap"] < f["vtc*"]["worst_gap"] / 5,
            ),
        ),
        published=True,
        reported="gap at 330 s: FCFS 125,398, VTC 6,919, VTC with an oracle 334 (A10G)",
    )


def e3(duration_s: float = 600.0) -> Experiment:
    requests = uniform((0.25, 0.5, 1.5), duration_s)

    def run(contender: Contender) -> Figures:
        seen = play(contender, requests)
        solo = play(contender, only(requests, {"t0"}))
        light = ttfts_s(of_tenants(seen, {"t0"}))
        alone = ttfts_s(solo.outcomes)
        return {
            "light_ttft_mean_s": mean(light),
            "light_ttft_p99_s": tail(light),
            "solo_ttft_mean_s": mean(alone),
            "of_solo": mean(light) / mean(alone),
            "step_max_s": seen.step_ns_max / NS,
            "tokens_per_s": tokens_per_s(seen),
            "recomputed_part": seen.recomputed_part,
        }

    return Experiment(
        "E3",
        "15, 30 and 90 requests a minute",
        run,
        (
            Bar(
                "fair's light tenant ≤ 1.5 x solo + a step",
                lambda f: (
                    f["fair"]["light_ttft_mean_s"]
                    <= 1.5 * f["fair"]["solo_ttft_mean_s"] + f["fair"]["step_max_s"]
                ),
            ),
            Bar(
                "fair's throughput ≥ 97 % of fcfs*",
                lambda f: f["fair"]["tokens_per_s"] >= 0.97 * f["fcfs*"]["tokens_per_s"],
            ),
        ),
        published=True,
        reported="light TTFT mean: FCFS 97 s, VTC 4.8 s; 856 and 883 tok/s (A10G)",
    )


def e4(minutes: int = 5) -> Experiment:
    """t0 is silent for a minute while t1 overloads alone, then both do."""
    until_s = 60.0 * (minutes + 1)
    requests = merged([even("t0", 3.0, until_s, from_s=60.0), even("t1", 3.0, until_s)])

    def run(contender: Contender) -> Figures:
        seen = play(contender, requests, until_s=until_s)
        log = seen.in_tokens()
        figures = {}
        for minute in range(1, minutes + 1):
            amounts = served(log, (60.0 * minute, 60.0 * (minute + 1)))
            figures[f"share_minute_{minute}"] = amounts["t0"] / sum(amounts.values())
        return figures

    return Experiment(
        "E4",
        "silent for a minute, then back: its share since",
        run,
        (
            Bar(
                "fair: 50 ± 3 % from the second minute on",
                lambda f: all(
                    abs(share - 0.5) <= 0.03
                    for name, share in f["fair"].items()
                    if name != "share_minute_1"
                ),
            ),
        ),
        reported="without lift 56.6 % in minutes 2 to 5; VTC 45 %, then 50.0 %",
    )


def e5(requests: Sequence[Request]) -> Experiment:
    """The arena's 27 tenants.  `alone`: requests whose tenant had nothing else in flight."""
    demand: Counter[str] = Counter()
    for each in requests:
        demand[each.tenant] += each.prompt_tokens + 2 * each.output_tokens
    light = {tenant for tenant, _ in demand.most_common()[HEAVY:]}
    windows = [(28.5 * i, 28.5 * i + 60.0) for i in range(1, 20)]

    def run(contender: Contender) -> Figures:
        seen = play(contender, requests)
        records = seen.records
        row = difference(differences(asked(records), given(records), windows))
        alone = [r.ttft_s for r in in_flight_alone(records) if r.ttft_s is not None]
        return {
            "alone_ttft_p99_s": tail(alone),
            "alone_ttft_mean_s": mean(alone),
            "light_ttft_p99_s": tail(ttfts_s(of_tenants(seen, light))),
            "ttft_p50_s": tail(ttfts_s(seen.outcomes), 50),
            "diff_mean": row.mean,
            "diff_max": row.most,
            "tokens_per_s": seen_tokens_per_s(records, seen.end_ns / 1e9),
            "recomputed_part": seen.recomputed_part,
        }

    return Experiment(
        "E5",
        "27 tenants of an arena, 10 minutes",
        run,
        (
            Bar(
                "fair's first-in-flight p99 ≤ vtc*/10",
                lambda f: f["fair"]["alone_ttft_p99_s"] <= f["vtc*"]["alone_ttft_p99_s"] / 10,
            ),
            Bar(
                "fair's throughput ≥ 95 % of vtc*",
                lambda f: f["fair"]["tokens_per_s"] >= 0.95 * f["vtc*"]["tokens_per_s"],
            ),
            Bar(
                "fair's mean difference ≤ vtc*",
                lambda f: f["fair"]["diff_mean"] <= f["vtc*"]["diff_mean"],
            ),
        ),
        published=True,
        reported="difference / tok/s: FCFS 434/777, VTC 252/779; alone p99 127 and 10.6 s (A10G)",
    )


def e6(duration_s: float = 360.0) -> Experiment:
    requests = uniform((0.8, 0.8, 1.2, 1.6), duration_s, weights=(1, 2, 3, 4))

    def run(contender: Contender) -> Figures:
        seen = play(contender, requests, until_s=duration_s)
        window = (min(60.0, duration_s / 3), duration_s)
        parts = served(seen.in_tokens(), window)
        whole = sum(parts.values())
        figures = {f"t{i}_of_10": 10 * parts[f"t{i}"] / whole for i in range(4)}
        figures["off_by_part"] = max(abs(figures[f"t{i}_of_10"] / (i + 1) - 1) for i in range(4))
        return figures | {"tokens_per_s": tokens_per_s(seen, duration_s)}

    return Experiment(
        "E6",
        "weights 1:2:3:4, all overload",
        run,
        (Bar("fair within 2 %", lambda f: f["fair"]["off_by_part"] <= 0.02),),
        published=True,
        reported="1.00:2.00:3.00:4.00 (A10G)",
    )


def e7(
    duration_s: float = 120.0,
    cases: tuple[tuple[int, int], ...] = ((10, 256), (35, 256), (65, 256), (35, 512), (35, 768)),
) -> Experiment:
    """`cases`: thousands of tokens of memory, and length of prompt and answer.  A scheduler that never
    puts anybody out can be forced to a gap as large as the memory (theorem 4.8 of VTC)."""

    def run(contender: Contender) -> Figures:
        figures = {}
        for thousands, length in cases:
            machine = replace(A10G, kv_blocks=1000 * thousands // A10G.block_tokens)
            rates = (1500 / length, 3000 / length)
            requests = uniform(rates, duration_s, prompt=length, output=length)
            seen = play(contender, requests, machine=machine, until_s=duration_s)
            worst, _, _ = backlogged_gap(seen, duration_s / 2, duration_s)
            figures[f"{thousands}k_{length}_requests"] = worst / (3 * length)
        return figures

    return Experiment(
        "E7",
        "larger memory, longer requests: worst gap, in requests",
        run,
        (
            Bar(
                "fair's gap ≤ 2 requests, whatever the memory",
                lambda f: max(f["fair"].values()) <= 2.0,
            ),
        ),
        published=True,
        reported="VTC's grows with the memory",
    )
