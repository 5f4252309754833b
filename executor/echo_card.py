"""The card of the echo: a tokenizer of 256 bytes (id = byte) and two special tokens, complete.

Refuses to know: the echo, text.
"""

from __future__ import annotations

import json
from hashlib import sha256
from itertools import count
from typing import Final

from executor.contract import ModelCard

IM_START: Final = 256
IM_END: Final = 257
VOCAB_SIZE: Final = 258
BLOCK_TOKENS: Final = 16

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def echo_card(*, context_tokens: int, kv_blocks: int) -> ModelCard:
    """A complete card: a tokenizer of 256 bytes (id = byte) and two special tokens."""
    tokenizer = tokenizer_json()
    return ModelCard(
        architecture="echo",
        dtype="none",
        numerics="invariant",
        vocab_size=VOCAB_SIZE,
        context_tokens=context_tokens,
        block_tokens=BLOCK_TOKENS,
        kv_blocks=kv_blocks,
        tokenizer_json=tokenizer,
        chat_template=CHAT_TEMPLATE,
        eos_token_ids=(IM_END,),
        special_token_ids=(IM_START, IM_END),
        weights_digest=sha256(b"").hexdigest(),
        tokenizer_digest=sha256(tokenizer).hexdigest(),
        template_digest=sha256(CHAT_TEMPLATE.encode()).hexdigest(),
        device_name="echo",
    )


def tokenizer_json() -> bytes:
    """A byte-level BPE without merges."""
    vocabulary = {letter: byte for byte, letter in enumerate(_byte_letters())}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    named = ((IM_START, "<|im_start|>"), (IM_END, "<|im_end|>"))
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": token, "content": text, "special": True, **special} for token, text in named
            ],
            "normalizer": None,
            "pre_tokenizer": {**level, "use_regex": True},
            "post_processor": None,
            "decoder": {**level, "use_regex": True},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "vocab": vocabulary,
                "merges": [],
            },
        },
        ensure_ascii=False,
    ).encode()


def _byte_letters() -> list[str]:
    """The letter that stands for each byte in byte-level vocabularies (GPT-2): itself where it is
    printable, else one of those from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = count(0x100)
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]
