"""`python -m tests.bench soak`: a server of ours under mixed load, a line a minute, a verdict."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import uvloop

from tests.bench.figures import percentile
from tests.bench.hostile import BACK_S_MAX, RATIO_MAX, Survived, survived
from tests.bench.machine import this_machine
from tests.bench.mixed_load import Mix
from tests.bench.options import print_json, say, server_of
from tests.bench.server import REPOSITORY, Server
from tests.bench.soak import OTHERS_CORES_MAX, Sample, Soaked, others_cores, soak

WINDOWS_MIN = 9
WINDOW_S = 60.0


def run(options: argparse.Namespace) -> int:
    machine = this_machine(REPOSITORY)
    say(options, machine.sentence())
    if options.hostile:
        seen_hostile = uvloop.run(_hostile(options))
        if options.json:
            print_json(machine=machine, report=seen_hostile)
        else:
            print(*hostile_lines(seen_hostile), sep="\n")
        return 0 if not seen_hostile.faults and seen_hostile.ratio <= RATIO_MAX else 1
    seconds = options.minutes * 60
    if seconds <= 0:
        raise ValueError(f"expected --minutes above 0, got {options.minutes:g}")
    with server_of(options) as server:
        say(options, HEAD)
        seen = uvloop.run(
            soak(
                server.site,
                seconds=seconds,
                window_s=min(WINDOW_S, seconds / WINDOWS_MIN),
                mix=Mix(streams=options.streams),
                seed=options.seed,
                say=lambda sample: say(options, line(sample)),
            )
        )
    if options.json:
        print_json(machine=machine, numerics=options.numerics, report=seen)
    else:
        print(*verdict(seen), sep="\n")
    return 1 if seen.faults else 0


async def _hostile(options: argparse.Namespace) -> Survived:
    """Around an executor that computes nothing: what the front does is measured, and no model."""
    server = Server.prepare()
    server.keep = options.keep
    config = str(server.folder / "lockgate.toml")
    command = (sys.executable, "-m", "tests.bench.modelless", "--config", config)
    server.command = (*command, "--steps", "64", "--step-ms", "10")
    try:
        await server.started()
        return await survived(server.site, seconds=options.hostile, seed=options.seed)
    finally:
        server.__exit__()


def hostile_lines(seen: Survived) -> list[str]:
    back = "never" if seen.back_s is None else f"{seen.back_s:.1f} s"
    vitals = (
        f"all back {back} after (bar: {BACK_S_MAX:g}); tasks {seen.before.tasks} -> {seen.after.tasks}, "
        f"file descriptors {seen.before.fds} -> {seen.after.fds}, "
        f"{seen.before.rss_mib:.0f} -> {seen.after.rss_mib:.0f} MiB"
    )
    found = [", ".join(f"{count} {name}" for name, count in seen.done.items()), vitals]
    for name, took in (("alone", seen.alone_ms), ("meanwhile", seen.meanwhile_ms)):
        p50, p99 = percentile(took, 50) or 0.0, percentile(took, 99) or 0.0
        found.append(
            f"another tenant {name}: {len(took)} answers, p50 {p50:.0f} ms, p99 {p99:.0f} ms"
        )
    held = "holds" if seen.ratio <= RATIO_MAX else "DOES NOT HOLD"
    found.append(f"ratio of medians: {seen.ratio:.2f} (at most {RATIO_MAX:g}): {held}")
    return [*found, *(f"FAULT: {fault}" for fault in seen.faults)]


HEAD = "  minute  requests  hung up   tokens  gateway MiB  executor MiB  step ms  others cores  idle after s"


def line(sample: Sample) -> str:
    idle = "never" if sample.idle_s is None else f"{sample.idle_s:.2f}"
    return (
        f"{sample.at_min:8.2f}  {sample.requests:8d}  {sample.hung_up:7d}  {sample.generated:7d}"
        f"  {sample.gateway_mib:11.1f}  {sample.executor_mib:12.1f}  {sample.step_ms:7.2f}"
        f"  {sample.others_cores:12.2f}  {idle:>12}"
    )


def verdict(seen: Soaked) -> list[str]:
    shaped = "among them" if seen.structured else "not there"
    whole = f"{seen.requests} requests in {seen.minutes:.1f} minutes, {seen.hung_up} hung up"
    billed = f"{seen.billed.input_tokens} + {seen.billed.output_tokens} tokens billed"
    found = [f"{whole}, structured output {shaped}; {billed}"]
    for name, each in seen.trends.items():
        if each is not None:
            found.append(
                f"{name}: mean {each.mean:.2f}, slope {each.slope:+.4f} ± {each.error:.4f} a minute, "
                f"{each.growth:+.2f} over {each.points} samples"
            )
    if (others := others_cores(seen.samples)) > OTHERS_CORES_MAX:
        found.append(f"step_ms is not judged: other processes had {others:.2f} cores meanwhile")
    found += [f"FAULT: {fault}" for fault in seen.faults]
    return found if seen.faults else [*found, "all holds"]


def add_parser(commands: Any, parents: Sequence[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "soak", parents=parents, help="mixed load for long: nothing grows, nothing is left"
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--streams", type=int, default=12)
    parser.add_argument(
        "--hostile", type=float, default=0.0, metavar="SECONDS",
        help="instead: every kind of bad client at once for so long, without a model",
    )  # fmt: skip
    parser.set_defaults(run=run)
