"""The bare engine, without server: what a step costs by batch and context, and who takes it.

Three passes.  *Steps*: the model alone on decode batches whose keys and values lie in touched memory
(their content does not matter to a time), and on whole prompts.  *Loop*: a real `Engine` that decodes,
driven as the executor process drives it, so that sampling, scheduling, reporting and the gap between
two steps show.  Every pass is bounded in steps.  Beside each step stands its bound.
Refuses to know: options, printing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from executor.backend import Linear
from executor.batch import Batch, Row, Runner
from executor.contract import Abort, Emitted, Sampling, Submit
from executor.cpu.native.linear import SwitchingLinear
from executor.cpu.native.rounded import RoundedLinear
from executor.decoder import Decoder
from executor.engine import Engine
from executor.inbox import Gone
from executor.settings import Settings
from executor.wire import encode_message
from tests.bench.bounds import BF16_BYTES, ModelSize, Rates
from tests.bench.stopwatch import ClockedRunner, Part, Stopwatch, clocked

WARM_STEPS = 2
STEPS_LEAST = 3
SHAPE_S = 1.5  # of one shape: fewer repeats where a step is long
STEPS_MAX = 10_000
TOKEN = 7


@dataclass(frozen=True, slots=True)
class Step:
    """One shape.  `shares` of the time by part, and `other`: Python between them.  `of_bound`: the
    bound over the least time."""

    rows: int
    tokens: int  # computed in it, all rows together
    context: int  # of each row, after it
    least_ms: float
    median_ms: float
    bound_ms: float
    shares: Mapping[str, float]

    @property
    def per_s(self) -> float:
        return self.tokens / self.median_ms * 1000

    @property
    def of_bound(self) -> float:
        return self.bound_ms / self.least_ms


@dataclass(frozen=True, slots=True)
class Turn:
    """One step of the engine's loop while `rows` decode, median milliseconds.  `engine`: planning,
    charging, reports, wiping.  `between`: from a step's end to the next one's begin (reports to
    bytes).  `gap`: all in which the model does not run."""

    rows: int
    temperature: float
    step_ms: float
    model_ms: float
    sampling_ms: float
    engine_ms: float
    between_ms: float
    gap_ms: float


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded decoder with what its bound needs."""

    decoder: Decoder[Any]
    size: ModelSize
    rates: Rates
    clock_ns: Callable[[], int] = time.perf_counter_ns

    def weight_bytes(self, tokens: int, sampled: int) -> int:
        """What a step of so many tokens and logits reads, in the layouts that its linears choose."""
        layers = self.decoder.layers
        linears = [x for at in layers for x in (at.qkv, at.output, at.gate_up, at.down)]
        found = [read_bytes(linear, tokens) for linear in linears]
        found.append(read_bytes(self.decoder.head, sampled))
        return self.size.bf16_bytes if None in found else sum(each or 0 for each in found)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.decoder.block_tokens)

    def fits(self, rows: int, context: int) -> bool:
        enough = rows * self.blocks_for(context) <= self.decoder.kv_blocks
        return enough and context <= self.decoder.context_tokens

    def touch(self) -> None:
        """Pages that were never written are one page of zeros, and all of it lies in the cache."""
        self.decoder.zero_blocks(range(self.decoder.kv_blocks))

    def decode(self, rows: int, context: int, repeats: int) -> Step:
        each = self.blocks_for(context)
        batch = Batch(
            [
                Row([TOKEN], context - 1, range(at * each, (at + 1) * each), wants_logits=True)
                for at in range(rows)
            ]
        )
        bound_s = self.size.decode_s(
            self.rates, weight_bytes=self.weight_bytes(rows, rows), rows=rows, context=context
        )
        return self._step(batch, context, bound_s, repeats)

    def prefill(self, tokens: int, repeats: int) -> Step:
        """A whole prompt in one step."""
        blocks = range(self.blocks_for(tokens))
        batch = Batch([Row([TOKEN] * tokens, 0, blocks, wants_logits=True)])
        bound_s = self.size.prefill_s(
            self.rates, weight_bytes=self.weight_bytes(tokens, 1), tokens=tokens
        )
        return self._step(batch, tokens, bound_s, repeats)

    def _step(self, batch: Batch, context: int, bound_s: float, repeats: int) -> Step:
        watch = Stopwatch(self.clock_ns)
        timed = clocked(self.decoder, watch)
        timed.run(batch)
        plain_ns = _spans_ns(lambda: self.decoder.run(batch), repeats, self.clock_ns)
        watch.take()
        whole_ns = sum(_spans_ns(lambda: timed.run(batch), repeats, self.clock_ns))
        return Step(
            rows=len(batch.rows),
            tokens=batch.token_count,
            context=context,
            least_ms=min(plain_ns) / 1e6,
            median_ms=statistics.median(plain_ns) / 1e6,
            bound_ms=bound_s * 1000,
            shares=shares(watch.take(), whole_ns),
        )


