"""`python -m tests.bench engine`: load a model as the executor does, time its steps, print the tables."""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.machine import this_machine
from tests.bench.options import print_json, say
from tests.bench.server import REPOSITORY, default_model
from tests.bench.show import columns

LOOP_TOKENS = 256  # room for the loop's prompts and what is decoded while others begin
PARTS = ("linears", "head", "attention", "small", "plan", "other")


@dataclass(frozen=True, slots=True)
class Loaded:
    """Seconds: reading and laying out the weights, then measuring and building before serving."""

    load_s: float
    warm_s: float


@dataclass(frozen=True, slots=True)
class Cost:
    """The invariant mode beside the fast one; above 1 it is slower."""

    what: str
    fast_ms: float
    invariant_ms: float

    @property
    def times(self) -> float:
        return self.invariant_ms / self.fast_ms


def engine(options: argparse.Namespace) -> int:
    from tests.bench.engine import Step, Turn, loop
    from tests.bench.limits import measure

    path = Path(options.model_path).resolve() if options.model_path else default_model()
    machine = this_machine(REPOSITORY)
    limits = measure(path, options.threads)  # before a model is loaded: threads are all torch's yet
    model, loaded = _load(options, path, limits)
    say(options, machine.sentence())
    say(options, limits.rates.sentence())
    say(
        options,
        f"{path.name}, numerics {options.numerics}; loaded in {loaded.load_s:.1f} s, "
        f"warmed up in {loaded.warm_s:.1f} s",
    )
    model.touch()
    steps: list[Step] = []
    skipped: list[str] = []
    say(options, "\ndecode, the model alone")
    for context in _numbers(options.contexts):
        found: list[Step] = []
        for rows in _numbers(options.batches):
            if model.fits(rows, context):
                found.append(model.decode(rows, context, options.repeats))
            else:
                skipped.append(f"{rows} x {context}")
        _print(options, step_lines(found))
        steps += found
    if skipped:
        say(options, f"no room in {options.kv_mib} MiB or in the context: {', '.join(skipped)}")
    prefills = [
        model.prefill(tokens, options.repeats)
        for tokens in _numbers(options.prompts)
        if model.fits(1, tokens)
    ]
    _print(options, ["", "prompts in one step", *step_lines(prefills)])
    turns: list[Turn] = [
        loop(model.decoder, rows, temperature=temperature, steps=options.repeats)
        for rows in _numbers(options.batches)
        for temperature in (0.0, 1.0)
        if model.fits(rows, LOOP_TOKENS + options.repeats)
    ]
    title = "the engine's loop while all decode, median ms a step"
    _print(options, ["", title, *turn_lines(turns)])
    if any(each.of_bound > 1 for each in (*steps, *prefills)):
        say(options, "\na bound was beaten: others ran while the rates were measured; run it again")
    skip = options.without_invariant or options.numerics == "int8"
    costs = [] if skip else list(_invariance(options, path, model, limits))
    if options.json:
        print_json(
            machine=machine,
            model=path.name,
            numerics=options.numerics,
            rates=limits.rates,
            size=limits.size,
            loaded=loaded,
            decode=steps,
            prefill=prefills,
            loop=turns,
            skipped=skipped,
            invariance=costs,
        )
    return 0


def _load(options: argparse.Namespace, path: Path, limits: Any) -> tuple[Any, Loaded]:
    from executor.model_runner import load
    from tests.bench.engine import Model

    begun = time.perf_counter()
    instants: dict[str, float] = {}

    def progress(stage: str, _: float | None) -> None:
        instants.setdefault(stage, time.perf_counter())

    _, runner = load(
        path,
        numerics=options.numerics,
        dtype=options.dtype,
        kv_bytes=options.kv_mib << 20,
        threads=options.threads,
        progress=progress,
    )
    ended = time.perf_counter()
    warm = instants.get("warming up", ended)
    made: Any = runner  # what `load` returns on a CPU is a decoder
    return Model(made, limits.size, limits.rates), Loaded(warm - begun, ended - warm)


def _invariance(options: argparse.Namespace, path: Path, model: Any, limits: Any) -> Iterator[Cost]:
    """The same steps in both modes, of which one is loaded already."""
    repeats = options.repeats
    other = "invariant" if options.numerics == "fast" else "fast"
    shapes: list[tuple[str, Callable[[Any], float]]] = [
        (f"decode {rows} at 256", _decode(rows, repeats)) for rows in (1, 8, 32)
    ]
    shapes.append(("prefill 512", lambda m: float(m.prefill(512, repeats).least_ms)))
    here = [take(model) for _, take in shapes]
    gc.collect()
    again = argparse.Namespace(**{**vars(options), "numerics": other, "kv_mib": 512})
    second, _ = _load(again, path, limits)
    second.touch()
    there = [take(second) for _, take in shapes]
    fast, invariant = (here, there) if other == "invariant" else (there, here)
    say(options, "\nwhat invariance costs, least ms")
    cells = [["", "fast", "invariant", "times"]]
    for (what, _), a, b in zip(shapes, fast, invariant, strict=True):
        cost = Cost(what, a, b)
        cells.append([what, f"{a:.2f}", f"{b:.2f}", f"{cost.times:.2f}"])
        yield cost
    _print(options, columns(cells))


def _decode(rows: int, repeats: int) -> Callable[[Any], float]:
    return lambda model: float(model.decode(rows, 256, repeats).least_ms)


def _print(options: argparse.Namespace, lines: Sequence[str]) -> None:
    for line in lines:
        say(options, line)


def step_lines(steps: Sequence[Any]) -> list[str]:
    head = ["batch", "context", "least ms", "median", "tok/s", "bound ms", "of it"]
    cells = [[*head, *(f"{part} %" for part in PARTS)]]
    cells += [
        [
            str(each.rows),
            str(each.context),
            f"{each.least_ms:.2f}",
            f"{each.median_ms:.2f}",
            f"{each.per_s:.0f}",
            f"{each.bound_ms:.2f}",
            f"{each.of_bound:.2f}",
            *(f"{100 * each.shares[part]:.0f}" for part in PARTS),
        ]
        for each in steps
    ]
    return columns(cells)


def turn_lines(turns: Sequence[Any]) -> list[str]:
    head = [
        "batch",
        "temperature",
        "step",
        "model",
        "sampling",
        "engine",
        "between",
        "gap",
        "gap %",
    ]
    cells = [
        [
            str(each.rows),
            f"{each.temperature:g}",
            *(
                f"{value:.3f}"
                for value in (
                    each.step_ms,
                    each.model_ms,
                    each.sampling_ms,
                    each.engine_ms,
                    each.between_ms,
                    each.gap_ms,
                )
            ),
            f"{100 * each.gap_ms / (each.model_ms + each.gap_ms):.1f}",
        ]
        for each in turns
    ]
    return columns([head, *cells])


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def add_parser(commands: Any, parents: Sequence[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "engine", parents=parents, help="the bare engine: step times, and who takes them"
    )
    parser.add_argument("--batches", default="1,2,4,8,16,32,64", help="rows, comma separated")
    parser.add_argument("--contexts", default="64,256,1024,4096", help="tokens a row")
    parser.add_argument("--prompts", default="128,512,1024,4096", help="tokens a prompt")
    parser.add_argument("--repeats", type=int, default=12, help="steps a shape")
    parser.add_argument(
        "--kv-mib", type=int, default=2048, help="shapes that need more are left out"
    )
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--without-invariant", action="store_true", help="skip it; int8 has none")
    parser.set_defaults(run=engine)
