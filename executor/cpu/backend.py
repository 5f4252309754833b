"""A CPU as a place for a model: what fits into memory, and which backend computes.

Native where the model is computed in bf16 and the machine can, else torch.  Refuses to know: files,
scheduling, the other devices.
"""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import structlog
import torch
from torch import Tensor

from executor.backend import Backend
from executor.model.config import ModelConfig
from executor.model.errors import ModelError
from executor.model.rope import frequencies
from executor.model.weights import OuterWeights
from executor.numerics import Numerics

from . import machine
from .kv import BLOCK_TOKENS, make_kv
from .linear import can_pack
from .native.build import Absent, library
from .native.ops import make_native_ops, unsupported
from .plan import Shape
from .torch_ops import TorchOps

KV_BYTES_DEFAULT: Final = 1 << 30
KV_SEQUENCES_MAX: Final = 64  # by default no more than this many full contexts
MEMORY_MARGIN: Final = 1.25  # a tied table is kept twice, as rows and as the head's strips
WARM_TOKENS: Final = 128

_log = structlog.get_logger()


def cannot_round(
    config: ModelConfig,
    dtype: torch.dtype,
    kernels: ctypes.CDLL | Absent,
    *,
    multiplies_bytes: bool,
) -> str | None:
    """Why this model's products cannot be of 8 bits on this machine, or None."""
    if dtype is not torch.bfloat16:
        return f"it rounds a model computed in bfloat16, and this one is in {dtype}"
    if isinstance(kernels, Absent):
        return f"it needs the native kernels ({kernels.reason})"
    if not multiplies_bytes:
        return "the processor does not multiply bytes (AVX512-VNNI)"
    return unsupported(config)


@dataclass(frozen=True, slots=True)
class CpuDevice:
    """A `device.Device`."""

    numerics: Numerics

    @property
    def kind(self) -> str:
        return "cpu"

    @property
    def name(self) -> str:
        return machine.cpu_name()

    @property
    def dtype(self) -> torch.dtype:
        """By rule, not by a measurement at start: on a busy machine two starts would disagree, and the
        same model would answer differently after a restart."""
        return torch.bfloat16 if machine.has_bf16() else torch.float32

    @property
    def block_tokens(self) -> int:
        return BLOCK_TOKENS

    @property
    def warm_tokens(self) -> int:
        return WARM_TOKENS

    def check(self, config: ModelConfig, dtype: torch.dtype) -> None:
        if self.numerics is Numerics.INT8:
            why = cannot_round(config, dtype, library(), multiplies_bytes=machine.has_vnni())
            if why is not None:
                raise ModelError(f'numerics "int8" cannot be used: {why}; set numerics = "fast"')
        needed = int(config.parameters * dtype.itemsize * MEMORY_MARGIN)
        free = machine.available_bytes()
        if free is not None and needed > free:
            raise ModelError(
                f"the model needs about {needed >> 20} MiB and {free >> 20} MiB are free;"
                " free memory, or serve a smaller model"
            )

    def kv_blocks(
        self, config: ModelConfig, dtype: torch.dtype, context_tokens: int, kv_bytes: int | None
    ) -> int:
        each = config.kv_bytes_per_token(dtype.itemsize) * BLOCK_TOKENS
        free = machine.available_bytes()
        if kv_bytes is None:
            most = min(KV_BYTES_DEFAULT, KV_BYTES_DEFAULT if free is None else free // 4)
            return max(1, min(most // each, KV_SEQUENCES_MAX * -(-context_tokens // BLOCK_TOKENS)))
        if free is not None and kv_bytes > free:
            raise ModelError(
                f"kv_memory of {kv_bytes >> 20} MiB exceeds the {free >> 20} MiB that are free"
            )
        return kv_bytes // each

    def backend(
        self, config: ModelConfig, outer: OuterWeights, kv_blocks: int, context_tokens: int
    ) -> Backend[Any]:
        dtype = outer.embedding.dtype
        each = tuple(
            frequencies(rope, config.head_dim, outer.rope_divisors) for rope in config.ropes
        )
        if dtype is torch.bfloat16:
            kernels = library()
            why = kernels.reason if isinstance(kernels, Absent) else unsupported(config)
            if not isinstance(kernels, Absent) and why is None:
                return make_native_ops(
                    config,
                    kernels,
                    outer.embedding,
                    each,
                    kv_blocks=kv_blocks,
                    context_tokens=context_tokens,
                    threads=torch.get_num_threads(),
                    numerics=self.numerics,
                )
            _log.warning("native_kernels_absent", reason=why)
        return TorchOps(
            config=config,
            shape=Shape(
                kv_heads=config.kv_heads,
                group=config.heads // config.kv_heads,
                dtype=dtype,
                frequencies=each,
                attention_factors=tuple(rope.attention_factor for rope in config.ropes),
                windows=tuple({config.kind(layer).window for layer in range(config.layers)}),
                invariant=self.numerics is Numerics.INVARIANT,
            ),
            embedding=outer.embedding,
            kv=make_kv(config.layers, config.kv_heads, config.head_dim, kv_blocks, dtype),
            pack=can_pack(dtype),
        )

    def put(self, weight: Tensor) -> Tensor:
        return weight

    def failures(self, doing: str) -> AbstractContextManager[None]:
        """A failure here is a mistake of ours, and ends the process as one."""
        return nullcontext()
