"""One weight for products that round what they multiply to 8 bits: `numerics = "int8"`.

Two layouts, and which of them wins at how many rows is measured when a model is loaded: the file's own
4-bit blocks, read exactly, and bytes on one grid a column, which any weight has.  Not kept: bf16.
Refuses to know: whether the processor multiplies bytes; whoever makes one has asked.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

from executor.model.source import QuantBlocks

from .linear import LADDER, Space, aligned_bytes, packs_nibbles

GROUP = 32  # activations that share a scale
ROUNDS = 5


@dataclass(slots=True)
class RoundedLinear:
    """`few_rows`: up to so many the file's blocks are read."""

    library: ctypes.CDLL
    space: Space
    width_in: int
    width_out: int
    columns: Tensor
    nibbles: Tensor | None
    bias: Tensor | None  # float32
    wide: bool  # float32 results
    work_bytes: int  # of each row, rounded
    few_rows: int = 0

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
    ) -> RoundedLinear:
        """`weight` (out, in) bfloat16, in a multiple of 32."""
        width_out, width_in = weight.shape
        assert width_in % GROUP == 0, width_in
        weight = weight.contiguous()
        columns = aligned_bytes(library.lockgate_packed_bytes_column(width_out, width_in))
        library.lockgate_pack_column(weight.data_ptr(), width_out, width_in, columns.data_ptr())
        nibbles = None
        if blocks is not None and blocks.kind != "q8_0" and packs_nibbles(blocks):
            data = blocks.data.contiguous()  # by name: a copy must outlive the call
            nibbles = aligned_bytes(library.lockgate_packed_bytes_nibbles(width_out, width_in))
            library.lockgate_pack_nibbles(
                data.data_ptr(), width_out, width_in, blocks.kind == "q4_1", nibbles.data_ptr()
            )
        return cls(
            library=library,
            space=space,
            width_in=width_in,
            width_out=width_out,
            columns=columns,
            nibbles=nibbles,
            bias=None if bias is None else bias.float(),
            wide=wide,
            work_bytes=library.lockgate_rounded_bytes(1, width_in),
        )

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        return self.by_nibbles(x, rows) if self._few(rows) else self.by_columns(x, rows)

    def _few(self, rows: int) -> bool:
        return 0 < rows <= self.few_rows

    def by_columns(self, x: Tensor, rows: int) -> Tensor:
        return self._run(self.library.lockgate_linear_column, self.columns, x, rows)

    def by_nibbles(self, x: Tensor, rows: int) -> Tensor:
        assert self.nibbles is not None
        return self._run(self.library.lockgate_linear_nibbles, self.nibbles, x, rows)

    def read_bytes(self, rows: int) -> int:
        """Of the layout that a product of so many rows reads."""
        few = self.nibbles if self._few(rows) else None
        return self.columns.nbytes if few is None else few.nbytes

    def _run(self, product: Callable[..., None], packed: Tensor, x: Tensor, rows: int) -> Tensor:
        dtype = torch.float32 if self.wide else torch.bfloat16
        out = self.space.take("wide" if self.wide else "linear", rows, self.width_out, dtype)
        work = self.space.work(rows * self.work_bytes // 4)
        product(
            x.data_ptr(),
            rows,
            self.width_in,
            self.width_out,
            packed.data_ptr(),
            None if self.bias is None else self.bias.data_ptr(),
            out.data_ptr(),
            self.wide,
            work.data_ptr(),
        )
        return out


def choose_rounded(linears: Sequence[RoundedLinear], seconds: Callable[[], float]) -> None:
    """Measure both layouts over these weights of one shape, all in turn so that they come from memory as
    in a step, and set `few_rows` of all."""
    able = [linear for linear in linears if linear.nibbles is not None]

    def nibbles_win(rows: int) -> bool:
        x = torch.ones(rows, linears[0].width_in, dtype=torch.bfloat16)
        times: tuple[list[float], list[float]] = [], []
        for _ in range(ROUNDS):  # in turn, so that a busy moment falls on both
            for product, taken in zip(
                (RoundedLinear.by_nibbles, RoundedLinear.by_columns), times, strict=True
            ):
                begun = seconds()
                for linear in able:
                    product(linear, x, rows)
                taken.append(seconds() - begun)
        return min(times[0]) < min(times[1])

    few_rows = max(takewhile(nibbles_win, LADDER), default=0) if able else 0
    for linear in able:
        linear.few_rows = few_rows
