"""What a Llama is made of, from `config.json` or from GGUF metadata, checked before a byte of
weights is read.  Every number has a bound, so that a hostile file cannot ask for absurd memory.

Refuses to know: tensors, devices.  Other architectures, and Llamas with features that would change
the answer if ignored (biases, experts, quantised checkpoints, other rope kinds), are refused by name.
Source: transformers' LlamaConfig; the GGUF specification's `llama.*` keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from .errors import ModelError

Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e12)]


class RopeKind(StrEnum):
    DEFAULT = "default"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    DIVISORS = "divisors"  # GGUF: one divisor a frequency, in the tensor `rope_freqs.weight`


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding.  `factor` is linear's and llama3's; the last three llama3's."""

    kind: RopeKind = RopeKind.DEFAULT
    theta: float = 10_000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_tokens: int = 8192


class Activation(StrEnum):
    """Of the gate of the feed-forward block."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What differs between the layers of one model.  `rope` indexes the model's ropes, None: no
    rotation (NoPE).  `window`: how many keys a query sees, itself included; None: all before it."""

    rope: int | None = 0
    window: int | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of the Llama family.  Norm weights are what the norm multiplies by: where a model
    stores w − 1 (Gemma), the loader adds the one.  `attention_scale` None: head_dim ** −0.5."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    ropes: tuple[Rope, ...]
    context_tokens: int
    tied: bool
    kinds: tuple[LayerKind, ...] = ()  # one a layer; empty: all alike
    activation: Activation = Activation.SILU
    attention_scale: float | None = None
    embedding_scale: float = 1.0
    qk_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    after_norms: bool = False

    def kind(self, layer: int) -> LayerKind:
        return self.kinds[layer] if self.kinds else LayerKind()

    @property
    def score_scale(self) -> float:
        """What a query times a key is multiplied by."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    def __post_init__(self) -> None:
        bounds = {
            "vocab_size": (self.vocab_size, 1 << 20),
            "hidden_size": (self.hidden_size, 1 << 16),
            "intermediate_size": (self.intermediate_size, 1 << 18),
            "layers": (self.layers, 512),
            "heads": (self.heads, 1024),
            "kv_heads": (self.kv_heads, 1024),
            "head_dim": (self.head_dim, 1024),
            "context_tokens": (self.context_tokens, 1 << 24),
        }
        for name, (value, most) in bounds.items():
            if not 1 <= value <= most:
                raise ModelError(f"the model's {name} is {value}; expected 1 to {most}")
        if self.heads % self.kv_heads:
            raise ModelError(
                f"{self.heads} query heads cannot be shared among {self.kv_heads} key-value heads"
            )
        if self.head_dim % 2:
            raise ModelError(f"head_dim is {self.head_dim}; rotary embedding wants an even number")
        if not 0 < self.norm_eps < 1:
            raise ModelError(f"the norm's epsilon is {self.norm_eps}; expected between 0 and 1")

    @property
    def parameters(self) -> int:
        """Weights of the model, a tied table counted once."""
        attention = (2 * self.heads + 2 * self.kv_heads) * self.head_dim * self.hidden_size
        layer = attention + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size
        tables = self.vocab_size * self.hidden_size * (1 if self.tied else 2)
        return self.layers * layer + tables + self.hidden_size

    def kv_bytes_per_token(self, itemsize: int) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * itemsize


class _HfConfig(msgspec.Struct, frozen=True):
    """The part of `config.json` that changes a Llama's answer; unknown fields are ignored."""

    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    vocab_size: Count
    model_type: str | None = None
    architectures: tuple[str, ...] | None = None
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    max_position_embeddings: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)] = 2048
    rms_norm_eps: Positive = 1e-6
    rope_theta: Positive = 10_000.0
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    hidden_act: str = "silu"
    quantization_config: dict[str, Any] | None = None
    bos_token_id: int | None = None
    eos_token_id: int | tuple[int, ...] | None = None


class _HfRope(msgspec.Struct, frozen=True):
    rope_type: str | None = None
    type: str | None = None  # its name before transformers 4.43
    rope_theta: Positive | None = None
    factor: Positive = 1.0
    low_freq_factor: Positive = 1.0
    high_freq_factor: Positive = 4.0
    original_max_position_embeddings: Count | None = None
    partial_rotary_factor: Positive = 1.0


