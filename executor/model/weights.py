"""The weights of a Llama in the order a step uses them, each checked for shape and for numbers that
are none, fused where one multiplication does for several (q, k and v; gate and up).

Layers come one at a time, so that a backend can repack each and let the original go.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import ModelError
from .source import ModelSource


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Norms in float32 (hidden,) or (head_dim,); matrices (out, in) in the model's dtype, biases
    (out,) likewise.  q and k half-split.  None: this architecture has no such thing."""

    attention_norm: Tensor
    qkv: Tensor
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor
    qkv_bias: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    output_bias: Tensor | None = None
    after_attention: Tensor | None = None
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    after_mlp: Tensor | None = None


@dataclass(frozen=True, slots=True)
class OuterWeights:
    """`head` is `embedding` itself where they are tied."""

    embedding: Tensor
    norm: Tensor
    head: Tensor
    rope_divisors: Tensor | None


def outer_weights(source: ModelSource, dtype: torch.dtype) -> OuterWeights:
    config = source.config
    table = (config.vocab_size, config.hidden_size)
    embedding = _read(source, "model.embed_tokens.weight", table, dtype)
    return OuterWeights(
        embedding=embedding,
        norm=_read(source, "model.norm.weight", (config.hidden_size,), torch.float32),
        head=embedding if config.tied else _read(source, "lm_head.weight", table, dtype),
        rope_divisors=source.rope_divisors(),
    )


def layer_weights(source: ModelSource, dtype: torch.dtype) -> Iterator[LayerWeights]:
    config = source.config
    hidden, inner = config.hidden_size, config.intermediate_size
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    for number in range(config.layers):

        def read(name: str, *shape: int, at: int = number, kind: torch.dtype = dtype) -> Tensor:
            return _read(source, f"model.layers.{at}.{name}.weight", shape, kind)

        yield LayerWeights(
            attention_norm=read("input_layernorm", hidden, kind=torch.float32),
            qkv=torch.cat(
                (
                    read("self_attn.q_proj", q, hidden),
                    read("self_attn.k_proj", kv, hidden),
                    read("self_attn.v_proj", kv, hidden),
                )
            ),
            output=read("self_attn.o_proj", hidden, q),
            mlp_norm=read("post_attention_layernorm", hidden, kind=torch.float32),
            gate_up=torch.cat(
                (
                    read("mlp.gate_proj", inner, hidden),
                    read("mlp.up_proj", inner, hidden),
                )
            ),
            down=read("mlp.down_proj", hidden, inner),
        )


def _read(source: ModelSource, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    found = source.read(name, shape).to(dtype)
    if not bool(torch.isfinite(found.sum(dtype=torch.float32))):  # cheaper than asking each
        raise ModelError(
            f"tensor {name!r} holds infinities or not-a-numbers in {dtype}; fetch it anew"
        )
    return found