def read_bytes(linear: Linear, rows: int) -> int | None:
    """Of a linear that switches layouts by the number of rows; None of any other."""
    if isinstance(linear, RoundedLinear):
        return linear.read_bytes(rows)
    if not isinstance(linear, SwitchingLinear):
        return None
    if linear.blocks is not None and rows <= linear.few_rows:
        return linear.blocks.nbytes
    return linear.width_in * linear.width_out * BF16_BYTES


def shares(spent_ns: Mapping[str, int], whole_ns: int) -> dict[str, float]:
    """Of the whole, by part; what no part took is `other`."""
    found = {part.value: spent_ns.get(part, 0) / whole_ns for part in Part}
    found["other"] = max(0.0, 1.0 - sum(found.values()))
    return found


def _spans_ns(call: Callable[[], object], repeats: int, clock_ns: Callable[[], int]) -> list[int]:
    """`repeats` of them, or as many as SHAPE_S allows, but no fewer than STEPS_LEAST."""
    found: list[int] = []
    while len(found) < repeats and (len(found) < STEPS_LEAST or sum(found) < SHAPE_S * 1e9):
        begun = clock_ns()
        call()
        found.append(clock_ns() - begun)
    return found


def loop(
    runner: Runner,
    rows: int,
    *,
    temperature: float,
    steps: int,
    prompt_tokens: int = 64,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> Turn:
    """An engine that decodes `rows` answers for `steps` steps.  Guesses are off: they are another
    measurement.  RuntimeError where the answers do not all begin."""
    watch = Stopwatch(clock_ns)
    inbox: list[tuple[int, Submit | Abort | Gone]] = [
        (0, _job(number, prompt_tokens, temperature, runner.vocab_size))
        for number in range(1, rows + 1)
    ]

    def taken() -> Sequence[tuple[int, Submit | Abort | Gone]]:
        found = inbox[:]
        inbox.clear()
        return found

    settings = Settings(seqs_max=rows, speculation=False)
    engine = Engine(ClockedRunner(runner, watch), taken, clock_ns=clock_ns, settings=settings)
    begun: set[int] = set()
    for _ in range(STEPS_MAX):
        for report in engine.step().values():
            begun |= {update.request for update in report.updates if isinstance(update, Emitted)}
        if len(begun) == rows:
            break
    else:
        raise RuntimeError(f"only {len(begun)} of {rows} answers began")
    spans = [_one_turn(engine, watch, clock_ns) for _ in range(steps + WARM_STEPS)][WARM_STEPS:]
    inbox += [(0, Abort(request=number)) for number in range(1, rows + 1)]
    while engine.busy:
        engine.step()
    step, model, sampling, own, between = (
        statistics.median(each) / 1e6 for each in zip(*spans, strict=True)
    )
    return Turn(rows, temperature, step, model, sampling, own, between, sampling + own + between)


def _one_turn(
    engine: Engine, watch: Stopwatch, clock_ns: Callable[[], int]
) -> tuple[int, int, int, int, int]:
    """As `executor.server` has it: a step, then its reports to bytes (another thread sends them)."""
    watch.take()
    begun = clock_ns()
    reports = engine.step()
    ended = clock_ns()
    for report in reports.values():
        encode_message(report)
    spent, step_ns = watch.take(), ended - begun
    model_ns, sampling_ns = spent.get("model", 0), spent.get("sampling", 0)
    own_ns = step_ns - model_ns - sampling_ns
    return step_ns, model_ns, sampling_ns, own_ns, clock_ns() - ended


def _job(number: int, prompt_tokens: int, temperature: float, vocab_size: int) -> Submit:
    """Prompts that differ, so that answers do."""
    return Submit(
        request=number,
        prompt=tuple((number * 31 + at * 7) % vocab_size for at in range(prompt_tokens)),
        max_new_tokens=STEPS_MAX,
        sampling=Sampling(temperature=temperature, seed=number),
    )
