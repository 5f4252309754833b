"""What a decoder is made of, from GGUF metadata: keys that all architectures share, and one small
function for what each does differently.

Refuses to know: tensors' content, tokenizers.  What the format has no key for (which layers of SmolLM3
rotate, which of Gemma 3 slide) is as llama.cpp has it.  Other architectures are refused by name.
Source: the GGUF specification; llama.cpp's `src/models` of the architectures named.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .config import Activation, Family, LayerKind, ModelConfig, Rope, RopeKind
from .errors import ModelError
from .hf_config import temperature
from .hf_families import granite_scales

DIVISORS = "rope_freqs.weight"
_YARN_UNCLEAR = (  # converters and readers disagree on what these mean
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_log_multiplier",
)


@dataclass(frozen=True, slots=True)
class GgufModel:
    """`interleaved`: rows of q and k are rotary pairs (2i, 2i + 1), to be taken apart."""

    config: ModelConfig
    interleaved: bool


@dataclass(frozen=True, slots=True)
class _Keys:
    """Metadata under the architecture's prefix."""

    metadata: Mapping[str, Any]
    architecture: str

    def get(self, key: str) -> Any:
        return self.metadata.get(f"{self.architecture}.{key}")

    def whole(self, key: str, default: int | None = None) -> int:
        value = self.get(key)
        value = default if value is None else value
        if isinstance(value, list) and value and all(each == value[0] for each in value):
            value = value[0]
        if not isinstance(value, int) or isinstance(value, bool):
            raise ModelError(
                f"GGUF key {self.architecture}.{key} is absent or no whole number; convert it anew"
            )
        return value

    def real(self, key: str, default: float) -> float:
        value = self.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1e12:
            raise ModelError(
                f"GGUF key {self.architecture}.{key} is not a positive number; convert it anew"
            )
        return float(value)


def from_gguf(metadata: Mapping[str, Any], vocab_size: int, tensors: Collection[str]) -> GgufModel:
    """`tensors`: the names in the file, which tell tied tables, biases and rope divisors."""
    name = metadata.get("general.architecture")
    known = _READERS.get(name) if isinstance(name, str) else None
    if known is None:
        raise ModelError(
            f"architecture {name!r:.60} is not supported; this executor runs {', '.join(_READERS)}"
        )
    keys = _Keys(metadata, str(name))
    if keys.get("expert_count"):
        raise ModelError("mixtures of experts are not supported; this executor runs dense models")
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if keys.get(key):
            raise ModelError("soft-capped logits are not supported")
    config = known.read(keys, _base(keys, vocab_size, tensors))
    return GgufModel(config, known.interleaved)


def _base(keys: _Keys, vocab_size: int, tensors: Collection[str]) -> ModelConfig:
    heads, hidden_size = keys.whole("attention.head_count"), keys.whole("embedding_length")
    if heads < 1 or (hidden_size % heads and keys.get("attention.key_length") is None):
        raise ModelError(f"{hidden_size} hidden features do not divide into {heads} heads")
    head_dim = keys.whole("attention.key_length", hidden_size // heads)
    if keys.whole("rope.dimension_count", head_dim) != head_dim:
        raise ModelError("a partial rotary embedding is not supported")
    if keys.whole("attention.value_length", head_dim) != head_dim:
        raise ModelError("keys and values of different sizes are not supported")
    context_tokens = keys.whole("context_length", 2048)
    rope = _rope(keys, context_tokens, divisors=DIVISORS in tensors)
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=keys.whole("feed_forward_length"),
        layers=keys.whole("block_count"),
        heads=heads,
        kv_heads=keys.whole("attention.head_count_kv", heads),
        head_dim=head_dim,
        norm_eps=keys.real("attention.layer_norm_rms_epsilon", 1e-5),
        ropes=(rope,),
        context_tokens=max(context_tokens, rope.reach_tokens),
        tied="output.weight" not in tensors,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        output_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_gate.bias" in tensors,
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
    )


