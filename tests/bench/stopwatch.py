"""Where a step's time goes: a decoder whose operations are timed, and a runner whose calls are.

The product is not edited: `clocked` puts a stopwatch around the backend and the linears of a decoder
that is loaded.  A pair of clock readings an operation costs about half a microsecond, some one in a
hundred of a small step, so totals come from the plain decoder and only shares from the clocked one.
Refuses to know: what is run, and what the figures mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ParamSpec, TypeVar, cast

from executor.backend import Layer, Linear
from executor.batch import Batch, Runner
from executor.choice import Ask, Choice
from executor.decoder import Decoder

P = ParamSpec("P")
R = TypeVar("R")


class Part(StrEnum):
    """Of one run of the model.  What none of them is: Python between them."""

    LINEARS = "linears"
    HEAD = "head"
    ATTENTION = "attention"
    SMALL = "small"  # norms, gate, embedding
    PLAN = "plan"  # the batch as tensors


@dataclass(slots=True)
class Stopwatch:
    clock_ns: Callable[[], int]
    spent_ns: dict[str, int] = field(default_factory=dict)

    def timed(self, part: str, call: Callable[P, R]) -> Callable[P, R]:
        spent, clock = self.spent_ns, self.clock_ns

        def with_clock(*args: P.args, **kwargs: P.kwargs) -> R:
            begun = clock()
            try:
                return call(*args, **kwargs)
            finally:
                spent[part] = spent.get(part, 0) + clock() - begun

        return with_clock

    def take(self) -> Mapping[str, int]:
        """What was spent since the last call."""
        found = dict(self.spent_ns)
        self.spent_ns.clear()
        return found


class ClockedBackend:
    """Everything else is the backend's own."""

    def __init__(self, backend: Any, watch: Stopwatch) -> None:
        self._backend = backend
        self.embed = watch.timed(Part.SMALL, backend.embed)
        self.add_norm = watch.timed(Part.SMALL, backend.add_norm)
        self.gate = watch.timed(Part.SMALL, backend.gate)
        self.attend = watch.timed(Part.ATTENTION, backend.attend)
        self.step = watch.timed(Part.PLAN, backend.step)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def clocked(decoder: Decoder[Any], watch: Stopwatch) -> Decoder[Any]:
    """The same weights and memory; `decoder` itself stays as it is."""

    def linear(part: Part, inner: Linear) -> Linear:
        return watch.timed(part, inner.__call__)

    def layer(each: Layer) -> Layer:
        return replace(
            each,
            qkv=linear(Part.LINEARS, each.qkv),
            output=linear(Part.LINEARS, each.output),
            gate_up=linear(Part.LINEARS, each.gate_up),
            down=linear(Part.LINEARS, each.down),
        )

    return replace(
        decoder,
        backend=cast("Any", ClockedBackend(decoder.backend, watch)),
        layers=tuple(layer(each) for each in decoder.layers),
        head=linear(Part.HEAD, decoder.head),
    )


@dataclass(frozen=True, slots=True)
class ClockedRunner:
    """For an engine: how long the model ran and the sampler chose."""

    inner: Runner
    watch: Stopwatch

    @property
    def block_tokens(self) -> int:
        return self.inner.block_tokens

    @property
    def kv_blocks(self) -> int:
        return self.inner.kv_blocks

    @property
    def vocab_size(self) -> int:
        return self.inner.vocab_size

    @property
    def context_tokens(self) -> int:
        return self.inner.context_tokens

    def run(self, batch: Batch) -> Any:
        return self.watch.timed("model", self.inner.run)(batch)

    def sample(self, logits: Any, asks: Sequence[Ask]) -> list[Choice]:
        return self.watch.timed("sampling", self.inner.sample)(logits, asks)

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        self.inner.zero_blocks(blocks)

    def are_zero(self, blocks: Sequence[int]) -> bool:
        return self.inner.are_zero(blocks)
