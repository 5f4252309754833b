"""Tiny random models of every family, built by transformers and saved as it saves them, with our tiny
tokenizer beside: what the tests of architectures compare with.

Sizes are odd on purpose: more query heads than hidden_size has room for, windows of no power of two and
shorter than any prompt, a context of which ropes are stretched from a quarter.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import torch
from gguf.quants import dequantize, quantize

from tests.models import TEMPLATE, tiny_tokenizer, tokenizer_keys, write_json

SHAPE: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "attn_implementation": "eager",
}
PLAIN = {"rope_type": "default", "rope_theta": 500.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "beta_fast": 8.0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def _config(name: str, **changes: Any) -> Any:
    import transformers

    return getattr(transformers, f"{name}Config")(**(SHAPE | {"rope_parameters": PLAIN} | changes))


VARIANTS: dict[str, Callable[[], Any]] = {
    "llama": lambda: _config("Llama", head_dim=32, rope_parameters=LLAMA3),
    "llama-biases": lambda: _config(
        "Llama", head_dim=16, attention_bias=True, mlp_bias=True, tie_word_embeddings=True
    ),
    "llama-linear": lambda: _config(
        "Llama", rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
    ),
    "llama-dynamic": lambda: _config(
        "Llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 500.0, "factor": 4.0}
    ),
    "llama-yarn": lambda: _config("Llama", head_dim=32, rope_parameters=YARN),
    "llama-yarn-attention": lambda: _config(
        "Llama", rope_parameters=YARN | {"attention_factor": 0.8, "truncate": False}
    ),
    "smollm3": lambda: _config("SmolLM3", tie_word_embeddings=True),
    "smollm3-window": lambda: _config(
        "SmolLM3", use_sliding_window=True, sliding_window=13, no_rope_layers=[1, 0, 0, 1],
    ),
    "qwen2": lambda: _config("Qwen2", tie_word_embeddings=True),
    "qwen2-window": lambda: _config(
        "Qwen2", use_sliding_window=True, sliding_window=21, max_window_layers=2
    ),
    "qwen3": lambda: _config("Qwen3", head_dim=32),
    "qwen3-biases-yarn": lambda: _config(
        "Qwen3", head_dim=16, attention_bias=True, rope_parameters=YARN
    ),
    "mistral": lambda: _config("Mistral", head_dim=32, sliding_window=19),
    "mistral-no-window": lambda: _config("Mistral", sliding_window=None),
    "gemma3": lambda: _config(
        "Gemma3Text",
        head_dim=32,
        num_hidden_layers=6,
        sliding_window=23,
        query_pre_attn_scalar=24,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        },
    ),
    "granite": lambda: _config(
        "Granite",
        tie_word_embeddings=True,
        embedding_multiplier=12.0,
        attention_multiplier=0.2,
        residual_multiplier=0.22,
        logits_scaling=8.0,
        rms_norm_eps=0.02,  # large enough to tell what becomes of it
    ),
}  # fmt: skip


def write_family(directory: Path, variant: str, *, seed: int = 7) -> Any:
    """Save the model and return it, in float32 and ready to ask.  Weights are drawn large enough that
    attention is not flat, and norms and biases are not what they begin as."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(VARIANTS[variant](), dtype=torch.float32)  # type: ignore[no-untyped-call]  # theirs
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            scale = weight.shape[-1] ** -0.5 if weight.ndim > 1 else 0.2
            drawn = torch.randn(weight.shape, generator=random).mul(scale)
            weight.copy_(drawn if weight.ndim > 1 else weight + drawn)
    model.eval()
    model.save_pretrained(directory)
    write_json(directory / "generation_config.json", {"eos_token_id": [2, 0]})
    write_json(directory / "tokenizer_config.json", {"chat_template": TEMPLATE})
    tiny_tokenizer().save(str(directory / "tokenizer.json"))
    return model


Kind = gguf.GGMLQuantizationType
_ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "granite": gguf.MODEL_ARCH.GRANITE,
}
_INTERLEAVED = frozenset({"llama", "smollm3", "granite"})


def write_family_gguf(path: Path, model: Any, kind: Kind) -> None:
    """As llama.cpp's converter writes it, by the names of the gguf package.  `model` is left with the
    weights that the file holds: rounded to `kind` and back."""
    config = model.config
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[_ARCHITECTURES[config.model_type]])
    _write_keys(writer, config)
    names = gguf.get_tensor_name_map(_ARCHITECTURES[config.model_type], config.num_hidden_layers)
    for name, weight in model.named_parameters():
        theirs = names.get_name(name, (".weight", ".bias"))
        assert theirs is not None, name
        tensor = weight.detach()
        if tensor.ndim == 1:
            offset = 1.0 if config.model_type == "gemma3_text" else 0.0
            tensor = tensor + offset
        elif kind is not Kind.F32:
            back = dequantize(quantize(tensor.numpy(), kind), kind)
            weight.data.copy_(tensor := torch.from_numpy(back).view(tensor.shape))
        if config.model_type in _INTERLEAVED and name.split(".")[-2] in {"q_proj", "k_proj"}:
            heads = len(tensor) // model.model.layers[0].self_attn.head_dim
            tensor = tensor.view(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2)
        data = tensor.reshape(weight.shape).contiguous().numpy()
        if tensor.ndim > 1 and weight.ndim > 1:
            writer.add_tensor(theirs, quantize(data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(theirs, data)
    if getattr(config, "rope_parameters", {}).get("rope_type") == "llama3":
        turned, base = model.model.rotary_emb.inv_freq, config.rope_parameters["rope_theta"]
        plain = base ** -(torch.arange(0, len(turned)) / len(turned))
        writer.add_tensor("rope_freqs.weight", (plain / turned).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_keys(writer: gguf.GGUFWriter, config: Any) -> None:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    if config.model_type in _INTERLEAVED:
        writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    if config.model_type == "gemma3_text":
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern(config.layer_types.index("full_attention") + 1)
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        writer.add_float32("gemma3.attention.scale", config.query_pre_attn_scalar**-0.5)
        rope = rope["full_attention"]
    if config.model_type == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in {"linear", "yarn"}:
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
    for key, value in tokenizer_keys().items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_array(key, value)
