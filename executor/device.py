"""Where a model is placed: what loading asks of a device, and the choice among them.

Behind this stand `cpu.backend` and `kernels.backend`.  Refuses to know: files, kernels, layouts.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from executor.cpu.backend import CpuDevice
from executor.kernels.backend import find_gpu, refusal
from executor.model.errors import ModelError
from executor.numerics import Numerics

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from executor.backend import Backend
    from executor.batch import StepBounds
    from executor.model.config import ModelConfig
    from executor.model.weights import OuterWeights

_log = structlog.get_logger()


class Wanted(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Device(Protocol):
    @property
    def kind(self) -> str:
        """`cpu` or `cuda`, for the card; `name` is the maker's."""
        ...

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> torch.dtype:
        """What a model is computed in, if nobody says."""
        ...

    @property
    def block_tokens(self) -> int: ...

    @property
    def warm_tokens(self) -> int:
        """Of the prompt that is run before the first request."""
        ...

    def check(self, config: ModelConfig, dtype: torch.dtype) -> None:
        """ModelError where the model surely has no room; asked before its weights are read."""
        ...

    def kv_blocks(
        self, config: ModelConfig, dtype: torch.dtype, context_tokens: int, kv_bytes: int | None
    ) -> int:
        """At least one.  `kv_bytes`: what they may take; None: what seems right."""
        ...

    def backend(
        self, config: ModelConfig, outer: OuterWeights, kv_blocks: int, context_tokens: int
    ) -> Backend[Any]:
        """In the dtype of the embedding."""
        ...

    def put(self, weight: Tensor) -> Tensor:
        """One that the decoder itself holds."""
        ...

    def failures(self, doing: str) -> AbstractContextManager[None]:
        """Around whatever the device does for a model before it serves."""
        ...


def choose(
    wanted: Wanted, config: ModelConfig, bounds: StepBounds, *, numerics: Numerics
) -> Device:
    """A GPU where there is one that can and nobody objects; said once, with the reason."""
    if wanted is Wanted.CPU:
        return CpuDevice(numerics)
    why = (
        'numerics = "int8" is offered on the CPU only; expected "fast"'
        if numerics is Numerics.INT8
        else refusal(config, invariant=numerics is Numerics.INVARIANT)
    )
    if why is not None and wanted is Wanted.CUDA:
        raise ModelError(f'device "cuda" cannot be used: {why}; or set device = "cpu"')
    chosen: Device = CpuDevice(numerics) if why is not None else find_gpu(bounds)
    _log.info("device", device=chosen.kind, name=chosen.name, reason=why or "the GPU can serve it")
    return chosen
