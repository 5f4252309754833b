"""What the engine's process and a grammar's process say to each other: four bytes of big-endian
length, then one msgpack value of a closed union; never pickle.

Each grammar has a process and a socket of its own.  The engine says `Compile` once, then `Next` after
each token; the process says `Alive` at once, then `Refused`, or `Mask` for the first token and one
more for each `Next`.  The end of the stream after `Alive` and before an answer is a budget overrun:
the process was ended by its own limits.

Refuses to know: what compiles a grammar, who asks.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from executor.contract import Grammar

FRAME_BYTES_MAX: Final = 1 << 20
"""A mask of eight million tokens; a grammar is bounded far below."""
_LENGTH: Final = struct.Struct(">I")


class Compile(msgspec.Struct, frozen=True, tag="compile"):
    grammar: Grammar


class Next(msgspec.Struct, frozen=True, tag="next"):
    """`token` was said: which may come after it?"""

    token: int


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """The process is there; what ends it from here on is the grammar's own doing."""


class Mask(msgspec.Struct, frozen=True, tag="mask"):
    """One bit a token id, the lowest bit of a byte first."""

    allowed: bytes


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """`reason`: a sentence for whoever wrote the grammar."""

    reason: str


Order = Compile | Next
Word = Alive | Mask | Refused

_encoder = msgspec.msgpack.Encoder()
_orders = msgspec.msgpack.Decoder[Order](Order)
_words = msgspec.msgpack.Decoder[Word](Word)


class FrameError(Exception):
    """The bytes are no message of ours."""


def encode(message: Order | Word) -> bytes:
    body = _encoder.encode(message)
    assert len(body) <= FRAME_BYTES_MAX
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Puts a stream of bytes back into frames.  Holds at most one frame that is not complete."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that `data` completes, without their lengths.  Raises FrameError."""
        self._held += data
        found = []
        while len(self._held) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._held)
            if size > FRAME_BYTES_MAX:
                raise FrameError(f"a frame of {size} bytes is over the bound of {FRAME_BYTES_MAX}")
            end = _LENGTH.size + size
            if len(self._held) < end:
                break
            found.append(bytes(self._held[_LENGTH.size : end]))
            del self._held[:end]
        return found


def order(body: bytes) -> Order:
    try:
        return _orders.decode(body)
    except (msgspec.MsgspecError, ValueError) as fault:
        raise FrameError(f"not an order: {type(fault).__name__}") from None


def word(body: bytes) -> Word:
    try:
        return _words.decode(body)
    except (msgspec.MsgspecError, ValueError) as fault:
        raise FrameError(f"not a word: {type(fault).__name__}") from None
