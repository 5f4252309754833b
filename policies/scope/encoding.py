"""`enc`: values as bytes, so that no two values have the same bytes.

Typed, length-prefixed, versioned: one version byte, then an item, which is a type byte, the length of
what follows in four bytes, and that.  Absent is not empty, 1 is not True, and a list of two parts is
never the list of their concatenation.  Source: SECURITY.md §2 (`enc`), §5 (Mem0, LMCache rows).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

VERSION: Final = b"\x01"


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids in bulk: big-endian, 32 bits each."""

    packed: bytes

    @classmethod
    def of(cls, ids: Sequence[int]) -> Tokens:
        return cls(pack(ids))


Value: TypeAlias = "bool | int | bytes | str | Tokens | tuple[Value, ...] | frozenset[Value] | None"


def enc(value: Value) -> bytes:
    """TypeError for any other type, subclasses included: what is not written down has no bytes."""
    return VERSION + item(value)


def item(value: Value) -> bytes:
    """One part of an encoding, for those who join parts themselves (`chain`)."""
    writer = _WRITERS.get(type(value))
    if writer is None:
        raise TypeError(f"enc knows no {type(value).__name__}; give it plain values")
    return writer(value)


def sized(kind: bytes, body: bytes) -> bytes:
    return kind + len(body).to_bytes(4) + body


def pack(ids: Sequence[int]) -> bytes:
    try:
        return struct.pack(f">{len(ids)}I", *ids)
    except struct.error:
        raise ValueError("a token id is no integer of 32 bits; the tokeniser gives those") from None


TUPLE: Final = b"("
TOKENS: Final = b"t"

_WRITERS: Final[dict[type, Callable[[Any], bytes]]] = {
    type(None): lambda _: sized(b"0", b""),
    bool: lambda value: sized(b"?", b"\x01" if value else b"\x00"),
    int: lambda value: sized(b"i", value.to_bytes(value.bit_length() // 8 + 1, signed=True)),
    bytes: lambda value: sized(b"b", value),
    str: lambda value: sized(b"s", value.encode()),
    Tokens: lambda value: sized(TOKENS, value.packed),
    tuple: lambda value: sized(TUPLE, b"".join(item(each) for each in value)),
    frozenset: lambda value: sized(b"{", b"".join(sorted(item(each) for each in value))),
}
