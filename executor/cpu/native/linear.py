"""One weight in the layouts that its matrix products may read, and which of them wins at how many
rows: measured on this machine when a model is loaded, not a constant.

bf16 strips serve any number of rows.  Where the file has the weight in blocks of 4 or 8 bits, these are
kept as they are, too: a few rows then read 5 or 8.5 bits a weight instead of 16, and exactly the file's.
Where the processor has matrix tiles (AMX), many rows go through them, over the same strips.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import torch
from torch import Tensor

from executor.model.source import QuantBlocks

LADDER = (1, 2, 4, 8, 16, 32, 64)  # rows
TILE_LADDER = (8, 16, 32, 64, 256)
NEVER = 1 << 62
QUANT = 32  # weights a block
Q4_0_SCALE_MAX = 8192.0
TILE_DEPTH = 32  # of k
AGREEMENT = 1e-2  # both round to bf16
_LINE = 64


@dataclass(slots=True)
class Space:
    """Buffers for results, one a purpose, grown to the largest step and kept."""

    _kept: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    _views: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    def take(
        self, purpose: str, rows: int, width: int, dtype: torch.dtype = torch.bfloat16
    ) -> Tensor:
        """(rows, width), with whatever was in it."""
        key = purpose, width
        view = self._views.get(key)
        if view is not None and len(view) == rows:
            return view
        kept = self._kept.get(key)
        if kept is None or len(kept) < rows:
            kept = self._kept[key] = torch.empty(-(-rows // 64) * 64, width, dtype=dtype)
        view = self._views[key] = kept[:rows]
        return view

    def work(self, numbers: int) -> Tensor:
        return self.take("work", max(1, -(-numbers // 1024)), 1024, torch.float32)


def aligned_bytes(count: int) -> Tensor:
    raw = torch.empty(count + _LINE, dtype=torch.uint8)
    skip = -raw.data_ptr() % _LINE
    return raw[skip : skip + count]


Product = Callable[["SwitchingLinear", Tensor, int], Tensor]


@dataclass(slots=True)
class SwitchingLinear:
    """`few_rows`: up to so many the file's own blocks win, from `many_rows` on the matrix tiles."""

    library: ctypes.CDLL
    space: Space
    width_in: int
    width_out: int
    strips: Tensor
    blocks: Tensor | None
    bits: int  # of a weight in `blocks`
    bias: Tensor | None  # float32
    wide: bool  # float32 results
    few_rows: int = 0
    many_rows: int = NEVER

    @classmethod
    def make(
        cls,
        library: ctypes.CDLL,
        space: Space,
        weight: Tensor,
        bias: Tensor | None = None,
        blocks: QuantBlocks | None = None,
        *,
        wide: bool = False,
    ) -> SwitchingLinear:
        """`weight` (out, in) bfloat16, in even."""
        width_out, width_in = weight.shape
        weight = weight.contiguous()
        strips = aligned_bytes(library.lockgate_packed_bytes_bf16(width_out, width_in))
        library.lockgate_pack_bf16(weight.data_ptr(), width_out, width_in, strips.data_ptr())
        packed, bits = None, 0
        if blocks is not None and packs_nibbles(blocks):
            bits = 8 if blocks.kind == "q8_0" else 4
            data = blocks.data.contiguous()  # by name: a copy must outlive the call
            if bits == 8:
                packed = aligned_bytes(library.lockgate_packed_bytes_int8(width_out, width_in))
                library.lockgate_pack_int8(data.data_ptr(), width_out, width_in, packed.data_ptr())
            else:
                packed = aligned_bytes(library.lockgate_packed_bytes_int4(width_out, width_in))
                offset = blocks.kind == "q4_1"
                library.lockgate_pack_int4(
                    data.data_ptr(), width_out, width_in, offset, packed.data_ptr()
                )
        return cls(
            library=library,
            space=space,
            width_in=width_in,
            width_out=width_out,
            strips=strips,
            blocks=packed,
            bits=bits,
            bias=None if bias is None else bias.float(),
            wide=wide,
        )

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        if 0 < rows <= self.few_rows:
            return self.by_blocks(x, rows)
        return self.by_tiles(x, rows) if rows >= self.many_rows else self.by_strips(x, rows)

    def by_strips(self, x: Tensor, rows: int) -> Tensor:
        return self._by_bf16(self.library.lockgate_linear_bf16, x, rows)

    def by_tiles(self, x: Tensor, rows: int) -> Tensor:
        return self._by_bf16(self.library.lockgate_linear_amx, x, rows)

    def _by_bf16(self, product: Callable[..., None], x: Tensor, rows: int) -> Tensor:
        out = self._out(rows)
        product(
            x.data_ptr(),
            rows,
            self.width_in,
            self.width_out,
            self.strips.data_ptr(),
            None if self.bias is None else self.bias.data_ptr(),
            out.data_ptr(),
            self.wide,
        )
        return out

    def by_blocks(self, x: Tensor, rows: int) -> Tensor:
        assert self.blocks is not None
        out = self._out(rows)
        arguments = (
            x.data_ptr(),
            rows,
            self.width_in,
            self.width_out,
            self.blocks.data_ptr(),
            None if self.bias is None else self.bias.data_ptr(),
            out.data_ptr(),
            self.wide,
        )
        if self.bits == 8:
            self.library.lockgate_linear_int8(*arguments)
        else:
            sums = self.space.work(rows * (self.width_in // QUANT))
            self.library.lockgate_linear_int4(*arguments, sums.data_ptr())
        return out

    def _out(self, rows: int) -> Tensor:
        dtype = torch.float32 if self.wide else torch.bfloat16
        return self.space.take("wide" if self.wide else "linear", rows, self.width_out, dtype)


def packs_nibbles(blocks: QuantBlocks) -> bool:
    """q4_0 is packed with an offset of −8 · d, which must be a float16."""
    scales = blocks.data[..., :2].contiguous().view(torch.float16)
    return blocks.kind != "q4_0" or bool(scales.abs().max() < Q4_0_SCALE_MAX)


def choose(
    linears: Sequence[SwitchingLinear],
    seconds: Callable[[], float],
    *,
    tiles: bool,
    rounds: int = 5,
) -> None:
    """Measure the layouts over these weights of one shape, all in turn so that they come from memory as
    in a step, and set `few_rows` and `many_rows` of all."""
    width = linears[0].width_in

    def wins(able: Sequence[SwitchingLinear], rows: int, ours: Product, theirs: Product) -> bool:
        x = torch.ones(rows, width, dtype=torch.bfloat16)
        times: tuple[list[float], list[float]] = [], []
        for _ in range(rounds):  # in turn, so that a busy moment falls on both
            for product, taken in zip((ours, theirs), times, strict=True):
                begun = seconds()
                for linear in able:
                    product(linear, x, rows)
                taken.append(seconds() - begun)
        return min(times[0]) < min(times[1])

    by_blocks, by_strips = SwitchingLinear.by_blocks, SwitchingLinear.by_strips
    able = [linear for linear in linears if linear.blocks is not None]
    won = takewhile(lambda rows: wins(able, rows, by_blocks, by_strips), LADDER) if able else ()
    few_rows = max(won, default=0)
    many_rows = NEVER
    if tiles and width % TILE_DEPTH == 0 and _agree(linears[0]):
        for rows in TILE_LADDER:
            if wins(linears, rows, SwitchingLinear.by_tiles, by_strips):
                many_rows = rows
                break
    for linear in linears:
        linear.few_rows = few_rows if linear.blocks is not None else 0
        linear.many_rows = max(many_rows, few_rows + 1)


def _agree(linear: SwitchingLinear) -> bool:
    """Whether the tiles of this processor multiply as its vectors do: we trust what we have compared."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(33, linear.width_in, generator=random).bfloat16()
    ours = linear.by_tiles(x, len(x)).clone()  # both results share a buffer
    theirs = linear.by_strips(x, len(x)).float()
    return bool((ours.float() - theirs).norm() <= AGREEMENT * theirs.norm())
