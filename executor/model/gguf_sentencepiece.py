"""A SentencePiece vocabulary of GGUF metadata (Llama 2, Mistral, Gemma) as a `tokenizers` model.

SentencePiece's BPE merges, of all neighbours whose join is a piece, the pair whose piece has the best
score, the leftmost if two are alike.  Ranked merges say the same where each character of a piece is one,
so that a symbol is never what a rank cannot name, and each piece has a score of its own, but for runs of
one character (Llama's spaces): there the leftmost pair is the one with the longest left part, since a
run grows from its left end.  A vocabulary of another kind is refused: a tokenizer that is almost right is
a wrong answer nobody notices.  (One piece that two overlapping pairs would make, as in ab·a·ba, is made
of the longer left part, as in the tokenizers that transformers derives.)
Source: Kudo & Richardson 2018; sentencepiece's `bpe_model.cc`; llama.cpp's defaults for absent keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from .errors import ModelError

SPACE = "▁"  # stands for a space within pieces
ADVICE = "; serve the model's Hugging Face directory instead"


class Piece(IntEnum):
    """tokenizer.ggml.token_type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def sentencepiece_parts(
    metadata: Mapping[str, Any], tokens: Sequence[str], kinds: Sequence[int]
) -> dict[str, Any]:
    """normalizer, decoder and model of the document."""
    if metadata.get("tokenizer.ggml.precompiled_charsmap"):
        raise ModelError(f"the GGUF tokenizer rewrites characters, which is not supported{ADVICE}")
    if metadata.get("tokenizer.ggml.remove_extra_whitespaces", False):
        raise ModelError(f"the GGUF tokenizer drops white space, which is not supported{ADVICE}")
    unknown = [token for token, kind in zip(tokens, kinds, strict=True) if kind == Piece.UNKNOWN]
    if len(unknown) != 1:
        raise ModelError(
            f"the GGUF tokenizer has {len(unknown)} unknown tokens; expected one{ADVICE}"
        )
    _check_bytes(tokens, kinds)
    prefixed = metadata.get("tokenizer.ggml.add_space_prefix", True)
    escape = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prefix = [{"type": "Prepend", "prepend": SPACE}] if prefixed else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefixed else []
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, escape]},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *strip,
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown[0],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {token: at for at, token in enumerate(tokens)},
            "merges": _merges(tokens, kinds, _scores(metadata, len(tokens))),
        },
    }


def _scores(metadata: Mapping[str, Any], count: int) -> list[float]:
    scores = metadata.get("tokenizer.ggml.scores")
    if (
        not isinstance(scores, list)
        or len(scores) != count
        or not all(isinstance(score, (int, float)) and math.isfinite(score) for score in scores)
    ):
        raise ModelError(f"tokenizer.ggml.scores does not fit the vocabulary{ADVICE}")
    return scores


def _check_bytes(tokens: Sequence[str], kinds: Sequence[int]) -> None:
    found = {token for token, kind in zip(tokens, kinds, strict=True) if kind == Piece.BYTE}
    if found != {f"<0x{byte:02X}>" for byte in range(256)}:
        raise ModelError(f"the GGUF tokenizer has not one token for each byte{ADVICE}")


def _merges(
    tokens: Sequence[str], kinds: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """Best piece first; among equals, the longest left part first."""
    normal = {token: scores[at] for at, token in enumerate(tokens) if kinds[at] == Piece.NORMAL}
    made: dict[float, str] = {}
    ranked: list[tuple[float, int, str]] = []
    for token, score in normal.items():
        if not all(letter in normal for letter in token):
            raise ModelError(f"piece {token!r:.40} holds a character that is none{ADVICE}")
        splits = [
            at for at in range(1, len(token)) if token[:at] in normal and token[at:] in normal
        ]
        if (
            splits
            and (made.setdefault(score, token) != token)
            and set(made[score] + token) != {token[0]}
        ):
            raise ModelError(f"pieces {made[score]!r:.40} and {token!r:.40} have one score{ADVICE}")
        ranked.extend((-score, -at, token) for at in splits)
    for at, token in enumerate(tokens):
        if kinds[at] == Piece.UNUSED and any(
            token[:cut] in normal and token[cut:] in normal for cut in range(1, len(token))
        ):
            raise ModelError(f"piece {token!r:.40} is made but unused{ADVICE}")
    return [(token[:-minus], token[-minus:]) for _, minus, token in sorted(ranked)]
