"""Signatures of what we send: Standard Webhooks, HMAC-SHA256 over id, time and body.

A file holds one secret a line, `whsec_` and base64 of 24 to 64 bytes; each signs, so that a receiver can
change from one to the next.  Source: Standard Webhooks 1.0 ("Signature scheme", "Zero downtime secret
rotation").
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

PREFIX = "whsec_"
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 24, 64
SECRETS_MOST = 2
FILE_BYTES_MAX = 4096


class BadSecret(ValueError):
    """The file is no secret to sign with.  Names no part of it."""


def read_secrets(path: Path) -> tuple[bytes, ...]:
    """Raises BadSecret."""
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except OSError as why:
        raise BadSecret(f"{path}: {why.strerror}") from why
    lines = [line.strip() for line in text.split(b"\n") if line.strip()]
    if len(text) > FILE_BYTES_MAX or not 1 <= len(lines) <= SECRETS_MOST:
        raise BadSecret(f"{path}: expected one secret a line, at most {SECRETS_MOST}")
    return tuple(_secret(line, path) for line in lines)


def signature(secrets: Iterable[bytes], message_id: str, timestamp_s: int, body: bytes) -> str:
    """The header `webhook-signature`: one for each secret."""
    signed = f"{message_id}.{timestamp_s}.".encode() + body
    digests = (hmac.digest(secret, signed, hashlib.sha256) for secret in secrets)
    return " ".join("v1," + base64.b64encode(digest).decode() for digest in digests)


def _secret(line: bytes, path: Path) -> bytes:
    expected = f"{path}: expected {PREFIX} and base64 of 24 to 64 random bytes"
    if not line.startswith(PREFIX.encode()):
        raise BadSecret(expected)
    try:
        secret = base64.b64decode(line[len(PREFIX) :], validate=True)
    except binascii.Error as why:
        raise BadSecret(expected) from why
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise BadSecret(expected)
    return secret
