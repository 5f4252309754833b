"""What each family does differently, read from its `config.json`: one small pure function each.

Refuses to know: tensors, files.  A family that is not in the table is refused by its name.
Source: the configuration and model classes of transformers 5 that the functions name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from .config import Activation, Family, LayerKind, ModelConfig
from .errors import ModelError
from .hf_config import HfConfig, base, refuse_what_changes_the_answer, rope

_SILU = frozenset({"silu", "swish"})


@dataclass(frozen=True, slots=True)
class HfModel:
    """`norm_offset`: what the loader adds to every norm's weight."""

    config: ModelConfig
    bos: int | None
    eos: tuple[int, ...]
    norm_offset: float = 0.0


def from_hf(document: bytes) -> HfModel:
    """`config.json` → everything that it says; ModelError if it is not ours to run."""
    try:
        named = msgspec.json.decode(document)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as why:
        raise ModelError(f"config.json is not JSON ({why}); copy the model directory anew") from why
    if not isinstance(named, dict):
        raise ModelError("config.json is not an object; copy the model directory anew")
    named = _text_part(named)
    name = named.get("model_type")
    known = _READERS.get(name) if isinstance(name, str) else None
    if known is None:
        raise ModelError(
            f"architecture {name!r:.60} is not supported; this executor runs {', '.join(Family)}"
        )
    try:
        raw = msgspec.convert(known.defaults | named, HfConfig)
        refuse_what_changes_the_answer(raw)
        config = known.read(raw)
    except msgspec.ValidationError as why:
        raise ModelError(f"config.json does not describe a model: {why}") from why
    except RecursionError as why:
        raise ModelError("config.json is nested too deeply") from why
    eos = raw.eos_token_id
    return HfModel(
        config=config,
        bos=raw.bos_token_id,
        eos=() if eos is None else (eos,) if isinstance(eos, int) else eos,
        norm_offset=known.norm_offset,
    )


def _text_part(named: dict[str, Any]) -> dict[str, Any]:
    """Of a model that also sees (gemma3), what reads and writes text; its ids stand outside."""
    inner = named.get("text_config")
    if named.get("model_type") != Family.GEMMA3 or not isinstance(inner, dict):
        return named
    outside = ("bos_token_id", "eos_token_id", "quantization_config", "tie_word_embeddings")
    return (
        {"model_type": "gemma3_text"}
        | inner
        | {name: named[name] for name in outside if named.get(name) is not None}
    )


def _llama(raw: HfConfig) -> ModelConfig:
    """LlamaForCausalLM: Llama 2 and 3, SmolLM2."""
    _expect_silu(raw)
    return base(raw)


def _mistral(raw: HfConfig) -> ModelConfig:
    """MistralForCausalLM: every layer slides, if one does."""
    _expect_silu(raw)
    kind = LayerKind(window=raw.sliding_window)
    return replace(
        base(raw),
        family=Family.MISTRAL,
        kinds=(kind,) * raw.num_hidden_layers if kind.window else (),
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
    )


def _qwen2(raw: HfConfig) -> ModelConfig:
    """Qwen2ForCausalLM: queries, keys and values have biases, whatever the file says."""
    _expect_silu(raw)
    return replace(
        base(raw),
        family=Family.QWEN2,
        kinds=_late_windows(raw),
        qkv_bias=True,
        output_bias=False,
        mlp_bias=False,
    )


def _qwen3(raw: HfConfig) -> ModelConfig:
    """Qwen3ForCausalLM: queries and keys are normed by head."""
    _expect_silu(raw)
    return replace(
        base(raw), family=Family.QWEN3, kinds=_late_windows(raw), qk_norm=True, mlp_bias=False
    )


def _smollm3(raw: HfConfig) -> ModelConfig:
    """SmolLM3ForCausalLM: some layers do not rotate; only those may slide."""
    _expect_silu(raw)
    rotates = raw.no_rope_layers or tuple(
        (at + 1) % raw.no_rope_layer_interval for at in range(raw.num_hidden_layers)
    )
    if len(rotates) < raw.num_hidden_layers:
        raise ModelError("no_rope_layers does not name every layer; copy config.json anew")
    window = raw.sliding_window if raw.use_sliding_window else None
    slides = _slides(raw) or tuple(not each for each in rotates)
    kinds = tuple(
        LayerKind(rope=0 if rotates[at] else None, window=window if slides[at] else None)
        for at in range(raw.num_hidden_layers)
    )
    return replace(base(raw), family=Family.SMOLLM3, kinds=kinds)


