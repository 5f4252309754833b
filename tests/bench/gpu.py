"""What the Triton backend does on one GPU, beside what that GPU could do.

    python -m tests.bench.gpu              # under 8 minutes on one idle GPU; no model file is needed
    python -m tests.bench.gpu --smoke      # the same script shrunken, interpreted on a CPU: does it run?

First every kernel against its twin; then the card's bandwidth and bf16 rate; then, with the roofline
from these, decode and prefill of an 8B-shaped model with random weights, kernels and µs a step of the
default model's shape, the gaps of 31 streams while a 16k prompt is prefilled, and transformers'
`generate_batch` at the same work.  Prints markdown.  Exit status 1 if a kernel disagrees.

Bound of a decode: max((weights + keys and values) / bandwidth, operations / rate); of a prefill:
operations / rate.  Shares are against what was measured here, not a data sheet.
"""

from __future__ import annotations

import argparse
import datetime as dt
import gc
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from executor.batch import Batch, Row
from executor.choice import Ask
from executor.contract import Sampling
from executor.decoder import Decoder
from executor.kernels.places import BLOCK_TOKENS
from executor.kernels.sampler import sample
from executor.kernels.step import CudaStep
from tests.bench.gpu_shapes import FULL, SHRUNKEN, Roof, Run, decodes, random_model, roof
from tests.executor.kernels.on_device import Bench, checks

GREEDY = Ask(Sampling(temperature=0.0), (0,), 1, plain_greedy=True)


@dataclass(frozen=True)
class Line:
    what: str
    measured: str
    bound: str = ""
    share: str = ""


def decode_lines(run: Run, model: Decoder[CudaStep], roofline: Roof, name: str) -> Iterator[Line]:
    plan, context = run.plan, run.plan.context_tokens
    for rows in plan.batches:
        batch = decodes(rows, context)

        serve(model, batch)
        served_s = statistics.median(run.seconds(partial(serve, model, batch), plan.steps))
        step = model.backend.step(batch)
        replay_s = run.queued_s(partial(_replay, model, step), plan.steps)
        bound_s = roofline.decode_s(model.config, rows, context)
        yield Line(
            f"{name} decode, batch {rows}, {context} context, tokens/s",
            f"{rows / served_s:,.0f} ({served_s * 1e3:.2f} ms a step; device {replay_s * 1e3:.2f})",
            f"{rows / bound_s:,.0f} ({bound_s * 1e3:.2f} ms)",
            f"{bound_s / served_s:.0%}; device {bound_s / replay_s:.0%}",
        )


def serve(model: Decoder[CudaStep], batch: Batch) -> None:
    """A step and its tokens on the host."""
    sample(model.run(batch), [GREEDY] * sum(row.wants_logits for row in batch.rows))


def _replay(model: Decoder[CudaStep], step: CudaStep) -> Tensor:
    return model.backend.run(step, model._forward)


