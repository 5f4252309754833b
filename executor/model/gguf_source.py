"""A model in a GGUF file, under its Hugging Face tensor names.

Of some architectures llama.cpp's converter interleaves the rows of q and k within each head, for rotary
pairs (2i, 2i+1); here that is undone, so that everything after sees the half-split layout of the
original checkpoint.  Where norms store w − 1 the converter has added the one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from .config import ModelConfig, RopeKind
from .errors import ModelError
from .gguf_families import DIVISORS, from_gguf
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
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_AFTER: Mapping[str, str] = {  # of models that norm what a block adds, too
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


_ROTATED = frozenset({"attn_q", "attn_k"})


@dataclass(frozen=True, slots=True)
class GgufSource:
    """`interleaved`: rows of q and k are so in the file."""

    file: GgufFile
    config: ModelConfig
    tokenizer: TokenizerCard
    interleaved: bool

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        theirs, _ = self._found(name, shape)
        return self._half_split(theirs, torch.from_numpy(self.file.array(theirs)))

    def blocks(self, name: str, shape: tuple[int, ...]) -> QuantBlocks | None:
        theirs, kind = self._found(name, shape)
        if kind is GGMLQuantizationType.Q4_0:
            return QuantBlocks("q4_0", self._stored(theirs, shape, scales=1))
        if kind is GGMLQuantizationType.Q4_1:
            return QuantBlocks("q4_1", self._stored(theirs, shape, scales=2))
        if kind is GGMLQuantizationType.Q8_0:
            return QuantBlocks("q8_0", self._stored(theirs, shape, scales=1))
        return None

    def check(self, name: str, shape: tuple[int, ...]) -> str:
        """Its name in the file.  ModelError as `read`, without reading."""
        theirs = self._found(name, shape)[0]
        self.file.check_type(theirs)
        return theirs

    def _found(self, name: str, shape: tuple[int, ...]) -> tuple[str, GGMLQuantizationType]:
        theirs = gguf_name(name, after_norms=self.config.after_norms)
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
        if not self.interleaved or theirs.rpartition(".")[0].rpartition(".")[2] not in _ROTATED:
            return rows
        pairs = rows.view(-1, self.config.head_dim // 2, 2, *rows.shape[1:])
        return pairs.transpose(1, 2).reshape(rows.shape)

    def rope_divisors(self) -> Tensor | None:
        info = self.file.tensors.get(DIVISORS)
        if info is None:
            return None
        if info.shape != (self.config.head_dim // 2,):
            raise ModelError(
                f"tensor 'rope_freqs.weight' has shape {info.shape}; expected one a pair"
            )
        divisors = torch.from_numpy(self.file.array(DIVISORS))
        if not bool((divisors > 0).all()):
            raise ModelError("tensor 'rope_freqs.weight' holds a divisor that is not positive")
        return divisors

    def digest(self) -> str:
        return self.file.digest()


def gguf_name(name: str, *, after_norms: bool) -> str:
    if (top := _TOP.get(name)) is not None:
        return top
    _, _, layer, rest = name.split(".", 3)
    part, _, kind = rest.rpartition(".")
    theirs = _AFTER.get(part) if after_norms else None
    return f"blk.{layer}.{theirs or _LAYER[part]}.{kind}"


def open_gguf_source(path: Path) -> GgufSource:
    """Header, metadata and tensor table checked whole; no weight is read."""
    file = open_gguf(path)
    if (parts := file.metadata.get("split.count", 0)) and parts != 1:
        raise ModelError(
            f"{path.name} is one of {parts!r:.20} parts; merge them (llama-gguf-split --merge)"
        )
    table = file.tensors.get("token_embd.weight")
    found = from_gguf(file.metadata, table.shape[0] if table is not None else 0, file.tensors)
    source = GgufSource(file, found.config, tokenizer_card(file.metadata), found.interleaved)
    tokens = file.metadata["tokenizer.ggml.tokens"]
    if len(tokens) > found.config.vocab_size:
        raise ModelError(
            f"the vocabulary has {len(tokens)} tokens but the embedding only"
            f" {found.config.vocab_size} rows"
        )
    _check_tensors(source)
    return source


def _check_tensors(source: GgufSource) -> None:
    """Every weight is there in its shape, and nothing else: what we would not use may matter."""
    expected = {DIVISORS} if source.config.ropes[0].kind is RopeKind.DIVISORS else set()
    for name, shape in source.config.tensors.items():
        expected.add(source.check(name, shape))
    for name in source.file.tensors:
        if name not in expected:
            raise ModelError(
                f"the GGUF file holds tensor {name!r:.80}, which a {source.config.family} has not;"
                " it is of another architecture, or damaged"
            )
