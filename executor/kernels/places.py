"""Where a step's tokens belong, as the kernels read it: ragged rows, tokens laid end to end.

All int32 on the device, views of one buffer that is copied once a step (`step.py`).  Source: the
indptr form of FlashInfer; block tables lie end to end too, so that a long row costs a short one nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

BLOCK_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Tiles:
    """Queries that one program takes: those of `rows[i]` from its `firsts[i]`-th new token on, as
    many as fit.  A row of −1 is a recording's padding.  `splits` > 1: that many programs share the
    keys of a tile, none with fewer than `keys_min`."""

    rows: Tensor  # (tiles,)
    firsts: Tensor  # (tiles,)
    size: int  # rows of a program, a query head each
    queries_max: int  # of a tile; 1: decodes
    splits: int
    keys_min: int


@dataclass(frozen=True, slots=True)
class Places:
    """`query_starts` (rows + 1,): where a row's tokens begin; `contexts` (rows,): its keys, the new
    ones included; its blocks are `tables[table_starts[row] …]`."""

    positions: Tensor  # (tokens,)
    rows: Tensor  # (tokens,): whose a token is, −1 nobody's
    query_starts: Tensor
    contexts: Tensor
    table_starts: Tensor  # (rows,)
    tables: Tensor
