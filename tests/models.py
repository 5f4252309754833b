"""Models for tests: the real one where it lies at hand, and tiny random Llamas made on the spot."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from executor.model.config import ModelConfig, Rope

MODELS = Path(__file__).resolve().parents[1] / "var" / "models"
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LLAMA_8B = ModelConfig(
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=128,
    norm_eps=1e-5,
    ropes=(Rope(),),
    context_tokens=131_072,
    tied=False,
)
_CORPUS = ("the lock gate opens when the water stands level", "12 boats wait; 3 pass — ça va, 水門")


def default_model_path() -> Path:
    """LOCKGATE_TEST_MODEL, or the first GGUF file that `deploy/dev.py` has fetched; else skip."""
    if named := os.environ.get("LOCKGATE_TEST_MODEL"):
        return Path(named)
    if found := sorted(MODELS.glob("**/*.gguf")):
        return found[0]
    pytest.skip(f"no model: set LOCKGATE_TEST_MODEL, or let deploy/dev.py fetch one into {MODELS}")


def tiny_tokenizer() -> Tokenizer:
    """Byte-level BPE with a few merges, trained here; splits digits as SmolLM's does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def tiny_config(**changes: Any) -> dict[str, Any]:
    """config.json of a Llama with three query heads a key-value head and an explicit head size."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 96,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 320,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_parameters": LLAMA3_ROPE,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "torch_dtype": "float32",
    } | changes


def tiny_tensors(config: dict[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Random weights, of a size that keeps attention from being flat."""
    random = torch.Generator().manual_seed(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    q = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=random).mul(columns**-0.5)

    def norm() -> Tensor:
        return torch.randn(hidden, generator=random).mul(0.2).add(1)

    found = {
        "model.embed_tokens.weight": matrix(config["vocab_size"], hidden),
        "model.norm.weight": norm(),
    }
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        found |= {
            f"model.layers.{layer}.{name}.weight": tensor
            for name, tensor in {
                "input_layernorm": norm(),
                "self_attn.q_proj": matrix(q, hidden),
                "self_attn.k_proj": matrix(kv, hidden),
                "self_attn.v_proj": matrix(kv, hidden),
                "self_attn.o_proj": matrix(hidden, q),
                "post_attention_layernorm": norm(),
                "mlp.gate_proj": matrix(inner, hidden),
                "mlp.up_proj": matrix(inner, hidden),
                "mlp.down_proj": matrix(hidden, inner),
            }.items()
        }
    return found


def write_json(path: Path, document: object) -> None:
    path.write_bytes(msgspec.json.encode(document))


def write_tiny_llama(directory: Path, *, seed: int = 0, **changes: Any) -> Path:
    """A Hugging Face directory with a real tokenizer; `changes` go into config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    config = tiny_config(**changes)
    write_json(directory / "config.json", config)
    write_json(directory / "generation_config.json", {"eos_token_id": [2, 0]})
    write_json(
        directory / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE},
    )
    tiny_tokenizer().save(str(directory / "tokenizer.json"))
    save_file(tiny_tensors(config, seed), directory / "model.safetensors")
    return directory


_GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_tensors(
    config: dict[str, Any], tensors: dict[str, Tensor]
) -> dict[str, np.ndarray[Any, Any]]:
    """Under GGUF names, q and k interleaved within each head as llama.cpp's converter does."""
    found: dict[str, np.ndarray[Any, Any]] = {}
    for name, tensor in tensors.items():
        if not name.startswith("model.layers."):
            ours = {
                "model.embed_tokens.weight": "token_embd.weight",
                "model.norm.weight": "output_norm.weight",
                "lm_head.weight": "output.weight",
            }[name]
            found[ours] = tensor.numpy()
            continue
        _, _, layer, rest = name.split(".", 3)
        part = _GGUF_NAMES[rest.removesuffix(".weight")]
        array = tensor.numpy()
        if part in {"attn_q", "attn_k"}:
            half = config["head_dim"] // 2
            array = array.reshape(-1, 2, half, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        found[f"blk.{layer}.{part}.weight"] = np.ascontiguousarray(array)
    return found


def tokenizer_keys() -> dict[str, Any]:
    """Our tiny tokenizer as GGUF metadata."""
    document = msgspec.json.decode(tiny_tokenizer().to_str())
    vocab: dict[str, int] = document["model"]["vocab"]
    tokens = sorted(vocab, key=lambda token: vocab[token])
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in SPECIALS else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in document["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    }


def write_tiny_gguf(
    path: Path,
    *,
    seed: int = 0,
    metadata: dict[str, Any] | None = None,
    kinds: dict[str, gguf.GGMLQuantizationType] | None = None,
    **changes: Any,
) -> Path:
    """The same model as `write_tiny_llama` with a default rope, as GGUF.  `metadata` overrides keys
    (None drops one); `kinds` gives tensors a quantised type."""
    config = tiny_config(rope_parameters={"rope_theta": 10_000.0}, **changes)
    keys: dict[str, Any] = (
        {
            "llama.block_count": config["num_hidden_layers"],
            "llama.context_length": config["max_position_embeddings"],
            "llama.embedding_length": config["hidden_size"],
            "llama.feed_forward_length": config["intermediate_size"],
            "llama.attention.head_count": config["num_attention_heads"],
            "llama.attention.head_count_kv": config["num_key_value_heads"],
            "llama.attention.key_length": config["head_dim"],
            "llama.attention.value_length": config["head_dim"],
            "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
            "llama.rope.freq_base": 10_000.0,
        }
        | tokenizer_keys()
        | (metadata or {})
    )
    writer = gguf.GGUFWriter(path, keys.pop("general.architecture", "llama"))
    for key, value in keys.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif value is not None:
            writer.add_array(key, value)
    for name, array in gguf_tensors(config, tiny_tensors(config, seed)).items():
        kind = (kinds or {}).get(name)
        if kind is None:
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
