"""What a grammar worker is told once: the tokenizer, and what one grammar may use.

Apart from the worker, so that the engine's process never loads a compiler of grammars.
"""

from __future__ import annotations

from typing import Final

import msgspec

from executor.contract import ModelCard

EXIT_TOKENIZER: Final = 3
"""The worker's status where the tokenizer is not one that it can read."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The first message of a worker's life: four bytes of length, then this in msgpack.

    Compiling may take `compile_cpu_ms` of processor time; a mask `mask_cpu_ms`, where what was not
    used is saved up to `burst_cpu_ms`.  Both `wall_ms` by the clock, on a machine however busy.
    `memory_bytes` come on top of what the worker has when it forks."""

    tokenizer_json: bytes
    vocab_size: int
    end_tokens: tuple[int, ...]
    compile_cpu_ms: int = 500
    mask_cpu_ms: int = 5
    burst_cpu_ms: int = 250
    wall_ms: int = 10_000
    memory_bytes: int = 256 * 2**20


def setup_of(card: ModelCard) -> Setup:
    return Setup(
        tokenizer_json=card.tokenizer_json,
        vocab_size=card.vocab_size,
        end_tokens=card.eos_token_ids,
    )
