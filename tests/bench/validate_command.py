"""`python -m tests.bench validate`: the simulator beside the real engine, on this machine.

About three and a half minutes with what is default.  Exit status 1 where a target is missed or a request
was lost; `--out FILE` writes the fitted machine, for `lockgate plan --machine FILE`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from executor.simulation.machine_file import named, write
from tests.bench.machine import this_machine
from tests.bench.options import print_json, say
from tests.bench.server import REPOSITORY, default_model
from tests.bench.show import columns
from tests.bench.validate import TARGETS, Beside, Validation, compare, measure, workload

TRACES = REPOSITORY.parent / "shared" / "traces"
_FLOOD = 64


def run(options: argparse.Namespace) -> int:
    from executor.model_runner import load  # torch, which the tests of tables need not
    from executor.settings import Settings, engine_limits
    from tests.bench.fairness_live import INTERACTIVE, ROWS
    from tests.bench.fairness_live_command import KV_BYTES_A_TOKEN, KV_TOKENS
    from tests.bench.validate_live import Player

    path = Path(options.model_path).resolve() if options.model_path else default_model()
    say(options, this_machine(REPOSITORY).sentence())
    _, runner = load(
        path,
        numerics=options.numerics,
        threads=options.threads,
        kv_bytes=KV_BYTES_A_TOKEN * KV_TOKENS,
        rows_max=ROWS,
    )
    settings = Settings(seqs_max=ROWS, speculation=False, waiting_max=100_000)
    limits = replace(engine_limits(runner, settings), workloads=(INTERACTIVE,))
    player = Player(runner, settings, limits, (INTERACTIVE,))
    requests = workload(options.traces, 20_000, options.seed)
    capacity = player.capacity(requests[:_FLOOD])
    say(
        options,
        f"{path.name}, numerics {options.numerics}, {ROWS} rows; a full house does {capacity:,.0f} tokens/s "
        f"(prompt and twice the answer); seed {options.seed}, {options.seconds:g} s a half",
    )
    parts = [float(each) for each in options.loads.split(",")]
    loads = measure(player.play, requests[_FLOOD:], capacity, parts, options.seconds)
    found = compare(loads, limits, named(f"{path.stem} {options.numerics}"))
    for line in lines(found):
        say(options, line)
    if options.out is not None:
        write(found.fitted.machine, options.out)
        say(options, f"the fitted machine is in {options.out}")
    if options.json:
        print_json(validation=found, errors=found.errors(), targets=TARGETS)
    lost = any(each.faults for each in found.loads)
    return int(lost or any(error > TARGETS[name] for name, (error, _) in found.errors().items()))


def lines(found: Validation) -> list[str]:
    fitted = found.fitted
    machine = fitted.machine
    terms = (
        ("fixed", machine.fixed_ns / 1e6, "ms a step"),
        ("rows", machine.sequence_ns / 1e6, "ms a row"),
        ("context", machine.kv_token_ns / 1e3, "µs a token of context"),
        ("prompt", machine.token_ns / 1e6, "ms a token"),
        ("pairs", machine.pair_ns / 1e3, "µs a token and token before it"),
    )
    whence = (
        f"fitted to {fitted.steps:,} steps of the first halves: half of them within {fitted.spread:.1%}, "
        f"{fitted.explained:.0%} of their variance explained; {fitted.set_aside} stalls set aside"
    )
    told = [
        whence,
        "  " + ", ".join(f"{name} {value:.3g} {unit}" for name, value, unit in terms),
    ]
    for each in found.loads:
        told += ["", *_load(each)]
    told += ["", "median error over the loads, of the simulated and of a second measured run"]
    cells = [["", "simulated", "measured again", "target", ""]]
    for name, (error, spread) in found.errors().items():
        verdict = "met" if error <= TARGETS[name] else "NOT MET"
        cells.append([name, f"{error:.1%}", f"{spread:.1%}", f"{TARGETS[name]:.1%}", verdict])
    return told + columns(cells)


def _load(each: Beside) -> list[str]:
    cells = [["", "measured", "again", "simulated", "error", "spread"]]
    for row in each.rows:
        values = (f"{value:.4g}" for value in (row.measured, row.again, row.simulated))
        cells.append([row.name, *values, f"{row.error:+.1%}", f"{row.spread:+.1%}"])
    by_request = ", ".join(
        f"{name} {error:.1%} ({again:.1%})" for name, (error, again) in each.by_request.items()
    )
    return [
        f"load {each.part:g}: {each.requests} requests of the second half",
        *columns(cells),
        f"  median error of a request (of one measured again): {by_request}",
        *(f"  FAULT: {fault}" for fault in each.faults),
    ]


def add_parser(commands: Any, parents: Sequence[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "validate",
        parents=parents,
        help="the simulator beside the engine: fit on half, replay half",
    )
    parser.add_argument("--loads", default="0.5,0.7,0.85", help="parts of the capacity")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a half; three a load")
    parser.add_argument("--out", type=Path, help="write the fitted machine here")
    parser.add_argument("--traces", type=Path, default=TRACES, help="where the traces lie")
    parser.set_defaults(run=run)