def prefill_lines(run: Run, model: Decoder[CudaStep], roofline: Roof) -> Iterator[Line]:
    tokens = run.plan.prefill_tokens
    prompt = Batch([Row([7] * tokens, 0, range(-(-tokens // BLOCK_TOKENS)), True)])
    model.run(prompt)
    took_s = statistics.median(run.seconds(lambda: model.run(prompt), 5))
    bound_s = roofline.prefill_s(model.config, tokens)
    yield Line(
        f"8B prefill, one prompt of {tokens}, tokens/s",
        f"{tokens / took_s:,.0f} ({took_s * 1e3:.1f} ms)",
        f"{tokens / bound_s:,.0f}",
        f"{bound_s / took_s:.0%}",
    )


def gap_lines(run: Run, model: Decoder[CudaStep]) -> Iterator[Line]:
    """Streams that decode while a long prompt comes in beside them, chunk by chunk."""
    plan = run.plan
    streams = decodes(plan.streams, plan.context_tokens)
    after = plan.streams * -(-plan.context_tokens // BLOCK_TOKENS)
    blocks = range(after, after + -(-plan.long_tokens // BLOCK_TOKENS))
    alone = run.seconds(partial(serve, model, streams), plan.steps)
    gaps: list[float] = []
    for _ in range(2):  # the first finds what was not warm
        gaps = []
        for start in range(0, plan.long_tokens, plan.chunk_tokens):
            end = min(start + plan.chunk_tokens, plan.long_tokens)
            last = end == plan.long_tokens
            chunk = Row([7] * (end - start), start, blocks, last)
            batch = Batch([*streams.rows, chunk])
            gaps += run.seconds(partial(serve, model, batch), 1)
    ordered = sorted(gaps)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    yield Line(
        f"inter-token p99 of {plan.streams} streams, {plan.long_tokens} prompt in chunks of"
        f" {plan.chunk_tokens}",
        f"{p99 * 1e3:.1f} ms (median {statistics.median(gaps) * 1e3:.1f};"
        f" whole prompt {sum(gaps):.2f} s)",
        f"{statistics.median(alone) * 1e3:.1f} ms without it",
    )


def small_lines(run: Run, roofline: Roof) -> Iterator[Line]:
    plan = run.plan
    rows_max = max(plan.batches[:2])
    model = random_model(
        plan.small, run, rows_max=rows_max, kv_tokens=rows_max * (plan.context_tokens + 32)
    )
    yield from decode_lines(
        replace_batches(run, plan.batches[:2]), model, roofline, "default model's shape"
    )
    batch = decodes(1, plan.context_tokens)
    step = model.backend.step(batch)
    replay_s = run.queued_s(lambda: _replay(model, step), plan.steps)
    yield Line(
        "default model's shape, one step at batch 1",
        f"{replay_s * 1e6:,.0f} µs, {_kernels(run, lambda: _replay(model, step))} kernels",
        f"{roofline.decode_s(plan.small, 1, plan.context_tokens) * 1e6:,.0f} µs",
    )


def replace_batches(run: Run, batches: tuple[int, ...]) -> Run:
    return replace(run, plan=replace(run.plan, batches=batches))


def _kernels(run: Run, call: Callable[[], object]) -> str:
    if run.device.type != "cuda":
        return "no"
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as seen:
        call()
        run.wait()
    count = sum(1 for event in seen.events() or () if event.device_type.name == "CUDA")
    return str(count) if count else "an unknown number of"


def peer_lines(run: Run) -> Iterator[Line]:
    """transformers' continuous batching: prompts of the context's length, so many new tokens each."""
    plan = run.plan
    what = f"transformers generate_batch, {plan.peer_batch} streams, tokens/s"
    try:
        from transformers import (
            ContinuousBatchingConfig,
            GenerationConfig,
            LlamaConfig,
            LlamaForCausalLM,
        )
    except ImportError as why:
        yield Line(what, f"not measured: {why}")
        return
    big = plan.big
    config = LlamaConfig(
        vocab_size=big.vocab_size,
        hidden_size=big.hidden_size,
        intermediate_size=big.intermediate_size,
        num_hidden_layers=big.layers,
        num_attention_heads=big.heads,
        num_key_value_heads=big.kv_heads,
        head_dim=big.head_dim,
        max_position_embeddings=big.context_tokens,
        tie_word_embeddings=big.tied,
    )
    try:
        made: Any = LlamaForCausalLM
        configured: Any = GenerationConfig
        with torch.device(run.device):
            model = made._from_config(config, dtype=run.dtype).eval()
        model.set_attn_implementation("flash_attention_2" if find_spec("flash_attn") else "sdpa")
        generator = torch.Generator().manual_seed(1)
        ids = torch.randint(
            3, big.vocab_size, (plan.peer_batch, plan.context_tokens), generator=generator
        ).tolist()

        def generate(new_tokens: int) -> float:
            asked = configured(
                max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
            )
            begun = time.perf_counter()
            outputs = model.generate_batch(
                inputs=ids,
                generation_config=asked,
                continuous_batching_config=ContinuousBatchingConfig(num_blocks=plan.peer_blocks),
            )
            came = sum(len(each.generated_tokens) for each in outputs.values())
            assert came == plan.peer_batch * new_tokens, f"{came} tokens came"
            return time.perf_counter() - begun

        signal.setitimer(signal.ITIMER_REAL, max(1.0, run.left_s()))
        generate(2)
        short_s, long_s = generate(1), generate(plan.peer_new_tokens + 1)
    except Exception as why:  # noqa: BLE001 — another's library may fail in any way; ours is measured
        yield Line(what, f"not measured: {type(why).__name__}: {str(why)[:120]}")
        return
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    decode_s = (long_s - short_s) / plan.peer_new_tokens
    yield Line(
        what,
        f"{plan.peer_batch / decode_s:,.0f} ({decode_s * 1e3:.2f} ms a step; prompts"
        f" {plan.peer_batch * plan.context_tokens / short_s:,.0f} tokens/s)",
    )


def table(lines: list[Line]) -> Iterator[str]:
    yield "| | measured | bound | share |"
    yield "|---|---|---|---|"
    for line in lines:
        yield f"| {line.what} | {line.measured} | {line.bound} | {line.share} |"


def check_kernels(run: Run) -> bool:
    """Each kernel's worst disagreement with its twin."""
    worst: dict[str, list[str]] = {}
    count = 0
    for check in checks(Bench(run.device, run.dtype, run.smoke)):
        count += 1
        if not check.holds:
            said = f"{check.shape}: {check.worst:.2g} > {check.bound:.2g}"
            worst.setdefault(check.kernel, []).append(said)
    for kernel, faults in worst.items():
        print(f"DISAGREES: {kernel}: {'; '.join(faults)}")
    print(
        f"{count} comparisons of kernels with their twins, {sum(map(len, worst.values()))} failed\n"
    )
    return not worst


def fitting(run: Run) -> tuple[Run, list[Line]]:
    """Without the batches that this card has no memory for."""
    if run.device.type != "cuda":
        return run, []
    big = run.plan.big
    free = 0.85 * torch.cuda.mem_get_info()[0] - 2 * big.parameters
    each = big.kv_bytes_per_token(2) * (run.plan.context_tokens + BLOCK_TOKENS)
    fit = tuple(rows for rows in run.plan.batches if rows * each < free)
    left = [
        Line(f"8B decode, batch {rows}", "not measured: too little memory")
        for rows in run.plan.batches
        if rows not in fit
    ]
    return replace_batches(run, fit), left


def measure(run: Run, *, peer: bool) -> list[Line]:
    run, lines = fitting(run)
    plan = run.plan
    roofline = roof(run)
    lines += [
        Line("memory, GB/s", f"{roofline.bytes_per_s / 1e9:,.0f}"),
        Line("bf16 product, TFLOP/s", f"{roofline.flops / 1e12:,.1f}"),
    ]
    rows_max = max(*plan.batches, plan.streams + 1)
    kv_tokens = max(
        max(plan.batches) * plan.context_tokens,
        plan.streams * (plan.context_tokens + BLOCK_TOKENS) + plan.long_tokens,
    )
    begun = time.monotonic()
    model = random_model(plan.big, run, rows_max=rows_max, kv_tokens=kv_tokens + 32 * rows_max)
    lines.append(Line("8B shape, made and warm, s", f"{time.monotonic() - begun:.1f}"))
    compiled = _count_compiles()
    lines += decode_lines(run, model, roofline, "8B")
    lines += prefill_lines(run, model, roofline)
    lines += gap_lines(run, model)
    lines.append(Line("kernels compiled while serving", str(len(compiled))))
    del model
    gc.collect()
    if run.device.type == "cuda":
        torch.cuda.empty_cache()
    lines += small_lines(run, roofline)
    if peer:
        lines += peer_lines(run)
    return lines


def _count_compiles() -> list[str]:
    """Names of kernels as they are compiled from here on."""
    seen: list[str] = []

    def note(**told: Any) -> None:
        seen.append(str(told.get("repr")))

    triton.knobs.runtime.jit_post_compile_hook = note
    return seen


def _late(*_: object) -> None:
    raise TimeoutError("out of time")


def _commit() -> str:
    """A copied tree may have none."""
    asked = [
        "git",
        "-C",
        str(Path(__file__).resolve().parents[2]),
        "describe",
        "--always",
        "--dirty",
    ]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="shrunken, interpreted on a CPU")
    parser.add_argument(
        "--budget-s", type=float, default=450.0, help="sections past it are left out"
    )
    parser.add_argument("--without-peer", action="store_true", help="leave transformers out")
    options = parser.parse_args()
    if options.smoke and os.environ.get("TRITON_INTERPRET") != "1":  # read when Triton is imported
        environment = {**os.environ, "TRITON_INTERPRET": "1"}
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.bench.gpu", *sys.argv[1:]], environment
        )
    if not options.smoke and not torch.cuda.is_available():
        print("tests.bench.gpu: no GPU here; expected one, or --smoke", file=sys.stderr)
        return 2
    signal.signal(signal.SIGALRM, _late)
    device = torch.device("cpu" if options.smoke else "cuda")
    card = "interpreted, on a CPU: no figure below means anything"
    if device.type == "cuda":
        card = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    print(
        f"{dt.datetime.now(dt.UTC):%Y-%m-%d}, {card}; torch {torch.__version__},"
        f" Triton {triton.__version__}; commit {_commit()}\n"
    )
    deadline_s = time.monotonic() + options.budget_s
    run = Run(SHRUNKEN if options.smoke else FULL, device, deadline_s, options.smoke)
    agrees = check_kernels(run)
    print(*table(measure(run, peer=not options.without_peer)), sep="\n")
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
