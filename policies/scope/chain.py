"""The chain over blocks: one 256-bit value a full block, made with its label's key.

    h_0 = HMAC(K_L1, 0x00 ‖ C0)
    h_j = HMAC(K_Lj, 0x01 ‖ h_{j−1} ‖ enc(tag, position, token ids))

The value of a block stands for its tokens, all before it, where it stands, under whose label and in
which context; nobody without the keys can make or confirm one.  It says where to look and is no proof:
who finds a block compares tag, parent and token ids besides (SECURITY.md §2, "On a hit").

Refuses to know: labels, tenants, secrets: a tag is an opaque name and a key is 32 bytes
(`security.cache_keys` makes both).  Source: SECURITY.md §2; RFC 2104.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from policies.scope.encoding import TOKENS, TUPLE, VERSION, item, pack, sized

TAG_BYTES: Final = 32
KEY_BYTES: Final = 32
VALUE_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class ScopeKey:
    """A label as those see it who may not know whose it is."""

    tag: bytes
    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        assert len(self.tag) == TAG_BYTES
        assert len(self.key) == KEY_BYTES


@dataclass(frozen=True, slots=True)
class Chain:
    """Where a chain stands: `position` tokens have gone in, and `head` is the last value."""

    block_tokens: int
    position: int
    head: bytes = field(repr=False)

    def extend(self, scope: ScopeKey, tokens: Sequence[int]) -> tuple[Chain, tuple[bytes, ...]]:
        """The chain after `tokens`, which are whole blocks of one label, and a value a block.
        ValueError for an id that is none."""
        size = self.block_tokens
        assert len(tokens) % size == 0, "only full blocks have a value"
        packed = pack(tokens)
        key, named = scope.key, item(scope.tag)
        bulk = TOKENS + (4 * size).to_bytes(4)
        position, head, values = self.position, self.head, []
        for start in range(0, len(packed), 4 * size):
            parts = named + item(position) + bulk + packed[start : start + 4 * size]
            head = hmac.digest(key, b"\x01" + head + VERSION + sized(TUPLE, parts), "sha256")
            values.append(head)
            position += size
        return Chain(size, position, head), tuple(values)


def begin(first: ScopeKey, context: bytes, block_tokens: int) -> Chain:
    """`first`: of the first block's label.  `context`: C0, `Context.digest()`."""
    assert len(context) == VALUE_BYTES
    assert block_tokens > 0
    return Chain(block_tokens, 0, hmac.digest(first.key, b"\x00" + context, "sha256"))


def full_blocks(untils: Iterable[int], block_tokens: int) -> tuple[int, ...]:
    """How many full blocks each of consecutive scopes has, where the ends of these stand in tokens: a
    block belongs to the scope of its last token."""
    assert block_tokens > 0
    counts, before = [], 0
    for until in untils:
        assert until // block_tokens >= before, "scopes follow one another"
        counts.append(until // block_tokens - before)
        before = until // block_tokens
    return tuple(counts)


def of_prompt(
    tokens: Sequence[int],
    scopes: Sequence[tuple[int, ScopeKey]],
    context: bytes,
    block_tokens: int,
) -> tuple[Chain, tuple[tuple[ScopeKey, bytes], ...]]:
    """Scope and value of each full block, and the chain, to go on with under the last scope.  `scopes`:
    the end of each in tokens, and its key; the last ends with the prompt."""
    assert scopes
    assert scopes[-1][0] == len(tokens)
    counts = full_blocks([until for until, _ in scopes], block_tokens)
    keyed = [(scope, count) for (_, scope), count in zip(scopes, counts, strict=True) if count]
    chain = begin(keyed[0][0] if keyed else scopes[-1][1], context, block_tokens)
    found: list[tuple[ScopeKey, bytes]] = []
    for scope, count in keyed:
        at = chain.position
        chain, values = chain.extend(scope, tokens[at : at + count * block_tokens])
        found += [(scope, value) for value in values]
    return chain, tuple(found)
