"""A GPU as a place for a model: why it cannot be one, what fits onto it, and the backend on it.

Triton is imported only by who chooses a GPU: `refusal` asks for the kernels last, `backend` makes
them.  Refuses to know: files, scheduling, the other devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import structlog
import torch
from torch import Tensor

from executor.backend import Backend
from executor.batch import StepBounds
from executor.failure import where
from executor.model.config import ModelConfig
from executor.model.errors import ModelError
from executor.model.rope import frequencies
from executor.model.weights import OuterWeights

from . import device, memory
from .places import BLOCK_TOKENS

_log = structlog.get_logger()


def refusal(config: ModelConfig, *, invariant: bool) -> str | None:
    """Why this model cannot be served on a GPU of this machine as asked, or None."""
    if invariant:
        return 'numerics = "invariant" is offered on the CPU only; expected "fast"'
    try:
        if (why := device.reason_absent()) is not None:
            return why
        from .ops import unsupported
    except (ImportError, RuntimeError) as broken:  # a driver, or a Triton, that is there and fails
        return f"the GPU cannot be asked ({type(broken).__name__}); check its driver and Triton"
    if (why := unsupported(config)) is not None:
        return f"the GPU kernels do not fit this model: {why}"
    return None


def find_gpu(bounds: StepBounds) -> CudaDevice:
    """The current one, where `refusal` had nothing to say."""
    with failures_named("being asked for its memory"):
        return CudaDevice(
            device=torch.device("cuda"),
            name=torch.cuda.get_device_name(),
            free_bytes=device.free_bytes(),
            bounds=bounds,
        )


@contextmanager
def failures_named(doing: str) -> Iterator[None]:
    """A driver, a compiler or a card that fails is the machine's fault, and the CPU still serves.
    Named by kind: what a library says may be long and is not ours to vouch for."""
    try:
        yield
    except ModelError:
        raise
    except Exception as failure:
        kind = type(failure).__name__
        _log.error("gpu_failed", doing=doing, kind=kind, at=where(failure))
        raise ModelError(
            f'the GPU failed while {doing} ({kind}); set device = "cpu" to serve without it'
        ) from failure


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """A `device.Device`.  `free_bytes`: before anything of the model is there."""

    device: torch.device
    name: str
    free_bytes: int
    bounds: StepBounds

    @property
    def kind(self) -> str:
        return "cuda"

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16

    @property
    def block_tokens(self) -> int:
        return BLOCK_TOKENS

    @property
    def warm_tokens(self) -> int:
        """The largest chunk: what it needs stays reserved, and what cannot be had is known at start."""
        return self.bounds.prompt_tokens

    def check(self, config: ModelConfig, dtype: torch.dtype) -> None:
        if self._blocks_that_fit(config, dtype) < 1:
            needed = memory.fixed_bytes(config, dtype.itemsize, self.bounds)
            needed += config.kv_bytes_per_token(dtype.itemsize) * BLOCK_TOKENS
            raise ModelError(
                f"the model needs about {int(needed / (1 - memory.MARGIN)) >> 20} MiB and the GPU has"
                f" {self.free_bytes >> 20} MiB free; free memory there, serve a smaller model,"
                ' or set device = "cpu"'
            )

    def kv_blocks(
        self, config: ModelConfig, dtype: torch.dtype, context_tokens: int, kv_bytes: int | None
    ) -> int:
        """By default all that is left, but no more than so many sequences of full context can use."""
        fit = self._blocks_that_fit(config, dtype)
        if kv_bytes is None:
            return max(1, min(fit, self.bounds.rows * -(-context_tokens // BLOCK_TOKENS)))
        each = config.kv_bytes_per_token(dtype.itemsize) * BLOCK_TOKENS
        if kv_bytes // each > fit:
            raise ModelError(
                f"kv_memory of {kv_bytes >> 20} MiB exceeds the {fit * each >> 20} MiB that the GPU has"
                ' beside the model; lower it, or set it to "auto"'
            )
        return kv_bytes // each

    def backend(
        self, config: ModelConfig, outer: OuterWeights, kv_blocks: int, context_tokens: int
    ) -> Backend[Any]:
        from .ops import make_backend

        return make_backend(
            config,
            outer.embedding,
            [frequencies(rope, config.head_dim, outer.rope_divisors) for rope in config.ropes],
            device=self.device,
            kv_blocks=kv_blocks,
            context_tokens=context_tokens,
            tokens_max=self.bounds.tokens,
            rows_max=self.bounds.rows,
        )

    def put(self, weight: Tensor) -> Tensor:
        return weight.to(self.device)

    def failures(self, doing: str) -> AbstractContextManager[None]:
        return failures_named(doing)

    def _blocks_that_fit(self, config: ModelConfig, dtype: torch.dtype) -> int:
        return memory.kv_blocks_that_fit(config, dtype.itemsize, self.free_bytes, self.bounds)