def from_hf(document: bytes) -> tuple[ModelConfig, int | None, tuple[int, ...]]:
    """`config.json` → the configuration, the bos id, the eos ids."""
    try:
        named = msgspec.json.decode(document)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as why:
        raise ModelError(f"config.json is not JSON ({why}); copy the model directory anew") from why
    if not isinstance(named, dict):
        raise ModelError("config.json is not an object; copy the model directory anew")
    if named.get("model_type") != "llama":
        raise ModelError(
            f"architecture {named.get('model_type')!r:.60} is not supported; this executor runs 'llama'"
        )
    try:
        raw = msgspec.convert(named, _HfConfig)
        rope = _hf_rope(raw)
    except msgspec.ValidationError as why:
        raise ModelError(f"config.json does not describe a Llama: {why}") from why
    except RecursionError as why:
        raise ModelError("config.json is nested too deeply") from why
    if raw.quantization_config is not None:
        raise ModelError(
            "quantised Hugging Face checkpoints are not supported; use the original weights or a GGUF file"
        )
    if raw.attention_bias or raw.mlp_bias:
        raise ModelError("Llamas with attention_bias or mlp_bias are not supported")
    if raw.hidden_act not in {"silu", "swish"}:
        raise ModelError(f"activation {raw.hidden_act!r:.40} is not supported; expected 'silu'")
    if raw.head_dim is None and raw.hidden_size % raw.num_attention_heads:
        raise ModelError("hidden_size is no multiple of num_attention_heads and head_dim is absent")
    config = ModelConfig(
        vocab_size=raw.vocab_size,
        hidden_size=raw.hidden_size,
        intermediate_size=raw.intermediate_size,
        layers=raw.num_hidden_layers,
        heads=raw.num_attention_heads,
        kv_heads=raw.num_key_value_heads or raw.num_attention_heads,
        head_dim=raw.head_dim or raw.hidden_size // raw.num_attention_heads,
        norm_eps=raw.rms_norm_eps,
        ropes=(rope,),
        context_tokens=raw.max_position_embeddings,
        tied=raw.tie_word_embeddings,
    )
    eos = raw.eos_token_id
    return (
        config,
        raw.bos_token_id,
        (() if eos is None else (eos,) if isinstance(eos, int) else eos),
    )


def _hf_rope(raw: _HfConfig) -> Rope:
    """`rope_parameters` (transformers 5) holds theta too; `rope_scaling` stands beside it."""
    found = msgspec.convert(raw.rope_parameters or raw.rope_scaling or {}, _HfRope)
    name = found.rope_type or found.type or "default"
    if name not in {"default", "linear", "llama3"}:
        raise ModelError(
            f"rope kind {name!r:.40} is not supported; expected default, linear, llama3"
        )
    if found.partial_rotary_factor != 1.0:
        raise ModelError("a partial rotary embedding is not supported")
    if found.high_freq_factor == found.low_freq_factor:
        raise ModelError("rope's high_freq_factor equals its low_freq_factor; expected a band")
    return Rope(
        kind=RopeKind(name),
        theta=found.rope_theta or raw.rope_theta,
        factor=found.factor,
        low_freq_factor=found.low_freq_factor,
        high_freq_factor=found.high_freq_factor,
        original_context_tokens=found.original_max_position_embeddings
        or raw.max_position_embeddings,
    )


def from_gguf(
    metadata: Mapping[str, Any], vocab_size: int, *, tied: bool, divisors: bool
) -> ModelConfig:
    """`divisors`: the file has a `rope_freqs.weight`.  `tied`: it has no `output.weight`."""
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise ModelError(
            f"architecture {architecture!r:.60} is not supported; this executor runs 'llama'"
        )
    if metadata.get("llama.expert_count", 0):
        raise ModelError("mixtures of experts are not supported; this executor runs dense Llamas")

    def whole(key: str, default: int | None = None) -> int:
        value = metadata.get(f"llama.{key}", default)
        if isinstance(value, list) and value and all(each == value[0] for each in value):
            value = value[0]
        if not isinstance(value, int) or isinstance(value, bool):
            raise ModelError(f"GGUF key llama.{key} is absent or no whole number; convert it anew")
        return value

    def real(key: str, default: float) -> float:
        value = metadata.get(f"llama.{key}", default)
        if not isinstance(value, (int, float)) or not 0 < value <= 1e12:
            raise ModelError(f"GGUF key llama.{key} is not a positive number; convert it anew")
        return float(value)

    heads, hidden_size = whole("attention.head_count"), whole("embedding_length")
    if heads < 1 or (hidden_size % heads and "llama.attention.key_length" not in metadata):
        raise ModelError(f"{hidden_size} hidden features do not divide into {heads} heads")
    head_dim = whole("attention.key_length", hidden_size // heads)
    if whole("rope.dimension_count", head_dim) != head_dim:
        raise ModelError("a partial rotary embedding is not supported")
    if whole("attention.value_length", head_dim) != head_dim:
        raise ModelError("keys and values of different sizes are not supported")
    factor = real("rope.scaling.factor", real("rope.scale_linear", 1.0))
    scaling = metadata.get("llama.rope.scaling.type", "linear" if factor != 1.0 else "none")
    if scaling not in {"none", "linear"}:
        raise ModelError(f"rope kind {scaling!r:.40} is not supported; expected none or linear")
    kind = RopeKind.DIVISORS if divisors else RopeKind.DEFAULT
    if scaling == "linear" and not divisors:
        kind = RopeKind.LINEAR
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=whole("feed_forward_length"),
        layers=whole("block_count"),
        heads=heads,
        kv_heads=whole("attention.head_count_kv", heads),
        head_dim=head_dim,
        norm_eps=real("attention.layer_norm_rms_epsilon", 1e-5),
        ropes=(Rope(kind=kind, theta=real("rope.freq_base", 10_000.0), factor=factor),),
        context_tokens=whole("context_length", 2048),
        tied=tied,
    )
