"""Tiny random models of every family, built by transformers and saved as it saves them, with our tiny
tokenizer beside: what the tests of architectures compare with.

Sizes are odd on purpose: more query heads than hidden_size has room for, windows of no power of two and
shorter than any prompt, a context of which ropes are stretched from a quarter.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.models import TEMPLATE, tiny_tokenizer, write_json

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
    ),
}  # fmt: skip


def write_family(directory: Path, variant: str, *, seed: int = 7) -> Any:
    """Save the model and return it, in float32 and ready to ask.  Weights are drawn large enough that
    attention is not flat, and norms and biases are not what they begin as."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(VARIANTS[variant](), dtype=torch.float32)
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