def _rope(keys: _Keys, context_tokens: int, *, divisors: bool) -> Rope:
    factor = keys.real("rope.scaling.factor", keys.real("rope.scale_linear", 1.0))
    name = keys.get("rope.scaling.type") or ("linear" if factor != 1.0 else "none")
    if name not in ("none", "linear", "yarn"):  # a tuple: the file's value may be unhashable
        raise ModelError(f"rope kind {name!r:.40} is not supported; expected none, linear or yarn")
    attention_factor = keys.real("rope.scaling.attn_factor", 1.0)
    plain = Rope(theta=keys.real("rope.freq_base", 10_000.0), attention_factor=attention_factor)
    if divisors:
        if name != "none":
            raise ModelError(f"rope kind {name!r} together with rope_freqs.weight is not supported")
        return replace(plain, kind=RopeKind.DIVISORS)
    if name == "linear":
        return replace(plain, kind=RopeKind.LINEAR, factor=factor)
    if name == "yarn":
        for key in _YARN_UNCLEAR:
            if keys.real(key, 1.0) != 1.0:
                raise ModelError(
                    f"GGUF key {keys.architecture}.{key} other than 1 is not supported"
                )
        return replace(
            plain,
            kind=RopeKind.YARN,
            factor=factor,
            original_context_tokens=keys.whole(
                "rope.scaling.original_context_length", context_tokens
            ),
            beta_fast=keys.real("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=keys.real("rope.scaling.yarn_beta_slow", 1.0),
            attention_factor=attention_factor * temperature(factor),
        )
    return plain


def _llama(keys: _Keys, base: ModelConfig) -> ModelConfig:
    """Llama, SmolLM2, and Mistral, which only its window tells apart (converters drop it)."""
    window = keys.whole("attention.sliding_window", 0)
    if window <= 0:
        return base
    kinds = (LayerKind(window=window),) * base.layers
    return replace(base, family=Family.MISTRAL, kinds=kinds)


def _smollm3(_keys: _Keys, base: ModelConfig) -> ModelConfig:
    """Every fourth layer does not rotate; there is no key for it."""
    kinds = tuple(LayerKind(rope=0 if (at + 1) % 4 else None) for at in range(base.layers))
    return replace(base, family=Family.SMOLLM3, kinds=kinds)


def _qwen2(_keys: _Keys, base: ModelConfig) -> ModelConfig:
    return replace(base, family=Family.QWEN2)


def _qwen3(_keys: _Keys, base: ModelConfig) -> ModelConfig:
    return replace(base, family=Family.QWEN3, qk_norm=True)


def _gemma3(keys: _Keys, base: ModelConfig) -> ModelConfig:
    """Five layers that slide to one that does not.  Converters write no attention scale: it is
    head_dim ** −0.5, but for the model of 62 layers (27B), by hidden_size / heads."""
    window = keys.whole("attention.sliding_window", 0)
    slides = _pattern(keys, base.layers) if window > 0 else (False,) * base.layers
    head = base.hidden_size / base.heads if base.layers == 62 else base.head_dim
    return replace(
        base,
        family=Family.GEMMA3,
        ropes=(
            replace(base.ropes[0], theta=keys.real("rope.freq_base", 1_000_000.0)),
            Rope(theta=keys.real("rope.freq_base_swa", 10_000.0)),
        ),
        kinds=tuple(LayerKind(rope=1, window=window) if each else LayerKind() for each in slides),
        activation=Activation.GELU_TANH,
        attention_scale=keys.real("attention.scale", head**-0.5),
        embedding_scale=base.hidden_size**0.5,
        embedding_scale_rounded=True,
        qk_norm=True,
        after_norms=True,
    )


def _pattern(keys: _Keys, layers: int) -> tuple[bool, ...]:
    """A period, the last layer of which sees everything, or a flag a layer."""
    found = keys.get("attention.sliding_window_pattern")
    if isinstance(found, list):
        if len(found) != layers or not all(isinstance(each, (bool, int)) for each in found):
            raise ModelError("attention.sliding_window_pattern does not name every layer")
        return tuple(map(bool, found))
    period = keys.whole("attention.sliding_window_pattern", 6)
    if period < 1:
        raise ModelError(f"attention.sliding_window_pattern is {period}; expected 1 or more")
    return tuple(bool((at + 1) % period) for at in range(layers))


def _granite(keys: _Keys, base: ModelConfig) -> ModelConfig:
    scales = granite_scales(
        base.norm_eps,
        embedding=keys.real("embedding_scale", 1.0),
        residual=keys.real("residual_scale", 1.0),
        attention=keys.real("attention.scale", base.head_dim**-0.5),
        logits=keys.real("logit_scale", 1.0),
    )
    return replace(base, family=Family.GRANITE, **scales)


@dataclass(frozen=True, slots=True)
class _Reader:
    read: Callable[[_Keys, ModelConfig], ModelConfig]
    interleaved: bool = False


_READERS: Mapping[str, _Reader] = {
    "llama": _Reader(_llama, interleaved=True),
    "smollm3": _Reader(_smollm3, interleaved=True),
    "qwen2": _Reader(_qwen2),
    "qwen3": _Reader(_qwen3),
    "gemma3": _Reader(_gemma3),
    "granite": _Reader(_granite, interleaved=True),
}
