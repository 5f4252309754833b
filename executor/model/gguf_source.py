"""A Llama in a GGUF file, under its Hugging Face tensor names.

llama.cpp's converter interleaves the rows of q and k within each head, for rotary pairs (2i, 2i+1);
here that is undone, so that everything after sees the half-split layout of the original checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from .config import ModelConfig, from_gguf
from .errors import ModelError
from .gguf_file import GgufFile, open_gguf
from .gguf_tokenizer import tokenizer_card
from .source import QuantBlocks, TokenizerCard

_TOP: Mapping[str, str] = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER: Mapping[str, str] = {
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


@dataclass(frozen=True, slots=True)
class GgufSource:
    file: GgufFile
    config: ModelConfig
    tokenizer: TokenizerCard

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        theirs, _ = self._found(name, shape)
        return self._half_split(theirs, torch.from_numpy(self.file.array(theirs)))

    def blocks(self, name: str, shape: tuple[int, ...]) -> QuantBlocks | None:
        theirs, kind = self._found(name, shape)
        if kind is GGMLQuantizationType.Q4_0:
            return QuantBlocks("q4_0", self._stored(theirs, shape, scales=1))
        if kind is GGMLQuantizationType.Q4_1:
            return QuantBlocks("q4_1", self._stored(theirs, shape, scales=2))
        return None

    def _found(self, name: str, shape: tuple[int, ...]) -> tuple[str, GGMLQuantizationType]:
        theirs = _gguf_name(name)
        info = self.file.tensors.get(theirs)
        if info is None:
            raise ModelError(f"the GGUF file lacks tensor {theirs!r}; fetch or convert it anew")
        if info.shape != shape:
            raise ModelError(f"tensor {theirs!r} has shape {info.shape}; expected {shape}")
        return theirs, info.kind

    def _stored(self, theirs: str, shape: tuple[int, ...], *, scales: int) -> Tensor:
        """Blocks of 32 weights that begin with so many float16."""
        stored = torch.from_numpy(self.file.raw(theirs)).view(shape[0], shape[1] // 32, -1)
        found = self._half_split(theirs, stored)
        if not bool(torch.isfinite(found[..., : 2 * scales].view(torch.float16)).all()):
            raise ModelError(f"tensor {theirs!r} holds infinities or not-a-numbers; fetch it anew")
        return found

    def _half_split(self, theirs: str, rows: Tensor) -> Tensor:
        if not theirs.endswith(("attn_q.weight", "attn_k.weight")):
            return rows
        pairs = rows.view(-1, self.config.head_dim // 2, 2, *rows.shape[1:])
        return pairs.transpose(1, 2).reshape(rows.shape)

    def rope_divisors(self) -> Tensor | None:
        info = self.file.tensors.get("rope_freqs.weight")
        if info is None:
            return None
        if info.shape != (self.config.head_dim // 2,):
            raise ModelError(
                f"tensor 'rope_freqs.weight' has shape {info.shape}; expected one a pair"
            )
        divisors = torch.from_numpy(self.file.array("rope_freqs.weight"))
        if not bool((divisors > 0).all()):
            raise ModelError("tensor 'rope_freqs.weight' holds a divisor that is not positive")
        return divisors

    def digest(self) -> str:
        return self.file.digest()


def _gguf_name(name: str) -> str:
    if (top := _TOP.get(name)) is not None:
        return top
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{_LAYER[rest.removesuffix('.weight')]}.weight"


def open_gguf_source(path: Path) -> GgufSource:
    file = open_gguf(path)
    architecture = file.metadata.get("general.architecture")
    if architecture == "llama" and any(name.endswith(".bias") for name in file.tensors):
        raise ModelError("Llamas with biases are not supported")
    table = file.tensors.get("token_embd.weight")
    config = from_gguf(
        file.metadata,
        table.shape[0] if table is not None else 0,
        tied="output.weight" not in file.tensors,
        divisors="rope_freqs.weight" in file.tensors,
    )
    card = tokenizer_card(file.metadata)
    tokens = file.metadata["tokenizer.ggml.tokens"]
    if len(tokens) > config.vocab_size:
        raise ModelError(
            f"the vocabulary has {len(tokens)} tokens but the embedding only {config.vocab_size} rows"
        )
    return GgufSource(file, config, card)
