"""`config.json` of a Hugging Face directory, as far as every family agrees on it: numbers within
bounds, and rope settings old and new.

Refuses to know: what one family does differently (`hf_families`).
Source: transformers' configuration classes and `modeling_rope_utils`, version 5.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import msgspec

from .config import ModelConfig, Rope, RopeKind
from .errors import ModelError

Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e12)]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]


class HfConfig(msgspec.Struct, frozen=True):
    """What changes an answer; unknown fields are ignored.  Where families' defaults differ,
    `hf_families` has filled them in before."""

    model_type: str
    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    vocab_size: Count
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    max_position_embeddings: Tokens = 2048
    rms_norm_eps: Positive = 1e-6
    rope_theta: Positive | None = 10_000.0
    rope_local_base_freq: Positive = 10_000.0
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: Positive | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    hidden_act: str | None = "silu"
    hidden_activation: str | None = None
    use_sliding_window: bool = False
    sliding_window: Tokens | None = None
    sliding_window_pattern: Count = 6
    max_window_layers: Annotated[int, msgspec.Meta(ge=0)] = 28
    layer_types: tuple[str, ...] | None = None
    no_rope_layers: tuple[int, ...] | None = None
    no_rope_layer_interval: Count = 4
    query_pre_attn_scalar: Positive = 256.0
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    use_bidirectional_attention: bool | str | None = None
    embedding_multiplier: Positive = 1.0
    attention_multiplier: Positive = 1.0
    residual_multiplier: Positive = 1.0
    logits_scaling: Positive = 1.0
    quantization_config: dict[str, Any] | None = None
    bos_token_id: int | None = None
    eos_token_id: int | tuple[int, ...] | None = None


class _HfRope(msgspec.Struct, frozen=True):
    rope_type: str | None = None
    type: str | None = None  # its name before transformers 4.43
    rope_theta: Positive | None = None
    factor: Positive | None = None
    low_freq_factor: Positive = 1.0
    high_freq_factor: Positive = 4.0
    original_max_position_embeddings: Tokens | None = None
    partial_rotary_factor: Positive | None = None
    beta_fast: Positive | None = None
    beta_slow: Positive | None = None
    truncate: bool = True
    attention_factor: Positive | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None


def refuse_what_changes_the_answer(raw: HfConfig) -> None:
    if raw.quantization_config is not None:
        raise ModelError(
            "quantised Hugging Face checkpoints are not supported; use the original weights or a GGUF file"
        )
    if raw.attn_logit_softcapping is not None or raw.final_logit_softcapping is not None:
        raise ModelError("soft-capped logits are not supported")
    if raw.use_bidirectional_attention:
        raise ModelError("bidirectional attention is not supported: it makes no text")


def base(raw: HfConfig) -> ModelConfig:
    """What all families share, with the one rope that most have."""
    if raw.head_dim is None and raw.hidden_size % raw.num_attention_heads:
        raise ModelError("hidden_size is no multiple of num_attention_heads and head_dim is absent")
    found = rope(raw, raw.rope_parameters or raw.rope_scaling or {}, raw.rope_theta)
    return ModelConfig(
        vocab_size=raw.vocab_size,
        hidden_size=raw.hidden_size,
        intermediate_size=raw.intermediate_size,
        layers=raw.num_hidden_layers,
        heads=raw.num_attention_heads,
        kv_heads=raw.num_key_value_heads or raw.num_attention_heads,
        head_dim=raw.head_dim or raw.hidden_size // raw.num_attention_heads,
        norm_eps=raw.rms_norm_eps,
        ropes=(found,),
        context_tokens=max(raw.max_position_embeddings, found.reach_tokens),
        tied=raw.tie_word_embeddings,
        qkv_bias=raw.attention_bias,
        output_bias=raw.attention_bias,
        mlp_bias=raw.mlp_bias,
    )


def rope(raw: HfConfig, settings: dict[str, Any], theta: float | None) -> Rope:
    """`rope_parameters` (transformers 5) holds theta too; beside `rope_scaling` stands `theta`.

    Dynamic NTK stretches only what is longer than `max_position_embeddings`, by a base that depends
    on the length of each sequence, so that keys in memory would have to be turned anew.  No sequence
    here is longer than that (it is `context_tokens`), and up to there it is the default rope."""
    found = msgspec.convert(settings, _HfRope)
    name = found.rope_type or found.type or "default"
    if name == "dynamic":
        name = "default"
    if name not in {"default", "linear", "llama3", "yarn"}:
        raise ModelError(
            f"rope kind {name!r:.40} is not supported; expected default, linear, dynamic, llama3, yarn"
        )
    if found.partial_rotary_factor not in {None, 1.0} or raw.partial_rotary_factor not in {
        None,
        1.0,
    }:
        raise ModelError("a partial rotary embedding is not supported")
    original = found.original_max_position_embeddings or raw.max_position_embeddings
    if name == "default":
        factor = 1.0
    elif found.factor is not None:
        factor = found.factor
    elif name == "yarn":
        factor = raw.max_position_embeddings / original
    else:
        raise ModelError(f"rope kind {name!r} without its factor; copy config.json anew")
    return Rope(
        kind=RopeKind(name),
        theta=found.rope_theta or theta or 10_000.0,
        factor=factor,
        low_freq_factor=found.low_freq_factor,
        high_freq_factor=found.high_freq_factor,
        original_context_tokens=original,
        beta_fast=found.beta_fast or 32.0,
        beta_slow=found.beta_slow or 1.0,
        truncate=found.truncate,
        attention_factor=_attention_factor(found, factor) if name == "yarn" else 1.0,
    )


def _attention_factor(found: _HfRope, factor: float) -> float:
    """YaRN's temperature, eq. 22; DeepSeek's form of it where both of its numbers are given."""
    if found.attention_factor is not None:
        return found.attention_factor
    if found.mscale and found.mscale_all_dim:
        return temperature(factor, found.mscale) / temperature(factor, found.mscale_all_dim)
    return temperature(factor)


def temperature(factor: float, scale: float = 1.0) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0
