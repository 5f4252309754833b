"""The operations that a decoder is made of: the seam between its layer loop and a device.

`executor.decoder` owns the order of operations and knows every architecture; a backend owns memory
layouts, kernels and how rows attend, and knows none.  Behind this stand `cpu.torch_ops` (plain
torch, the specification of the others), `cpu.native_ops` (C++ for x86) and `kernels.ops` (Triton).

The residual stream `x` is (tokens, hidden), in the dtype that `embed` returned (float32 on CPUs).
What flows between the linears is in the model's dtype.  A backend may pad the token dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

    from executor.batch import Batch
    from executor.choice import Ask, Choice
    from executor.model.config import LayerKind
    from executor.model.source import QuantBlocks
    from executor.model.weights import LayerWeights


class Linear(Protocol):
    """A weight, laid out for the kernels that will read it, and its bias if it has one."""

    def __call__(self, x: Tensor) -> Tensor:
        """(rows, in) → (rows, out)."""
        ...


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer, ready to run.  `qkv` gives queries, keys, values side by side; `gate_up` gate, then
    up.  The `after` norms (Gemma) apply to what a block adds to the stream, None elsewhere; `q_norm`
    and `k_norm` (head_dim,) to each head before its rotation."""

    number: int
    kind: LayerKind
    attention_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Linear
    after_attention: Tensor | None
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    after_mlp: Tensor | None


class Step(Protocol):
    """A batch as tensors; what else a backend keeps in it is its own."""

    @property
    def sampled(self) -> Tensor:
        """Token indexes whose logits are wanted, in row order; perhaps padded at the end."""
        ...

    @property
    def wanted(self) -> int:
        """How many of `sampled` are real."""
        ...


S = TypeVar("S", bound=Step)


class Backend(Protocol[S]):
    """One model's memory and kernels on one device.  Not thread-safe."""

    @property
    def kv_blocks(self) -> int: ...

    @property
    def block_tokens(self) -> int: ...

    def layer(self, number: int, weights: LayerWeights) -> Layer:
        """Lay out one layer's weights; the originals may go."""
        ...

    def head(self, weight: Tensor, blocks: QuantBlocks | None = None) -> Linear:
        """(vocab_size, hidden) → the last linear; its results may be float32."""
        ...

    @property
    def wants_blocks(self) -> bool:
        """Whether `layer` and `head` have a use for the quantised blocks of a file beside its weights."""
        ...

    def warm(self, decode: Callable[[int], None]) -> None:
        """Measure and compile whatever there is, before anybody waits for it.  `decode` runs a step of
        so many rows of one token each."""
        ...

    def step(self, batch: Batch) -> S: ...

    def run(self, step: S, forward: Callable[[S], Tensor]) -> Tensor:
        """`forward(step)`, or a recording of it; float32 logits of the `wanted` rows, the caller's
        to edit until the next run."""
        ...

    def embed(self, step: S) -> Tensor:
        """Rows of the embedding: the residual stream before the first layer."""
        ...

    def add_norm(
        self, x: Tensor, delta: Tensor | None, after: Tensor | None, weight: Tensor
    ) -> Tensor:
        """Add to the stream: x += delta (normed by `after` first, where given), in place; then RMS-norm of x by
        `weight`, in the model's dtype."""
        ...

    def attend(self, step: S, layer: Layer, qkv: Tensor) -> Tensor:
        """Norm and rotate queries and keys, store keys and values, attend: (tokens, heads · head_dim)."""
        ...

    def gate(self, both: Tensor) -> Tensor:
        """(tokens, 2 · inner) → activation(gate) · up."""
        ...

    def sample(self, logits: Tensor, asks: Sequence[Ask]) -> list[Choice]:
        """What `executor.sampler.sample` would choose."""
        ...

    def zero_blocks(self, blocks: Sequence[int]) -> None: ...

    def are_zero(self, blocks: Sequence[int]) -> bool: ...
