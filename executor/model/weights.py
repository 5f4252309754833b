"""The weights of a decoder in the order a step uses them, each checked for shape and for numbers that
are none, fused where one multiplication does for several (q, k and v; gate and up).

Layers come one at a time, so that a backend can repack each and let the original go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from .config import ModelConfig
from .errors import ModelError
from .source import ModelSource, QuantBlocks


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
    quantised: Mapping[str, QuantBlocks] = field(default_factory=dict)
    """The matrices again, by the names of their fields, where the file has all of one in blocks of one
    kind and the backend asked for them."""


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
        norm=_read(source, "model.norm.weight", (config.hidden_size,), torch.float32).mul(
            config.logit_scale
        ),
        head=embedding if config.tied else _read(source, "lm_head.weight", table, dtype),
        rope_divisors=source.rope_divisors(),
    )


def head_blocks(source: ModelSource) -> QuantBlocks | None:
    """The head as the file has it."""
    config = source.config
    name = "model.embed_tokens.weight" if config.tied else "lm_head.weight"
    return source.blocks(name, (config.vocab_size, config.hidden_size))


def embedding_scale(config: ModelConfig, dtype: torch.dtype) -> float:
    """What rows of the embedding, in `dtype`, are multiplied by."""
    if not config.embedding_scale_rounded:
        return config.embedding_scale
    return float(torch.tensor(config.embedding_scale, dtype=dtype))


_FUSED: Mapping[str, tuple[str, ...]] = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


def layer_weights(
    source: ModelSource, dtype: torch.dtype, *, blocks: bool = False
) -> Iterator[LayerWeights]:
    """`blocks`: matrices also as the file has them (`LayerWeights.quantised`)."""
    shapes = source.config.tensors
    for number in range(source.config.layers):
        prefix = f"model.layers.{number}."
        weights = _layer(source, dtype, shapes, prefix)
        yield replace(weights, quantised=_quantised(source, shapes, prefix)) if blocks else weights


def _quantised(
    source: ModelSource, shapes: Mapping[str, tuple[int, ...]], prefix: str
) -> dict[str, QuantBlocks]:
    found: dict[str, QuantBlocks] = {}
    for field_name, parts in _FUSED.items():
        names = [f"{prefix}{part}.weight" for part in parts]
        each = [source.blocks(name, shapes[name]) for name in names]
        present = [one for one in each if one is not None]
        if len(present) == len(each) and len({one.kind for one in present}) == 1:
            found[field_name] = QuantBlocks(
                present[0].kind, torch.cat([one.data for one in present])
            )
    return found


def _layer(
    source: ModelSource, dtype: torch.dtype, shapes: Mapping[str, tuple[int, ...]], prefix: str
) -> LayerWeights:
    config = source.config

    def read(name: str, kind: torch.dtype = dtype) -> Tensor:
        return _read(source, prefix + name, shapes[prefix + name], kind)

    def norm(name: str) -> Tensor:
        return read(f"{name}.weight", torch.float32)

    def fused(kind: str, *names: str) -> Tensor:
        return torch.cat([read(f"{name}.{kind}") for name in names])

    after, mlp_bias = config.after_norms, config.mlp_bias
    qkv, gate_up = _FUSED["qkv"], _FUSED["gate_up"]
    return LayerWeights(
        attention_norm=norm("input_layernorm"),
        qkv=fused("weight", *qkv),
        qkv_bias=fused("bias", *qkv) if config.qkv_bias else None,
        q_norm=norm("self_attn.q_norm") if config.qk_norm else None,
        k_norm=norm("self_attn.k_norm") if config.qk_norm else None,
        output=read("self_attn.o_proj.weight"),
        output_bias=read("self_attn.o_proj.bias") if config.output_bias else None,
        after_attention=norm("post_attention_layernorm") if after else None,
        mlp_norm=norm("pre_feedforward_layernorm" if after else "post_attention_layernorm"),
        gate_up=fused("weight", *gate_up),
        gate_up_bias=fused("bias", *gate_up) if mlp_bias else None,
        down=read("mlp.down_proj.weight"),
        down_bias=read("mlp.down_proj.bias") if mlp_bias else None,
        after_mlp=norm("post_feedforward_layernorm") if after else None,
    )


def _read(source: ModelSource, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    found = source.read(name, shape).to(dtype)
    if not bool(torch.isfinite(found.sum(dtype=torch.float32))):  # cheaper than asking each
        raise ModelError(
            f"tensor {name!r} holds infinities or not-a-numbers in {dtype}; fetch it anew"
        )
    return found
