"""Small real tokenizers, trained in a few milliseconds, on cards like an executor's."""

from __future__ import annotations

import functools
import json
from typing import Any

from hypothesis import settings
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from executor.contract import ModelCard

STEADY = settings(derandomize=True, deadline=None, max_examples=40, database=None)
"""For every property test of this room: the same examples each time, and no clock."""

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
EMOJI = "👩‍🚀"
_TEXTS = [
    "the quick brown fox jumps over the lazy dog and says hello to the world",
    "hello world, what is the capital of France? Paris is the capital of France.",
    "user assistant system stop stopping the stream im_start im_end <| |>",
    "été Grüße 你好",
] * 4


def card_of(document: dict[str, Any], *, template: str | None = CHATML, **fields: Any) -> ModelCard:
    size = max(
        [token["id"] for token in document["added_tokens"]]
        + (
            list(document["model"]["vocab"].values())
            if isinstance(document["model"]["vocab"], dict)
            else [len(document["model"]["vocab"]) - 1]
        )
    )
    specials = tuple(token["id"] for token in document["added_tokens"] if token["special"])
    defaults: dict[str, Any] = {
        "architecture": "llama",
        "dtype": "float32",
        "numerics": "invariant",
        "vocab_size": size + 1,
        "context_tokens": 512,
        "block_tokens": 16,
        "kv_blocks": 64,
        "tokenizer_json": json.dumps(document).encode(),
        "chat_template": template,
        "bos_token_id": 1,
        "eos_token_ids": (2,),
        "special_token_ids": specials,
    }
    return ModelCard(**(defaults | fields))


@functools.cache
def _byte_level() -> str:
    tokenizer = Tokenizer(models.BPE(unk_token="<|endoftext|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    # Like SmolLM2's, the vocabulary lacks some bytes: control characters become `unk`.
    alphabet = [char for char in pre_tokenizers.ByteLevel.alphabet() if char not in {"ć", "Ć"}]
    trainer = trainers.BpeTrainer(
        vocab_size=360, initial_alphabet=alphabet, special_tokens=SPECIALS, show_progress=False
    )
    tokenizer.train_from_iterator(_TEXTS, trainer)
    return str(tokenizer.to_str())


def byte_level() -> dict[str, Any]:
    """Byte-level BPE with ChatML markers, `unk` one of them."""
    document: dict[str, Any] = json.loads(_byte_level())
    return document


@functools.cache
def _sentencepiece() -> str:
    alphabet = ["▁", *sorted({c for text in _TEXTS for c in text if c.isascii() and c != " "})]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    merges = [("▁", "h"), ("e", "l"), ("▁h", "el"), ("l", "o"), ("▁hel", "lo"), ("▁", "w")]
    vocab = dict.fromkeys([*pieces, *alphabet, *(a + b for a, b in merges)])
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: place for place, piece in enumerate(vocab)},
            merges=merges,
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return str(tokenizer.to_str())


def sentencepiece() -> dict[str, Any]:
    """Llama 2's kind: a space in front, byte fallback."""
    document: dict[str, Any] = json.loads(_sentencepiece())
    return document


@functools.cache
def _unigram() -> str:
    chars = sorted({c for text in [*_TEXTS, "</s>"] for c in text if c != " "})
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), ("▁", -2.0), ("▁hello", -1.0)]
    pieces += [(char, -3.0) for char in chars]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return str(tokenizer.to_str())


def unigram() -> dict[str, Any]:
    """Gemma's and T5's kind: special pieces sit in the model's own list."""
    document: dict[str, Any] = json.loads(_unigram())
    return document
