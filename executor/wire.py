"""Frames on the Unix socket: four bytes of big-endian length, then one msgpack value of the tagged
unions of `contract`.  Strict: a frame that is too long, cut short, or anything but a known message
is a `WireError`, after which the connection is closed; there is no way to resynchronise.

Refuses to know: what a message means, sockets, processes.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Final

import msgspec

from executor.contract import Command, Message

COMMAND_BYTES_MAX: Final = 16 * 2**20
"""Gateway → executor: a prompt of two million tokens, more than any context."""
MESSAGE_BYTES_MAX: Final = 64 * 2**20
"""Executor → gateway: the model card with its tokenizer is the longest."""

_LENGTH: Final = struct.Struct(">I")


class WireError(Exception):
    """The peer's bytes are no message of ours.  The text names the fault, never the content."""


_encoder = msgspec.msgpack.Encoder()
_commands = msgspec.msgpack.Decoder[Command](Command)
_messages = msgspec.msgpack.Decoder[Message](Message)


def encode_command(command: Command) -> bytes:
    """A whole frame.  WireError if it is longer than the executor would accept."""
    return _frame(_encoder.encode(command), COMMAND_BYTES_MAX)


def encode_message(message: Message) -> bytes:
    return _frame(_encoder.encode(message), MESSAGE_BYTES_MAX)


def decode_command(body: bytes) -> Command:
    """The value of one frame, without its length."""
    try:
        return _commands.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError, MemoryError) as fault:
        raise WireError(f"not a command: {type(fault).__name__}") from None


def decode_message(body: bytes) -> Message:
    try:
        return _messages.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError, MemoryError) as fault:
        raise WireError(f"not a message: {type(fault).__name__}") from None


async def read_command(reader: asyncio.StreamReader) -> Command | None:
    """The next command, or None where the gateway closed between two frames."""
    body = await _read(reader, COMMAND_BYTES_MAX)
    return None if body is None else decode_command(body)


async def read_message(reader: asyncio.StreamReader) -> Message | None:
    body = await _read(reader, MESSAGE_BYTES_MAX)
    return None if body is None else decode_message(body)


def _frame(body: bytes, bytes_max: int) -> bytes:
    if len(body) > bytes_max:
        raise WireError(f"a frame of {len(body)} bytes is over the bound of {bytes_max}")
    return _LENGTH.pack(len(body)) + body


async def _read(reader: asyncio.StreamReader, bytes_max: int) -> bytes | None:
    try:
        head = await reader.readexactly(_LENGTH.size)
    except asyncio.IncompleteReadError as cut:
        if not cut.partial:
            return None
        raise WireError("the connection ended inside a frame's length") from None
    (size,) = _LENGTH.unpack(head)
    if size > bytes_max:  # before a byte of it is read or a buffer for it made
        raise WireError(f"a frame of {size} bytes is over the bound of {bytes_max}")
    try:
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        raise WireError("the connection ended inside a frame") from None
