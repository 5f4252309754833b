"""The chain of audit records and its head: how a line is bound to all before it, and read back.

One record is one line of ASCII JSON:

    {"at_ms":…,"kind":…,…,"seq":n,"hash":"h_n","mac":"m_n"}

    h_n = SHA-256(sized("lockgate/audit/v1") ‖ sized(h_{n-1}) ‖ sized(everything before ,"hash"))
    m_n = HMAC-SHA-256(audit key, sized("record") ‖ h_n), the first 16 bytes
    h_{-1} = 32 zero bytes; sized(x) = four-byte length ‖ x
    leaf of the Merkle tree (`merkle`): the whole line, hash and MAC included, without its end

Record 0 names the chain by a random id.  The hash needs no key, so anybody can follow the chain; the
MAC keeps whoever can write the file, but lacks the root key, from making a chain of their own.  What
neither shows is an end cut off: the head (count and hash, under a MAC) does, and a signed checkpoint
that is kept elsewhere (`audit_checkpoint`) does against whoever has the keys, too.

Pure, standard library alone, so that a reviewer can read and run it apart from the rest.  Refuses to
know what a record may say (`audit`).  Source: SECURITY.md §1 (P11), §6 (Transparency logs).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from dataclasses import dataclass

from security.merkle import leaf_hash

VERSION = b"lockgate/audit/v1"
GENESIS = bytes(32)
LINE_BYTES_MAX = 8192
HEAD_BYTES = 384
_CANONICAL = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), sort_keys=True)
_TAIL = re.compile(rb',"hash":"([0-9a-f]{64})","mac":"([0-9a-f]{32})"\}\n')
_TAIL_BYTES = len(b',"hash":"') + 64 + len(b'","mac":"') + 32 + len(b'"}\n')


@dataclass(frozen=True, slots=True)
class Link:
    """A place in the chain: the next record's number and the hash that it must follow."""

    count: int = 0
    last: bytes = GENESIS


@dataclass(frozen=True, slots=True)
class Head:
    """How long a chain is and how it ends, as last written down.  `signed`: how many records the last
    durable checkpoint covers."""

    chain: str
    link: Link
    signed: int = 0


def seal(value: dict[str, object], link: Link, key: bytes) -> tuple[bytes, Link]:
    """The line of one record, and the place after it."""
    signed = canonical({**value, "seq": link.count})[:-1]
    hashed = _hash(link.last, signed)
    line = signed + b',"hash":"%s","mac":"%s"}\n' % (
        hashed.hex().encode(),
        _mac(key, b"record", hashed)[:16].hex().encode(),
    )
    assert len(line) <= LINE_BYTES_MAX
    return line, Link(link.count + 1, hashed)


@dataclass(frozen=True, slots=True)
class Broken:
    """Why a line does not continue the chain; `reason` is a word."""

    reason: str


def follow(line: bytes, link: Link, key: bytes | None) -> Link | Broken:
    """The place after `line` if it is exactly the record that belongs at `link`.  Without the key
    the chain is followed but its MACs are not checked."""
    tail = _TAIL.fullmatch(line, max(0, len(line) - _TAIL_BYTES))
    if tail is None or len(line) > LINE_BYTES_MAX:
        return Broken("not_a_record")
    signed, hash_hex, mac_hex = line[: tail.start()], tail.group(1), tail.group(2)
    hashed = _hash(link.last, signed)
    if hashed.hex().encode() != hash_hex:
        return Broken("hash")
    if key is not None and not hmac.compare_digest(
        _mac(key, b"record", hashed)[:16].hex().encode(), mac_hex
    ):
        return Broken("mac")
    # A hash that fits binds the text, yet only a key binds who wrote it: say what was read, too.
    if read(line).get("seq") != link.count:
        return Broken("sequence")
    return Link(link.count + 1, hashed)


def leaf(line: bytes) -> bytes:
    """Of a line with its end."""
    return leaf_hash(line[:-1])


def hash_in(line: bytes) -> bytes | None:
    """The chain's hash that a line names as its own, unchecked."""
    tail = _TAIL.fullmatch(line, max(0, len(line) - _TAIL_BYTES))
    return None if tail is None else bytes.fromhex(tail.group(1).decode())


def read(line: bytes) -> dict[str, object]:
    """A record's fields; empty where the line is none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def encode_head(head: Head, key: bytes) -> bytes:
    """Of fixed length, so that it is overwritten in place by one write."""
    body = _head_body(head)
    return _head_line(body, _mac(key, b"head", body).hex())


def decode_head(data: bytes, key: bytes | None) -> Head | None:
    """None for anything but a head that `encode_head` made, byte for byte."""
    value = read(data)
    chain, count, last = value.get("chain"), value.get("count"), value.get("last")
    signed = value.get("signed", 0)
    if not (isinstance(chain, str) and type(count) is int and isinstance(last, str)):
        return None
    if not re.fullmatch(r"[0-9a-f]{32}", chain) or not re.fullmatch(r"[0-9a-f]{64}", last):
        return None
    if type(signed) is not int or not 0 <= signed <= count < 2**53:
        return None
    head = Head(chain, Link(count, bytes.fromhex(last)), signed)
    if key is None:
        return head if data == _head_line(_head_body(head), str(value.get("mac"))) else None
    return head if hmac.compare_digest(encode_head(head, key), data) else None


def _head_body(head: Head) -> bytes:
    value = {"chain": head.chain, "count": head.link.count, "last": head.link.last.hex()}
    return canonical(value | ({"signed": head.signed} if head.signed else {}))


def _head_line(body: bytes, mac: str) -> bytes:
    return (body[:-1] + b',"mac":"%s"}' % mac.encode("ascii", "replace")).ljust(
        HEAD_BYTES - 1
    ) + b"\n"


def canonical(value: dict[str, object]) -> bytes:
    return _CANONICAL.encode(value).encode()


def _hash(last: bytes, signed: bytes) -> bytes:
    return hashlib.sha256(_sized(VERSION) + _sized(last) + _sized(signed)).digest()


def _mac(key: bytes, purpose: bytes, data: bytes) -> bytes:
    return hmac.digest(key, _sized(purpose) + data, "sha256")


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(4) + data
