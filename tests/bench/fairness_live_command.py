"""`python -m tests.bench fairness --engine`: the real engine under the experiments that a CPU can tell."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from executor.model_runner import load
from executor.settings import Policy
from tests.bench import fairness_live
from tests.bench.fairness_live import Bench, Result
from tests.bench.machine import this_machine
from tests.bench.options import print_json, say
from tests.bench.server import REPOSITORY, default_model
from tests.bench.show import columns

TRACE = REPOSITORY.parent / "shared" / "traces" / "vtc_arena27_10min.csv"
KV_BYTES_A_TOKEN = (
    2 * 3 * 64 * 30 * 2
)  # keys and values, heads, width, layers, bytes, of the default
KV_TOKENS = 8192


def fairness_live_run(options: argparse.Namespace) -> int:
    path = Path(options.model_path).resolve() if options.model_path else default_model()
    say(options, this_machine(REPOSITORY).sentence())
    _, runner = load(
        path,
        numerics=options.numerics,
        threads=options.threads,
        kv_bytes=KV_BYTES_A_TOKEN * KV_TOKENS,
        rows_max=fairness_live.ROWS,
    )
    policies = [Policy(name) for name in options.policies.split(",")]
    bench = Bench(runner, options.seconds, options.repeat, lambda line: say(options, line))
    bench.measure()
    say(
        options,
        f"{path.name}, numerics {options.numerics}, {runner.kv_blocks * runner.block_tokens} tokens of"
        f" KV memory, {fairness_live.ROWS} rows; {bench.per_s:.1f} requests/s of "
        f"{fairness_live.SHAPE[0]} + {fairness_live.SHAPE[1]} tokens; {options.seconds:g} s a run",
    )
    results = []
    asked = options.experiments.split(",") if options.experiments else list(_EXPERIMENTS)
    unknown = [name for name in asked if name not in _EXPERIMENTS]
    if unknown:
        known = ", ".join(_EXPERIMENTS)
        raise ValueError(f"the engine runs no {', '.join(unknown)}; expected some of {known}")
    for name in asked:
        result = _EXPERIMENTS[name](bench, policies)
        results.append(result)
        _print(options, result)
    if options.json:
        print_json(results=[asdict(each) for each in results])
    return int(any(each.holds is False for result in results for each in result.bars))


def _e5(bench: Bench, policies: list[Policy]) -> Result:
    if not TRACE.is_file():
        raise FileNotFoundError(f"E5 needs {TRACE.name}, expected beside the repository")
    return fairness_live.e5(bench, policies, TRACE)


_EXPERIMENTS: dict[str, Callable[[Bench, list[Policy]], Result]] = {
    "E2": fairness_live.e2,
    "E3": fairness_live.e3,
    "E5": _e5,
    "E8": fairness_live.e8,
    "E12": fairness_live.e12,
    "E13": fairness_live.e13,
    "batching": fairness_live.batches,
}


def _print(options: argparse.Namespace, result: Result) -> None:
    names = list(dict.fromkeys(name for each in result.figures.values() for name in each))
    rows = [
        [who, *(f"{figures[name]:.4g}" if name in figures else "" for name in names)]
        for who, figures in result.figures.items()
    ]
    say(options, f"\n{result.name}  {result.what}")
    for line in columns([["", *names], *rows]):
        say(options, line)
    for each in result.bars:
        verdict = {True: "met", False: "NOT MET", None: "cannot be said"}[each.holds]
        say(options, f"  {verdict:>14}  {each.what}")
