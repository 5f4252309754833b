from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from executor.contract import Quota, allotted
from executor.cpu.backend import KV_BYTES_DEFAULT
from executor.cpu.kv import BLOCK_TOKENS
from executor.settings import POOL_PART, memory_line, pool_blocks
from gateway.assembly import cache_terms
from gateway.settings import development
from tests.executor.fakes import FakeRunner, card


def test_the_memory_line_counts_whole_sequences() -> None:
    model = replace(
        card(FakeRunner()),
        context_tokens=8192,
        block_tokens=32,
        kv_blocks=1000,
        kv_bytes=720 << 20,
    )
    assert memory_line(model) == "KV 720 MiB: 3 sequences of 8,192 tokens, 31 of 1,024"
    assert memory_line(replace(model, context_tokens=100)).endswith("250 of 100")


@pytest.mark.parametrize("itemsize", (2, 4))
def test_in_development_a_document_of_1024_tokens_has_room(itemsize: int) -> None:
    """Of the default model, with 64 tokens of a chat template before it, in either format of its memory."""
    token_bytes = 30 * 2 * 3 * 64 * itemsize
    blocks = pool_blocks(KV_BYTES_DEFAULT // (token_bytes * BLOCK_TOKENS), POOL_PART)
    terms = cache_terms(development(Path("var")))
    quotas = [Quota(owner=name, part=each.quota) for name, each in terms.items()]
    for most in allotted(quotas, blocks).values():
        assert most.pinned * BLOCK_TOKENS >= 1024 + 64
