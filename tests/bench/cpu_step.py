"""Time the bare CPU runner, no server: decode steps at batch 1, 8, 32 and prefill of 128, 512, 1024.

    python -m tests.bench.cpu_step [MODEL] [--numerics fast] [--dtype auto] [--threads N] [--profile]

Beside each figure stands its bound: weight bytes over measured read bandwidth, or multiply-adds over
the measured rate of a large product in the same type; the larger of the two.  Minimum and median of
the repeats are given, since another process on the same cores makes every barrier wait for it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from executor.batch import Batch, Row, Runner
from executor.model_runner import load
from tests.models import default_model_path

CONTEXT_TOKENS = 192


def spans_ms(call: Callable[[], object], repeats: int) -> list[float]:
    call()
    found = []
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        found.append((time.perf_counter() - begun) * 1e3)
    return found


def read_bandwidth() -> float:
    """Bytes a second, all threads, over memory larger than the caches."""
    data = torch.ones(64 << 20)
    return data.nbytes / (min(spans_ms(data.sum, 5)) / 1e3)


def product_rate(dtype: torch.dtype) -> float:
    """Operations a second of a 1024 × 2048 × 2048 product."""
    x, w = torch.ones(1024, 2048, dtype=dtype), torch.ones(2048, 2048, dtype=dtype)
    return 2 * 1024 * 2048 * 2048 / (min(spans_ms(lambda: x @ w.T, 5)) / 1e3)


def decode_batch(runner: Runner, rows: int) -> Batch:
    blocks_each = -(-CONTEXT_TOKENS // runner.block_tokens)
    return Batch(
        [
            Row([7], CONTEXT_TOKENS - 1, range(at * blocks_each, (at + 1) * blocks_each), True)
            for at in range(rows)
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--numerics", default="fast")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    path = args.model or default_model_path()
    begun = time.perf_counter()
    card, runner = load(path, numerics=args.numerics, dtype=args.dtype, threads=args.threads)
    dtype = getattr(torch, card.dtype)
    bandwidth, rate = read_bandwidth(), product_rate(dtype)
    print(
        f"{card.device_name}, {torch.get_num_threads()} threads, {card.dtype}, {card.numerics};"
        f" loaded in {time.perf_counter() - begun:.1f} s;"
        f" reads {bandwidth / 1e9:.1f} GB/s, multiplies {rate / 1e9:.0f} GFLOP/s"
    )
    weight_bytes = card.parameters * dtype.itemsize

    def report(name: str, batch: Batch, tokens: int, repeats: int) -> None:
        found = spans_ms(lambda: runner.run(batch), repeats)
        bound = max(weight_bytes / bandwidth, 2 * card.parameters * tokens / rate) * 1e3
        least, usual = min(found), statistics.median(found)
        print(
            f"{name:>14}  min {least:8.2f} ms  median {usual:8.2f} ms"
            f"  {tokens / least * 1e3:7.0f} tok/s  bound {bound:7.2f} ms"
        )

    for rows in (1, 8, 32, 64):
        report(f"decode {rows}", decode_batch(runner, rows), rows, args.repeats)
    for count in (128, 512, 1024):
        blocks = range(-(-count // runner.block_tokens))
        batch = Batch([Row([7] * count, 0, blocks, True)])
        report(f"prefill {count}", batch, count, max(3, args.repeats // 5))
    if args.profile:
        profile(runner)


def profile(runner: Runner) -> None:
    for rows in (1, 8, 32):
        batch = decode_batch(runner, rows)
        with torch.profiler.profile() as seen:
            for _ in range(5):
                runner.run(batch)
        print(f"decode {rows}, five steps")
        print(seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=16))


if __name__ == "__main__":
    main()