def _gemma3(raw: HfConfig) -> ModelConfig:
    """Gemma3ForCausalLM: local layers slide and turn faster; norms before and after each block."""
    if raw.hidden_activation not in {"gelu_pytorch_tanh", "gelu_tanh"}:
        raise ModelError(
            f"activation {raw.hidden_activation!r:.40} is not supported; expected 'gelu_pytorch_tanh'"
        )
    settings = raw.rope_parameters or {}
    by_kind = {name: settings.get(name) or {} for name in ("full_attention", "sliding_attention")}
    if not all(isinstance(each, dict) for each in by_kind.values()):
        raise ModelError("rope_parameters does not say what full and sliding layers have")
    if not any(by_kind.values()):
        by_kind["full_attention"] = settings
    plain = msgspec.structs.replace(raw, rope_parameters=None, rope_scaling=None)
    whole = rope(raw, (raw.rope_scaling or {}) | by_kind["full_attention"], raw.rope_theta)
    local = rope(raw, by_kind["sliding_attention"], raw.rope_local_base_freq)
    slides = _slides(raw) or tuple(
        bool((at + 1) % raw.sliding_window_pattern) for at in range(raw.num_hidden_layers)
    )
    if any(slides) and raw.sliding_window is None:
        raise ModelError("sliding layers without a sliding_window; copy config.json anew")
    return replace(
        base(plain),
        family=Family.GEMMA3,
        ropes=(whole, local),
        context_tokens=max(raw.max_position_embeddings, whole.reach_tokens),
        kinds=tuple(
            LayerKind(rope=1, window=raw.sliding_window) if each else LayerKind() for each in slides
        ),
        activation=Activation.GELU_TANH,
        attention_scale=raw.query_pre_attn_scalar**-0.5,
        embedding_scale=raw.hidden_size**0.5,
        embedding_scale_rounded=True,
        qk_norm=True,
        after_norms=True,
        mlp_bias=False,
    )


def _granite(raw: HfConfig) -> ModelConfig:
    """GraniteForCausalLM: four multipliers.  With r what a block's output is multiplied by, x = r · y
    turns x += r · f(norm(x)) into y += f(norm(y)) with epsilon / r², and x₀ = e into y₀ = e / r: exact,
    and nothing that runs need know of it.  What logits are divided by goes into the last norm."""
    _expect_silu(raw)
    scales = granite_scales(
        raw.rms_norm_eps,
        embedding=raw.embedding_multiplier,
        residual=raw.residual_multiplier,
        attention=raw.attention_multiplier,
        logits=raw.logits_scaling,
    )
    return replace(base(raw), family=Family.GRANITE, **scales)


def granite_scales(
    eps: float, *, embedding: float, residual: float, attention: float, logits: float
) -> dict[str, Any]:
    return {
        "norm_eps": eps / residual**2,
        "embedding_scale": embedding / residual,
        "attention_scale": attention,
        "logit_scale": 1.0 / logits,
    }


def _expect_silu(raw: HfConfig) -> None:
    if raw.hidden_act not in _SILU:
        raise ModelError(f"activation {raw.hidden_act!r:.40} is not supported; expected 'silu'")


def _slides(raw: HfConfig) -> tuple[bool, ...] | None:
    """`layer_types`, where the file has them."""
    if raw.layer_types is None:
        return None
    for name in raw.layer_types:
        if name not in {"full_attention", "sliding_attention"}:
            raise ModelError(
                f"layers of type {name!r:.40} are not supported; expected full or sliding attention"
            )
    if len(raw.layer_types) != raw.num_hidden_layers:
        raise ModelError("layer_types does not name every layer; copy config.json anew")
    return tuple(name == "sliding_attention" for name in raw.layer_types)


def _late_windows(raw: HfConfig) -> tuple[LayerKind, ...]:
    """Qwen's windows, which are off in what is published: from layer `max_window_layers` on."""
    if not raw.use_sliding_window or raw.sliding_window is None:
        return ()
    slides = _slides(raw) or tuple(
        at >= raw.max_window_layers for at in range(raw.num_hidden_layers)
    )
    return tuple(LayerKind(window=raw.sliding_window if each else None) for each in slides)


@dataclass(frozen=True, slots=True)
class _Reader:
    """`defaults`: what the family's configuration class has where the file says nothing."""

    read: Callable[[HfConfig], ModelConfig]
    defaults: dict[str, Any]
    norm_offset: float = 0.0


_GEMMA3 = _Reader(
    _gemma3,
    {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "rope_theta": 1_000_000.0,
        "sliding_window": 4096,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    },
    norm_offset=1.0,  # Gemma3RMSNorm multiplies by one more than it stores
)
_READERS: Mapping[str, _Reader] = {
    "llama": _Reader(_llama, {}),
    "smollm3": _Reader(
        _smollm3,
        {
            "num_key_value_heads": 4,
            "max_position_embeddings": 32_768,
            "rope_theta": 2_000_000.0,
            "tie_word_embeddings": True,
        },
    ),
    "qwen2": _Reader(_qwen2, {"max_position_embeddings": 32_768, "sliding_window": 4096}),
    "qwen3": _Reader(
        _qwen3, {"head_dim": 128, "max_position_embeddings": 32_768, "sliding_window": 4096}
    ),
    "mistral": _Reader(
        _mistral,
        {"num_key_value_heads": 8, "max_position_embeddings": 131_072, "sliding_window": 4096},
    ),
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "granite": _Reader(_granite, {}),
}
