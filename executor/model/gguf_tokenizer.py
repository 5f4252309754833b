"""Build a Hugging Face `tokenizers` document from GGUF metadata, so that one tokenizer library serves
every kind of model file.

Byte-level BPE ("gpt2") here, SentencePiece ("llama") in `gguf_sentencepiece`; others are refused by
name, and so is a pre-tokenizer that is not in the table: the Hugging Face directory has the true one.
Source: the pre-tokenizer table of llama.cpp's vocabulary, written as `tokenizers` components.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from tokenizers import Tokenizer

from .errors import ModelError
from .gguf_sentencepiece import ADVICE, Piece, sentencepiece_parts
from .source import END_NAMES, TEMPLATE_BYTES_MAX, TokenizerCard

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEFAULT = (
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
)


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_DIGITS = ({"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True))
_GPT2 = (_byte_level(use_regex=True),)
_THREE_DIGITS = (_split(_LLAMA3), _byte_level(use_regex=False))
_ONE_DIGIT = (_split(_QWEN2), _byte_level(use_regex=False))
_PRE_TOKENIZERS: Mapping[str, tuple[dict[str, Any], ...]] = {
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "gpt-2": _GPT2,
    "gpt2": _GPT2,
    "refact": _DIGITS,  # Granite
    "llama-bpe": _THREE_DIGITS,
    "llama3": _THREE_DIGITS,
    "smaug-bpe": _THREE_DIGITS,  # SmolLM3
    "qwen2": _ONE_DIGIT,
    "deepseek-r1-qwen": _ONE_DIGIT,
    "tekken": (_split(_TEKKEN), _byte_level(use_regex=False)),  # Mistral Nemo and later
    "default": (*map(_split, _DEFAULT), _byte_level(use_regex=False)),
}
_IGNORE_MERGES = frozenset({"llama-bpe", "llama3", "smaug-bpe", "tekken"})
"""Where a word that is a token needs no merges: vocabularies made by tiktoken."""

_BEGUN = ("llama-bpe", "llama3", "tekken")  # texts begin with bos
_COMPOSED = frozenset({"qwen2", "deepseek-r1-qwen"})  # characters are composed (NFC) before
_MODELS = ("gpt2", "llama")


def tokenizer_card(metadata: Mapping[str, Any]) -> TokenizerCard:
    tokens, kinds = _vocabulary(metadata)
    ids = {token: at for at, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        raise ModelError("the GGUF vocabulary names a token twice; convert the model anew")
    document = _document(metadata, ids, kinds)
    special = tuple(at for at, kind in enumerate(kinds) if kind == Piece.CONTROL)
    bos = _token_id(metadata, "bos", len(tokens))
    ends = {_token_id(metadata, name, len(tokens)) for name in ("eos", "eot", "eom")}
    ends |= {ids[name] for name in END_NAMES if name in ids and ids[name] in set(special)}
    template = metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise ModelError("the GGUF chat template is no text; convert the model anew")
    if template is not None and len(template.encode()) > TEMPLATE_BYTES_MAX:
        raise ModelError(f"the chat template is larger than {TEMPLATE_BYTES_MAX} bytes")
    return TokenizerCard(
        document=document,
        chat_template=template,
        bos_id=bos,
        eos_ids=tuple(sorted(end for end in ends if end is not None)),
        special_ids=special,
        add_bos=_adds_bos(metadata) and bos is not None,
    )


def _adds_bos(metadata: Mapping[str, Any]) -> bool:
    """Where the file does not say, as llama.cpp has it: those models were all trained so."""
    default = (
        metadata.get("tokenizer.ggml.model") == "llama"
        or metadata.get("tokenizer.ggml.pre") in _BEGUN
    )
    return bool(metadata.get("tokenizer.ggml.add_bos_token", default))


def _vocabulary(metadata: Mapping[str, Any]) -> tuple[list[str], list[int]]:
    model = metadata.get("tokenizer.ggml.model")
    if model not in _MODELS:  # a tuple: the value may be unhashable
        raise ModelError(
            f"GGUF tokenizer {model!r:.40} is not supported, only byte-level BPE ('gpt2') and"
            f" SentencePiece's ('llama'){ADVICE}"
        )
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise ModelError("the GGUF file has no vocabulary (tokenizer.ggml.tokens)")
    kinds = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise ModelError("tokenizer.ggml.token_type does not fit the vocabulary; convert it anew")
    return tokens, kinds


def _token_id(metadata: Mapping[str, Any], name: str, vocab_size: int) -> int | None:
    found = metadata.get(f"tokenizer.ggml.{name}_token_id")
    if found is None:
        return None
    if not isinstance(found, int) or not 0 <= found < vocab_size:
        raise ModelError(f"the GGUF file's {name} token id is outside the vocabulary")
    return found


def _document(metadata: Mapping[str, Any], ids: dict[str, int], kinds: list[int]) -> bytes:
    tokens = list(ids)
    if metadata.get("tokenizer.ggml.model") == "llama":
        parts = sentencepiece_parts(metadata, tokens, kinds)
    else:
        parts = _byte_level_parts(metadata, ids)
    added = [
        {
            "id": at,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kinds[at] == Piece.CONTROL,
        }
        for token, at in ids.items()
        if kinds[at] in {Piece.CONTROL, Piece.USER_DEFINED}
    ]
    rest = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "post_processor": None,
    }
    document = msgspec.json.encode(rest | parts)
    try:
        Tokenizer.from_str(document.decode())
    except Exception as why:  # tokenizers raises bare Exception
        raise ModelError(f"the GGUF tokenizer cannot be built: {why!s:.200}") from why
    return document


def _byte_level_parts(metadata: Mapping[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    """normalizer, pre_tokenizer, decoder and model of the document."""
    name = metadata.get("tokenizer.ggml.pre", "default")
    steps = _PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if steps is None:
        raise ModelError(
            f"GGUF pre-tokenizer {name!r:.40} is not supported; expected one of"
            f" {', '.join(sorted(_PRE_TOKENIZERS))}; or serve the Hugging Face directory"
        )
    merges = metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list) or not all(
        isinstance(merge, str) and merge.count(" ") == 1 for merge in merges
    ):
        raise ModelError("the GGUF file has no usable merges (tokenizer.ggml.merges)")
    return {
        "normalizer": {"type": "NFC"} if name in _COMPOSED else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": _byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": name in _IGNORE_MERGES,
            "vocab": ids,
            "merges": [merge.split(" ") for merge in merges],
        },
    }
