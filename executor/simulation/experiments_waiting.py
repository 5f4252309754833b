"""Who feels what: E2, E8, E9, E12, E13, E14 of SCHEDULER.md §3.

In E11 a `Retry-After` is right if its request, by its key, would still be refused at 75 % of the time that it
was told, and if its client, who comes when it is told, has been taken by 125 % of it.

Refuses to know: files, tables.  Source: SCHEDULER.md §3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from random import Random
from typing import Final

from executor.contract import Workload
from executor.simulation.experiments import (
    Bar,
    Contender,
    Experiment,
    Figures,
    finished,
    mean,
    of_tenants,
    pauses_s,
    play,
    tail,
    tokens_per_s,
    ttfts_s,
)
from executor.simulation.machine import A10G
from executor.simulation.metrics import served
from executor.simulation.metrics_requests import Ending, Target, attainment, goodput, stall, waste
from executor.simulation.outcome import Outcome, Run
from executor.simulation.work import NS, Request
from executor.simulation.workloads import even, increase, merged, only, poisson, uniform

ITL_MS: Final = 150
RETURNS: Final = 20  # a client comes back so often at most
CHAT: Final = Target(ttft_s=0.25, tpot_s=0.1)  # DistServe's for a chat model of 13 billion


def e2(duration_s: float = 600.0) -> Experiment:
    requests = increase(0.5, 2.0, duration_s)

    def run(contender: Contender) -> Figures:
        seen = play(contender, requests)
        alone = ttfts_s(play(contender, only(requests, {"t0"})).outcomes)
        victim = ttfts_s(of_tenants(seen, {"t0"}))
        return {
            "victim_ttft_mean_s": mean(victim),
            "victim_ttft_p99_s": tail(victim),
            "solo_ttft_p99_s": tail(alone),
            "of_solo_p99": tail(victim) / tail(alone),
            "step_max_s": seen.step_ns_max / NS,
            "recomputed_part": seen.recomputed_part,
        }

    def within(figures: Figures, steps: int) -> bool:
        most_s = 1.2 * figures["solo_ttft_p99_s"] + steps * figures["step_max_s"]
        return figures["victim_ttft_p99_s"] <= most_s

    return Experiment(
        "E2",
        "the aggressor's rate rises from nothing past the capacity",
        run,
        (Bar("fair's victim p99 ≤ 1.2 x solo + 2 steps", lambda f: within(f["fair"], 2)),),
        published=True,
        reported="victim TTFT mean / p99: FCFS 7.2 / 48 s, VTC 0.35 / 0.71 s (A10G)",
    )


def e8(streams: int = 8, prompt: int = 4096) -> Experiment:
    """`streams` tenants read an answer each while another's long prompt is computed."""
    reading = [Request(i * NS // 10, f"reader{i}", 64, 600) for i in range(streams)]
    at_ns = 5 * NS
    long = Request(at_ns, "long", prompt, 16)
    workloads = (Workload(name="", itl_ms=ITL_MS),)

    def run(contender: Contender) -> Figures:
        seen = play(contender, [*reading, long], workloads=workloads)
        solo = play(contender, reading, workloads=workloads)
        [its] = of_tenants(seen, {"long"})
        assert its.ttft_ns is not None
        others = [each for each in seen.outcomes if each is not its]
        times = [[at / NS for at in each.times_ns] for each in others]
        stalled = stall(times, at_ns / NS, (at_ns + its.ttft_ns) / NS)
        assert stalled is not None
        alone = play(contender, [long], workloads=workloads, step_ms_max=10_000)
        alone_ns = alone.outcomes[0].ttft_ns
        assert alone_ns is not None
        return {
            "pause_p99_s": stalled.p99_s,
            "pause_max_s": stalled.max_s,
            "solo_pause_p99_s": tail(pauses_s(solo.outcomes)),
            "long_ttft_s": its.ttft_ns / NS,
            "long_of_alone": its.ttft_ns / alone_ns,
        }

    return Experiment(
        "E8",
        f"a prompt of {prompt} tokens beside {streams} streams, {ITL_MS} ms promised between tokens",
        run,
        (
            Bar(
                "others' pause p99 ≤ max(2 x solo, promise)",
                lambda f: (
                    f["fair"]["pause_p99_s"]
                    <= max(2 * f["fair"]["solo_pause_p99_s"], ITL_MS / 1000)
                ),
            ),
            Bar("the prompt takes ≤ 1.25 x alone", lambda f: f["fair"]["long_of_alone"] <= 1.25),
        ),
        reported="stalls of seconds; Sarathi: ≤ 25 % for the prompt at chunks of 512",
    )


def e9(
    duration_s: float = 120.0, rates: Sequence[float] = (2.0, 2.5, 3.0, 3.5, 4.0, 5.0)
) -> Experiment:
    """Eight tenants, the k-th sends 1/k of the first; the rate is offered in all."""
    weights = [1 / rank for rank in range(1, 9)]

    def offered(per_s: float) -> list[Request]:
        rng = Random(9)  # noqa: S311  # a simulation, not a secret
        share = per_s / sum(weights)
        return merged(
            poisson(f"t{i}", share * w, duration_s, rng, prompt=(32, 480), output=(16, 240))
            for i, w in enumerate(weights)
        )

    loads = {rate: offered(rate) for rate in rates}

    def run(contender: Contender) -> Figures:
        met = {
            rate: attainment(play(contender, load).records, CHAT) for rate, load in loads.items()
        }
        best = goodput(met)
        figures = {f"met_at_{rate:g}_per_s": part for rate, part in met.items()}
        return figures | {"goodput_per_s": best or 0.0}

    return Experiment(
        "E9",
        f"part of requests in time (TTFT {CHAT.ttft_s} s, TPOT {CHAT.tpot_s} s), by offered rate",
        run,
        (
            Bar(
                "fair's goodput ≥ fcfs",
                lambda f: f["fair"]["goodput_per_s"] >= f["fcfs"]["goodput_per_s"],
            ),
            Bar(
                "fair in time ≥ 1.5 x fcfs at the highest rate",
                lambda f: (
                    f["fair"][f"met_at_{rates[-1]:g}_per_s"]
                    >= 1.5 * f["fcfs"][f"met_at_{rates[-1]:g}_per_s"]
                ),
            ),
        ),
    )


def e11(duration_s: float = 240.0, ttft_ms: int = 2000, seed: int = 11) -> Experiment:
    """Six tenants, the k-th sends 1/k of the first, together twice what the machine can do.  And bursts of
    three with silence after: there a tenant may be taken sooner than its part of the machine says, since
    others end; to tell it so would be to tell it of them."""
    rng = Random(seed)  # noqa: S311  # a simulation, not a secret
    weights = [1 / rank for rank in range(1, 7)]
    lengths = (64, 448)
    steady = merged(
        poisson(f"t{i}", 3.8 * w / sum(weights), duration_s, rng, prompt=lengths, output=lengths)
        for i, w in enumerate(weights)
    )
    bursts = [
        Request(
            round((at_s + 0.02 * k) * NS), f"t{i}", rng.randint(*lengths), rng.randint(*lengths)
        )
        for at_s in range(0, int(duration_s), 60)
        for i in range(3)
        for k in range(rng.choice((8, 16, 24)))
    ]
    workloads = (Workload(name="", ttft_ms=ttft_ms),)

    def run(contender: Contender) -> Figures:
        figures: dict[str, float] = {}
        for name, requests in (("steady", steady), ("bursts", merged([bursts]))):
            once = play(contender, requests, workloads=workloads)
            taken = [each for each in once.outcomes if each.retry_ms is None]
            coming = [
                replace(each, returns=RETURNS, retry_key=b"%d" % number)
                for number, each in enumerate(requests)
            ]
            again = play(contender, coming, workloads=workloads, probed=(0.75,))
            told = waits(again, duration_s)
            early = [
                probe.taken
                for probe in again.probes
                if probe.request.returns == RETURNS and probe.at_ns < duration_s * NS
            ]
            figures |= {
                f"{name}_taken": float(len(taken)),
                f"{name}_in_time_part": in_time(once, ttft_ms),
                f"{name}_coming_in_time_part": in_time(again, ttft_ms),
                f"{name}_told": float(len(told)),
                f"{name}_at_75_refused_part": 1 - mean(early) if early else 1.0,
                f"{name}_by_125_taken_part": mean([part <= 1.25 for part in told]) if told else 1.0,
                f"{name}_recomputed_part": max(once.recomputed_part, again.recomputed_part),
            }
        return figures

    return Experiment(
        "E11",
        f"twice what can be done, {ttft_ms} ms promised to the first token",
        run,
        (
            Bar(
                "fair: ≥ 99 % of what is taken is in time",
                lambda f: (
                    min(
                        f["fair"]["steady_in_time_part"],
                        f["fair"]["bursts_in_time_part"],
                        f["fair"]["steady_coming_in_time_part"],
                    )
                    >= 0.99
                ),
            ),
            Bar(
                "fair: Retry-After not too long by a quarter in four of five",
                lambda f: f["fair"]["steady_at_75_refused_part"] >= 0.8,
            ),
            Bar(
                "fair: nor too short in four of five",
                lambda f: f["fair"]["steady_by_125_taken_part"] >= 0.8,
            ),
            Bar(
                "fair recomputes ≤ 2 %",
                lambda f: (
                    max(f["fair"]["steady_recomputed_part"], f["fair"]["bursts_recomputed_part"])
                    <= 0.02
                ),
            ),
        ),
        reported="Mooncake, the whole system: +75 % requests",
    )


def waits(seen: Run, until_s: float) -> list[float]:
    """Until each client that was refused was taken, by what it was told at first; of those that were told
    a time before `until_s`."""
    first: dict[bytes | None, Outcome] = {}
    taken: dict[bytes | None, Outcome] = {}
    for each in seen.outcomes:
        key, request = each.request.retry_key, each.request
        if each.retry_ms is None:
            taken[key] = each
        elif request.returns == RETURNS and each.ended_ns + each.retry_ms * 1e6 < until_s * NS:
            first[key] = each
    return [
        (taken[key].request.at_ns - each.ended_ns) / ((each.retry_ms or 1) * 1e6)
        if key in taken
        else inf
        for key, each in first.items()
    ]


def in_time(seen: Run, ttft_ms: int) -> float:
    taken = [each for each in seen.outcomes if each.retry_ms is None]
    return mean([wait <= ttft_ms / 1000 for wait in ttfts_s(taken)])


def e12(duration_s: float = 180.0, seed: int = 12) -> Experiment:
    """30 % of the clients leave at random points."""
    rng = Random(seed)  # noqa: S311  # a simulation, not a secret
    requests = [
        replace(each, cancel_ns=rng.randrange(30 * NS)) if rng.random() < 0.3 else each
        for each in uniform((1.0, 1.0), duration_s)
    ]

    def run(contender: Contender) -> Figures:
        seen = play(contender, requests)
        cancelled = [each for each in seen.outcomes if each.ending is Ending.CANCELLED]
        late = sum(
            at_ns > each.request.at_ns + (each.request.cancel_ns or 0)
            for each in cancelled
            for at_ns in each.times_ns
        )
        return {
            "cancelled": float(len(cancelled)),
            "to_free_max_s": max(seen.cancel_to_free_ns, default=0) / NS,
            "step_max_s": seen.step_ns_max / NS,
            "tokens_said_after": float(late),
            "recomputed_part": seen.recomputed_part,
        }

    return Experiment(
        "E12",
        "30 % leave at random points",
        run,
        (
            Bar(
                "fair: blocks free within a step",
                lambda f: f["fair"]["to_free_max_s"] <= f["fair"]["step_max_s"],
            ),
            Bar("nothing said after", lambda f: f["fair"]["tokens_said_after"] == 0),
        ),
    )


def e13(duration_s: float = 120.0, burst: int = 6) -> Experiment:
    """A house full of batch work; every 20 s `burst` critical requests at once."""
    critical = [
        Request(at_s * NS, "guard", 64, 64, workload="critical")
        for at_s in range(30, int(duration_s), 20)
        for _ in range(burst)
    ]
    batch = [replace(each, workload="batch") for each in uniform((2.0, 2.0), duration_s)]
    workloads = (
        Workload(name="critical", weight=1.0, reserved=0.2),
        Workload(name="batch", weight=None, floor=0.05),
    )

    def run(contender: Contender) -> Figures:
        seen = play(contender, merged([critical, batch]), workloads=workloads, until_s=duration_s)
        own = of_tenants(seen, {"guard"})
        parts = served(seen.in_device_ms(), (30.0, duration_s))
        steps_s = 2 * seen.step_ns_max / NS + burst * 64 * A10G.token_ns / NS
        return {
            "critical_ttft_p99_s": tail(ttfts_s(own)),
            "two_steps_and_prompts_s": steps_s,
            "critical_unfinished": float(len(critical) - len(own)),
            "batch_part": 1 - parts.get("guard", 0.0) / sum(parts.values()),
            "recomputed_part": seen.recomputed_part,
        }

    return Experiment(
        "E13",
        "critical bursts on a house full of batch",
        run,
        (
            Bar(
                "fair: critical TTFT p99 ≤ 2 steps + the prompts",
                lambda f: f["fair"]["critical_ttft_p99_s"] <= f["fair"]["two_steps_and_prompts_s"],
            ),
            Bar("batch keeps ≥ 5 %", lambda f: f["fair"]["batch_part"] >= 0.05),
        ),
    )


def e14(duration_s: float = 120.0, seed: int = 14) -> Experiment:
    """Half the memory, answers whose lengths cannot be foreseen (a tenth are ten times as long)."""
    rng = Random(seed)  # noqa: S311  # a simulation, not a secret
    requests = [
        replace(each, output_tokens=800 if rng.random() < 0.1 else 80)
        for each in merged(even(f"t{i}", 0.6, duration_s, phase=0.2 * i) for i in range(5))
    ]
    machine = replace(A10G, kv_blocks=A10G.kv_blocks // 2)

    def run(contender: Contender) -> Figures:
        seen = play(contender, requests, machine=machine)
        return {
            "recomputed_part": seen.recomputed_part,
            "wasted_tokens_part": waste(seen.tokens()),
            "preemptions_max": float(max(each.preemptions for each in seen.outcomes)),
            "unfinished": float(len(requests) - finished(seen)),
            "tokens_per_s": tokens_per_s(seen),
        }

    return Experiment(
        "E14",
        "half the memory, a tenth of the answers ten times as long",
        run,
        (
            Bar("fair recomputes ≤ 5 %", lambda f: f["fair"]["recomputed_part"] <= 0.05),
            Bar("all finish", lambda f: f["fair"]["unfinished"] == 0),
        ),
        reported="10 to 23 % recomputed online, 79 % forced offline",
    )
