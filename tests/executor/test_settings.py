from __future__ import annotations

from msgspec.structs import replace

from executor.settings import memory_line
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
