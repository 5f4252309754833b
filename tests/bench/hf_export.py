"""Write a Llama GGUF file as a Hugging Face directory in bf16, so that a peer serves our weights.

    python -m tests.bench.hf_export OUT [GGUF]

Reads the file with the gguf package alone and not with our own loader: a fault in that must not
travel into the peer.  Each quantised weight is dequantised exactly and rounded once, to bf16.
Source: llama.cpp's converter interleaves the two halves of each rotary head; here that is undone.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file

from tests.models import default_model_path

LAYER_PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
OTHERS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def hf_name(name: str) -> tuple[str, str]:
    """`blk.3.attn_q.weight` → the Hugging Face name and the part, `attn_q`."""
    stem = name.removesuffix(".weight")
    if stem in OTHERS:
        return f"{OTHERS[stem]}.weight", stem
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{LAYER_PARTS[part]}.weight", part


def halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """(heads · d, in), rotary pairs interleaved → halves side by side, as Hugging Face has them."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def export(gguf: Path, out: Path) -> None:
    export_weights(gguf, out, torch.bfloat16)
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(out)


def export_weights(gguf: Path, out: Path, dtype: torch.dtype) -> None:
    """Configuration and weights, without a tokenizer; also the reference of the numerics tests."""
    reader = GGUFReader(gguf)

    def fact(name: str) -> int | float:
        field = reader.fields[name]
        value = field.contents()
        assert isinstance(value, int | float), name
        return value

    heads, kv_heads = (int(fact(f"llama.attention.head_count{suffix}")) for suffix in ("", "_kv"))
    hidden = int(fact("llama.embedding_length"))
    weights: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        name, part = hf_name(tensor.name)
        weight = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if part in {"attn_q", "attn_k"}:
            weight = halves(weight, heads if part == "attn_q" else kv_heads)
        weights[name] = torch.from_numpy(np.array(weight, order="C")).to(dtype)
    out.mkdir(parents=True, exist_ok=True)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": int(fact("llama.feed_forward_length")),
        "num_hidden_layers": int(fact("llama.block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "vocab_size": weights["model.embed_tokens.weight"].shape[0],
        "max_position_embeddings": int(fact("llama.context_length")),
        "rms_norm_eps": fact("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": fact("llama.rope.freq_base"),
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": int(fact("tokenizer.ggml.bos_token_id")),
        "eos_token_id": int(fact("tokenizer.ggml.eos_token_id")),
        "dtype": str(dtype).removeprefix("torch."),
    }
    (out / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.hf_export")
    parser.add_argument("out", type=Path)
    parser.add_argument("gguf", type=Path, nargs="?")
    options = parser.parse_args()
    export(options.gguf or default_model_path(), options.out)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
