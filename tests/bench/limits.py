"""Measure what bounds a model on this machine, and count the model.

    python -m tests.bench.limits [MODEL] [--threads N]

prints one JSON document: bandwidth, matrix rate, threads, sizes.  `peers` runs it as a process of its
own before each round, while everything else is paused.  The best of several ways counts: torch's sum
and product, and the linears of the native backend where they are built.
Refuses to know: what the figures are compared with.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.bench.bounds import BF16_BYTES, ModelSize, Rates

MEASURE_S_MAX = 120.0
REPEATS, MEASURE_S = 5, 0.5
_SUMMED = 64 << 20  # float32 numbers: larger than any cache
_ROWS, _WIDTH = 1024, 2048
_WEIGHTS = 32  # of _WIDTH², 256 MiB in bf16


@dataclass(frozen=True, slots=True)
class Limits:
    rates: Rates
    size: ModelSize


def measure(path: Path, threads: int | None) -> Limits:
    """Sets torch's threads for the whole process.  ModelError where the file cannot be read."""
    import torch

    from executor.cpu import machine

    count = threads or machine.physical_cores()
    torch.set_num_threads(count)
    return Limits(rates_of(count), model_size(path))


def rates_of(threads: int) -> Rates:
    """To be called before a model is loaded: the native backend leaves torch one thread."""
    import torch

    from executor.cpu.native.build import Absent, library
    from executor.cpu.native.linear import Space, SwitchingLinear

    dtype = torch.bfloat16
    numbers = torch.ones(_SUMMED)
    reads = [numbers.nbytes / _least_s(numbers.sum)]
    del numbers
    x, weight = torch.ones(_ROWS, _WIDTH, dtype=dtype), torch.ones(_WIDTH, _WIDTH, dtype=dtype)
    operations = 2 * _ROWS * _WIDTH * _WIDTH
    rates = [operations / _least_s(lambda: x @ weight.T)]
    kernels = library()
    if not isinstance(kernels, Absent):
        kernels.lockgate_threads(threads)
        space = Space()
        linears = [SwitchingLinear.make(kernels, space, weight) for _ in range(_WEIGHTS)]
        rates.append(operations / _least_s(lambda: linears[0].by_strips(x, _ROWS)))
        one = x[:1]

        def through_all() -> None:
            for linear in linears:
                linear.by_strips(one, 1)

        reads.append(_WEIGHTS * weight.nbytes / _least_s(through_all))
    return Rates(max(reads), max(rates), threads)


def model_size(path: Path) -> ModelSize:
    from executor.model.gguf_source import GgufSource, gguf_name
    from executor.model_runner import open_source

    source = open_source(path)
    config = source.config
    shapes = config.tensors
    head = "model.embed_tokens.weight" if config.tied else "lm_head.weight"
    linears = [name for name in shapes if name.endswith("_proj.weight")]
    layer_weights = sum(math.prod(shapes[name]) for name in linears)
    head_weights = math.prod(shapes[head])
    kept = BF16_BYTES * (layer_weights + head_weights)
    if isinstance(source, GgufSource):
        names = (gguf_name(name, after_norms=config.after_norms) for name in [*linears, head])
        kept = sum(source.file.tensors[name].size for name in names)
    return ModelSize(
        layer_weights=layer_weights,
        head_weights=head_weights,
        layers=config.layers,
        heads=config.heads,
        head_dim=config.head_dim,
        kv_bytes_per_token=config.kv_bytes_per_token(BF16_BYTES),
        file_bytes=kept,
    )


def _least_s(call: Callable[[], object]) -> float:
    """For half a second at least, since a busy moment would lower what is called a limit."""
    call()
    found: list[float] = []
    while len(found) < REPEATS or sum(found) < MEASURE_S:
        begun = time.perf_counter()
        call()
        found.append(time.perf_counter() - begun)
    return min(found)


async def measured_apart(path: Path, threads: int | None) -> Limits:
    """`measure` in a process of its own, so that this one keeps no torch and no threads."""
    command = [sys.executable, "-m", "tests.bench.limits", str(path)]
    command += [] if threads is None else ["--threads", str(threads)]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), MEASURE_S_MAX)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        raise RuntimeError(f"the machine's limits could not be measured with {path.name}")
    return msgspec.json.decode(said, type=Limits)


def main() -> None:
    from tests.bench.server import default_model

    parser = argparse.ArgumentParser(prog="python -m tests.bench.limits")
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    found = measure(options.model or default_model(), options.threads)
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")


if __name__ == "__main__":
    main()
