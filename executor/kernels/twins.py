"""Attention in plain torch, row by row: the specification of `attention.py` and `merge.py`.  The other
kernels' twins stand beside them."""

from __future__ import annotations

import torch
from torch import Tensor

from .places import Places


def attend_twin(
    queries: Tensor, kv: Tensor, places: Places, *, scale: float, window: int | None
) -> Tensor:
    _, kv_heads, block_tokens, head_dim = kv.shape
    kv_heads //= 2
    out = torch.zeros_like(queries)
    starts = places.query_starts.tolist()
    for row, context in enumerate(places.contexts.tolist()):
        begin, end = starts[row], starts[row + 1]
        first = int(places.table_starts[row])
        blocks = places.tables[first : first + -(-context // block_tokens)].long()
        both = kv[blocks].float().transpose(0, 1).reshape(2, kv_heads, -1, head_dim)
        keys, values = both[0, :, :context], both[1, :, :context]
        mine = queries[begin:end].float().view(end - begin, kv_heads, -1, head_dim)
        scores = torch.einsum("qhgd,hkd->hgqk", mine, keys) * scale
        at = torch.arange(context, device=kv.device)
        position = torch.arange(context - (end - begin), context, device=kv.device).unsqueeze(1)
        seen = at <= position
        if window is not None:
            seen &= at > position - window
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        mixed = torch.einsum("hgqk,hkd->qhgd", weights, values)
        out[begin:end] = mixed.reshape(end - begin, -1).to(out.dtype)
    return out


def merge_twin(parts: Tensor, weights: Tensor) -> Tensor:
    """(…, splits, head_dim) and (…, splits) → (…, head_dim); parts of weight −∞ may hold anything."""
    shares = torch.softmax(weights * 0.6931471805599453, -1).unsqueeze(-1)
    return (shares * parts.masked_fill(shares == 0, 0.0)).sum(-2)
