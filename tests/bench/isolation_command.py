"""`python -m tests.bench isolation`: what keeping prompts apart costs, and what registering a text gives.

Three parts, all by default: `keys` (processor time of one thread), `engine` (throughput with labels and without,
wiping), `live` (a server: readers' first tokens, and the 404 of who may not).  Ends by itself within six minutes.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from tests.bench.isolation import Figure, figures
from tests.bench.isolation_engine import Cost, Work, cost
from tests.bench.isolation_live import Seen, measure, people
from tests.bench.machine import this_machine
from tests.bench.options import print_json, say, server_of
from tests.bench.server import REPOSITORY, default_model
from tests.bench.show import columns

PARTS = ("keys", "engine", "live")
WARM_BAR = 0.25
THROUGHPUT_BAR = 0.99
ALPHA = 0.001
LIVE_S_MAX = 240.0


def isolation(options: argparse.Namespace) -> int:
    machine = this_machine(REPOSITORY)
    say(options, machine.sentence())
    parts = tuple(options.parts.split(","))
    if unknown := set(parts) - set(PARTS):
        raise ValueError(f"--parts knows {', '.join(PARTS)}, not {', '.join(sorted(unknown))}")
    keys = _keys(options) if "keys" in parts else []
    spent = _engine(options) if "engine" in parts else None
    seen = _live(options) if "live" in parts else None
    missed = judged(spent, seen)
    if options.json:
        print_json(
            machine=machine,
            tokens=options.tokens,
            keys=keys,
            engine=spent,
            live=seen,
            missed=missed,
        )
    for fault in missed:
        say(options, f"MISSED: {fault}")
    return 1 if missed else 0


def judged(spent: Cost | None, seen: Seen | None) -> tuple[str, ...]:
    """What is not as it should be."""
    found = []
    if spent is not None and spent.ratio < THROUGHPUT_BAR:
        found.append(
            f"with labels {spent.ratio:.3f} of the throughput without, not {THROUGHPUT_BAR}"
        )
    if seen is not None:
        found += seen.faults
        if seen.waits.ratio > WARM_BAR:
            found.append(
                f"a warm first token takes {seen.waits.ratio:.2f} of a cold one's, not {WARM_BAR}"
            )
        found += [
            f"{each.route}: forbidden and absent differ in time (p = {each.p:.1e})"
            for each in seen.hidden
            if each.p <= ALPHA
        ]
    return tuple(found)


def _keys(options: argparse.Namespace) -> list[Figure]:
    found = figures(options.tokens, options.block_tokens, options.rounds)
    blocks = options.tokens // options.block_tokens
    say(options, f"\n{options.tokens} tokens in {blocks} blocks, {options.rounds} rounds")
    lines = [(f.what, f"{f.least_ms:.3f}", f"{f.median_ms:.3f}") for f in found]
    say(options, "\n".join(columns([("", "least ms", "median ms"), *lines])))
    return found


def _engine(options: argparse.Namespace) -> Cost:
    from executor.keeper import computes_with
    from executor.model_runner import load

    path = Path(options.model_path) if options.model_path else default_model()
    work = Work()
    card, runner = load(path, numerics=options.numerics, threads=options.threads)
    found = cost(runner, computes_with(card), work, options.engine_pairs, options.seed)
    say(
        options,
        f"\n{work.requests} prompts of {work.prompt_tokens} tokens and {work.output_tokens} of answer, nothing "
        f"found, medians of {found.pairs} by turns\n"
        f"tokens/s with labels {found.scoped_per_s:.0f}, without {found.plain_per_s:.0f}: {found.ratio:.3f} "
        f"(bar: at least {THROUGHPUT_BAR}), in processor time {found.processor:.3f}; wiping {found.wiping:.2%} "
        "of the time",
    )
    return found


def _live(options: argparse.Namespace) -> Seen:
    async def bounded() -> Seen:
        async with asyncio.timeout(LIVE_S_MAX):
            return await measure(
                server.site,
                tokens=options.document_tokens,
                readers=options.readers,
                pairs=options.pairs,
                seed=options.seed,
            )

    with server_of(options, people(options.readers)) as server:
        seen = asyncio.run(bounded())
    waits = seen.waits
    say(
        options,
        f"\n{waits.readers} readers of one document, prompts of {waits.prompt_tokens} tokens, at least "
        f"{waits.cached} found; ready {waits.ready_s:.1f} s after its registration\n"
        f"first token, medians: {waits.warm_ms:.0f} ms warm, {waits.cold_ms:.0f} ms cold: {waits.ratio:.2f} "
        f"(bar: at most {WARM_BAR})",
    )
    for each in seen.hidden:
        say(
            options,
            f"404 of {each.route}, {each.pairs} pairs of forbidden and absent: median {each.median_ms:.2f} ms, "
            f"p = {each.p:.2g}, difference within {each.low_us:+.0f} to {each.high_us:+.0f} us (99 %)",
        )
    return seen


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    parents: list[argparse.ArgumentParser],
) -> None:
    parser = commands.add_parser(
        "isolation", parents=parents, help="what keeping prompts apart costs and gives"
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="of these, comma separated")
    parser.add_argument("--tokens", type=int, default=50_000, help="keys: of the prompt")
    parser.add_argument("--block-tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--engine-pairs", type=int, default=5, help="runs with labels and without")
    parser.add_argument("--document-tokens", type=int, default=1024)
    parser.add_argument("--readers", type=int, default=20)
    parser.add_argument(
        "--pairs", type=int, default=300, help="of forbidden and absent, each route"
    )
    parser.set_defaults(run=isolation)
