"""One layer's attention, asked through the backend's own `attend`, and the answer by the book: float64,
one query at a time, from keys and values read out of the paged memory by its described layout."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from executor.backend import Layer
from executor.batch import Batch, Row
from executor.cpu.native.ops import NativeOps, make_native_ops
from executor.model.config import LayerKind, ModelConfig, Rope
from executor.model.rope import frequencies
from executor.numerics import Numerics

BLOCK = 32
CONTEXT = 2048
THETA = 500.0


@dataclass(frozen=True, slots=True)
class Case:
    heads: int = 4
    kv_heads: int = 2
    d: int = 32
    window: int | None = None
    rope: bool = True
    norms: bool = False
    factor: float = 1.0  # of the rope
    scale: float | None = None


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def no_linear(x: Tensor) -> Tensor:
    raise AssertionError


@dataclass(frozen=True, slots=True)
class Bench:
    """A backend of one layer."""

    case: Case
    ops: NativeOps
    layer: Layer

    @classmethod
    def make(cls, kernels: ctypes.CDLL, case: Case, blocks: int, context: int = CONTEXT) -> Bench:
        rope = Rope(theta=THETA, attention_factor=case.factor)
        kind = LayerKind(rope=0 if case.rope else None, window=case.window)
        config = ModelConfig(
            vocab_size=8, hidden_size=32, intermediate_size=32, layers=1, heads=case.heads,
            kv_heads=case.kv_heads, head_dim=case.d, norm_eps=1e-5, ropes=(rope,),
            context_tokens=context, tied=True, kinds=(kind,), attention_scale=case.scale,
            qk_norm=case.norms,
        )  # fmt: skip
        embedding = torch.zeros(8, 32, dtype=torch.bfloat16)
        ropes = [frequencies(rope, case.d)]
        ops = make_native_ops(
            config, kernels, embedding, ropes, kv_blocks=blocks, context_tokens=context, threads=2,
            numerics=Numerics.INVARIANT,
        )  # fmt: skip
        flat = torch.ones(32)
        norm = (drawn(91, case.d), drawn(92, case.d)) if case.norms else (None, None)
        layer = Layer(
            number=0, kind=kind, attention_norm=flat, qkv=no_linear, q_norm=norm[0], k_norm=norm[1],
            output=no_linear, after_attention=None, mlp_norm=flat, gate_up=no_linear,
            down=no_linear, after_mlp=None,
        )  # fmt: skip
        return cls(case, ops, layer)

    @property
    def width(self) -> int:
        return (self.case.heads + 2 * self.case.kv_heads) * self.case.d

    def attend(self, rows: Sequence[tuple[int, int, Sequence[int]]], qkv: Tensor) -> Tensor:
        """Rows are (start, tokens, blocks); `qkv` those of all rows, end to end."""
        batch = Batch([Row([0] * count, start, blocks, True) for start, count, blocks in rows])
        step = self.ops.step(batch)
        assert step.tokens == len(qkv)
        return self.ops.attend(step, self.layer, qkv).clone()

    # The memory, by its description: keys [d / 2][32 tokens][2], values [16 pairs][d][2].

    def _block(self, block: int, kind: int) -> Tensor:
        """(kv_heads, numbers) of its keys (0) or values (1), as they lie."""
        memory = torch.from_numpy(self.ops.memory[0].view(np.int16)).view(torch.bfloat16)
        return memory[block].view(2, self.case.kv_heads, -1)[kind]

    def read(self, blocks: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Keys and values (kv_heads, tokens, d), in the order of `blocks`."""
        d = self.case.d
        keys = [self._block(at, 0).view(-1, d // 2, BLOCK, 2) for at in blocks]
        values = [self._block(at, 1).view(-1, BLOCK // 2, d, 2) for at in blocks]
        return (
            torch.cat([each.permute(0, 2, 1, 3).flatten(2) for each in keys], 1),
            torch.cat([each.permute(0, 1, 3, 2).flatten(1, 2) for each in values], 1),
        )

    def write(self, blocks: Sequence[int], keys: Tensor, values: Tensor) -> None:
        """(kv_heads, tokens, d) each, whole blocks."""
        d = self.case.d
        for at, block in enumerate(blocks):
            here = slice(at * BLOCK, (at + 1) * BLOCK)
            to = self._block(block, 0).view(-1, d // 2, BLOCK, 2)
            to.copy_(keys[:, here].reshape(-1, BLOCK, d // 2, 2).permute(0, 2, 1, 3))
            to = self._block(block, 1).view(-1, BLOCK // 2, d, 2)
            to.copy_(values[:, here].reshape(-1, BLOCK // 2, 2, d).permute(0, 1, 3, 2))

    def bits(self) -> Tensor:
        return torch.from_numpy(self.ops.memory[0].view(np.int16)).clone()

    # By the book

    def turned(self, heads: Tensor, start: int, norm: Tensor | None) -> Tensor:
        """(tokens, heads, d) normed and rotated, rounded where the torch backend rounds."""
        x = heads.float()
        if norm is not None:
            x = (
                (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * norm)
                .bfloat16()
                .float()
            )
        if not self.case.rope:
            return x.bfloat16()
        positions = torch.arange(start, start + len(x), dtype=torch.float32)
        turns = frequencies(Rope(theta=THETA), self.case.d)
        angles = torch.outer(positions, turns).unsqueeze(1).double()
        c, s = angles.cos() * self.case.factor, angles.sin() * self.case.factor
        a, b = x.double().chunk(2, -1)
        return torch.cat((a * c - b * s, b * c + a * s), -1).bfloat16()

    def expected(self, start: int, qkv: Tensor, blocks: Sequence[int]) -> tuple[Tensor, Tensor]:
        """What one row's tokens attend to, and by how much each number may be off.  From the memory
        as it is after the row's keys and values were stored."""
        case, count = self.case, len(qkv)
        group = case.heads // case.kv_heads
        queries = qkv.view(count, -1, case.d)[:, : case.heads]
        turned = self.turned(queries, start, self.layer.q_norm).double()
        keys, values = (each[:, : start + count].double() for each in self.read(blocks))
        positions = torch.arange(start, start + count).unsqueeze(1)
        at = torch.arange(start + count)
        hidden = at > positions
        if case.window is not None:
            hidden |= at <= positions - case.window
        scores = torch.einsum(
            "tkgd,kpd->tkgp", turned.view(count, case.kv_heads, group, case.d), keys
        ) * (case.d**-0.5 if case.scale is None else case.scale)
        scores = scores.masked_fill(hidden[:, None, None], float("-inf"))
        weights = torch.softmax(scores, -1)
        mixed = torch.einsum("tkgp,kpd->tkgd", weights, values)
        reach = torch.einsum("tkgp,kpd->tkgd", weights, values.abs())
        largest = scores.masked_fill(hidden[:, None, None], 0.0).abs().amax(-1, keepdim=True)
        # A query or key that rounds the other way at a tie, weights and results in bfloat16, scores
        # in float32.
        slack = reach * (2.0**-7 + largest * 2.0**-18) + values.abs().max() * 2.0**-9
        return mixed.reshape(count, -1), slack.reshape(count, -1)

    def expected_store(self, start: int, qkv: Tensor) -> tuple[Tensor, Tensor]:
        """(kv_heads, tokens, d) of a row's new keys and values."""
        case = self.case
        keys, values = torch.split(
            qkv.view(len(qkv), -1, case.d)[:, case.heads :], case.kv_heads, 1
        )
        turned = self.turned(keys, start, self.layer.k_norm)
        return turned.transpose(0, 1), values.transpose(0, 1)
