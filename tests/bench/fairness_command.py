"""`python -m tests.bench fairness`: E1 to E14 in simulation, first come first served, virtual token
counters and ours side by side, and which bars hold; with `--engine`, those of them that the real engine
can tell on a CPU.

A name with a star is the published loop with an oracle for lengths; the bars that name VTC mean that."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench import fairness_published
from tests.bench.fairness import NAMES, POLICIES, experiments, lines, outcome
from tests.bench.options import print_json, say
from tests.bench.server import REPOSITORY
from tests.bench.show import columns

TRACES = REPOSITORY.parent / "shared" / "traces"


def run(options: argparse.Namespace) -> int:
    if options.engine:
        from tests.bench.fairness_live_command import fairness_live_run  # loads torch and a model

        return fairness_live_run(options)
    policies = options.policies.split(",")
    unknown = [name for name in policies if name not in POLICIES]
    if unknown:
        raise ValueError(f"no policy {', '.join(unknown)}; expected some of {', '.join(POLICIES)}")
    found = []
    for experiment in experiments(_names(options), options.traces):
        said = outcome(experiment, policies, lambda each: _progress(options, each.name))
        found.append(said)
        say(options, "\r" + "\n".join([*lines(said), ""]))
    published = fairness_published.compare(options.traces) if options.published else None
    if published is not None:
        say(options, "the published runs: measured on an A10G, and simulated")
        say(options, "\n".join(columns(fairness_published.lines(*published))))
    if options.json:
        print_json(experiments=found, published=published)
    return 1 if any(holds is False for each in found for _, holds in each.bars) else 0


def _names(options: argparse.Namespace) -> list[str]:
    return options.experiments.split(",") if options.experiments else list(NAMES)


def _progress(options: argparse.Namespace, name: str) -> None:
    if not options.json and sys.stdout.isatty():
        print(f"\r{name} …      ", end="", flush=True)


def add_parser(commands: Any, parents: Sequence[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "fairness", parents=parents, help="fair share in simulation: fcfs, vtc and ours"
    )
    parser.add_argument("--experiments", help="comma separated; default: all that can be run")
    parser.add_argument("--policies", default=",".join(POLICIES), help="comma separated")
    parser.add_argument("--traces", type=Path, default=TRACES, help="where the traces lie")
    parser.add_argument(
        "--published", action="store_true", help="also hold the simulator against measured runs"
    )
    parser.add_argument("--engine", action="store_true", help="on the real engine, not simulated")
    parser.add_argument("--seconds", type=float, default=40.0, help="of a run on the engine")
    parser.add_argument("--repeat", type=int, default=3, help="of the engine's E2 and E3")
    parser.set_defaults(run=run)
