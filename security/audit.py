"""The audit record: what it may hold, its one encoding, and the chain that binds each to all before.

Pure: no files, no clock.  `audit_log` writes, `audit_verify` reads.  Refuses to hold text: every
field is a number or a short name from our own code or configuration, a subject is a pseudonym.

One record is one line of ASCII JSON:

    {"at_ms":…,"kind":…,…,"seq":n,"hash":"h_n","mac":"m_n"}

    h_n = SHA-256(sized("lockgate/audit/v1") ‖ sized(h_{n-1}) ‖ sized(everything before ,"hash"))
    m_n = HMAC-SHA-256(audit key, sized("record") ‖ h_n), the first 16 bytes
    h_{-1} = 32 zero bytes; sized(x) = four-byte length ‖ x

Record 0 names the chain by a random id.  The hash needs no key, so anybody can follow the chain; the
MAC keeps whoever can write the file, but lacks the root key, from making a chain of their own.  What
neither shows is an end cut off: the head (count and hash, under a MAC) does.
Source: SECURITY.md §1 (P10, P11), §4 (L3, L8), §6 (Transparency logs).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from dataclasses import dataclass

import msgspec

VERSION = b"lockgate/audit/v1"
GENESIS = bytes(32)
LINE_BYTES_MAX = 8192
HEAD_BYTES = 384
TEXT_CHARS_MAX = 256
_TAIL = re.compile(rb',"hash":"([0-9a-f]{64})","mac":"([0-9a-f]{32})"\}\n')
_TAIL_BYTES = len(b',"hash":"') + 64 + len(b'","mac":"') + 32 + len(b'"}\n')
_KIND = re.compile(r"[a-z][a-z_]*(?:\.[a-z][a-z_]*)+", re.ASCII)


class AuditUnavailable(Exception):
    """The record was not made durable in time: what it would have recorded must not happen."""


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be recorded, and nothing else.  `kind` is dotted, widest first (`auth.denied`,
    `request.completed`, `key.revoked`).  `subject` is a pseudonym, never a user's name; `target`
    names what an administrative act was done to (a key's id, a tenant); `reason` is one of our
    words.  None is left out of the record."""

    kind: str
    request_id: str | None = None
    tenant: str | None = None
    subject: str | None = None
    credential_id: str | None = None
    route: str | None = None
    model: str | None = None
    outcome: str | None = None
    reason: str | None = None
    target: str | None = None
    status: int | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    nano_usd: int | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """A place in the chain: the next record's number and the hash that it must follow."""

    count: int = 0
    last: bytes = GENESIS


@dataclass(frozen=True, slots=True)
class Head:
    """How long a chain is and how it ends, as last written down."""

    chain: str
    link: Link


def encode(event: AuditEvent, at_ms: int, link: Link, key: bytes) -> tuple[bytes, Link]:
    """The line of one record, and the place after it."""
    body = _canonical({**fields(event), "at_ms": at_ms, "seq": link.count})
    signed = body[:-1]
    hashed = _hash(link.last, signed)
    line = signed + b',"hash":"%s","mac":"%s"}\n' % (
        hashed.hex().encode(),
        _mac(key, b"record", hashed)[:16].hex().encode(),
    )
    assert len(line) <= LINE_BYTES_MAX
    return line, Link(link.count + 1, hashed)


def fields(event: AuditEvent) -> dict[str, object]:
    """Bounded here rather than trusted: over-long text is cut with a mark, since a record that
    cannot be written would stop the service.  Control and non-ASCII characters are escaped by the
    encoding, so a record is one line whatever a name holds (L3)."""
    assert _KIND.fullmatch(event.kind), event.kind
    kept: dict[str, object] = {}
    for name, value in msgspec.structs.asdict(event).items():
        if isinstance(value, str):
            kept[name] = _bounded(value)
        elif value is not None:
            kept[name] = value
    return kept


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


def read(line: bytes) -> dict[str, object]:
    """A record's fields; empty where the line is none."""
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def encode_head(head: Head, key: bytes) -> bytes:
    """Of fixed length, so that it is overwritten in place by one write."""
    body = _canonical({"chain": head.chain, "count": head.link.count, "last": head.link.last.hex()})
    mac = _mac(key, b"head", body).hex().encode()
    line = body[:-1] + b',"mac":"%s"}' % mac
    return line.ljust(HEAD_BYTES - 1) + b"\n"


def decode_head(data: bytes, key: bytes | None) -> Head | None:
    """None for anything but a head that `encode_head` made, byte for byte."""
    value = read(data)
    chain, count, last = value.get("chain"), value.get("count"), value.get("last")
    if not (isinstance(chain, str) and type(count) is int and isinstance(last, str)):
        return None
    if not re.fullmatch(r"[0-9a-f]{32}", chain) or not re.fullmatch(r"[0-9a-f]{64}", last):
        return None
    if not 0 <= count < 2**53:
        return None
    head = Head(chain, Link(count, bytes.fromhex(last)))
    if key is None:
        mac = value.get("mac")
        body = _canonical({name: value[name] for name in ("chain", "count", "last")})
        same = (
            data == (body[:-1] + b',"mac":"%s"}' % str(mac).encode()).ljust(HEAD_BYTES - 1) + b"\n"
        )
        return head if same else None
    return head if hmac.compare_digest(encode_head(head, key), data) else None


def _bounded(text: str) -> str:
    """By length, and by what escaping makes of it: one character can become twelve."""
    if len(text) > TEXT_CHARS_MAX:
        text = text[: TEXT_CHARS_MAX - 1] + "…"
    return text if len(json.dumps(text)) <= 600 else text[:40] + "…"


def _canonical(value: dict[str, object]) -> bytes:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"), sort_keys=True).encode()


def _hash(last: bytes, signed: bytes) -> bytes:
    return hashlib.sha256(_sized(VERSION) + _sized(last) + _sized(signed)).digest()


def _mac(key: bytes, purpose: bytes, data: bytes) -> bytes:
    return hmac.new(key, _sized(purpose) + data, hashlib.sha256).digest()


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(4) + data
