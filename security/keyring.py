"""The root keys, and every other key derived from them, one purpose each.

Refuses to know what the keys are used for: it gives 32 bytes for a named purpose and a context, so
that no key ever serves in two domains.  The file is created once, complete or not at all, readable
by its owner alone; one that others could have read is refused, not repaired, since its secret may
be out.  Source: RFC 5869; SECURITY.md §5 (LiteLLM CVE-2026-114612), §6 (Keys).

A line of the file is a root.  The first one stays for good: API keys and the audit log hang on it.  The
last one wraps the tenants' secrets (`keyring_tenants`), and those between are still needed to unwrap
what has not been wrapped again (`keyring_roots` adds and drops).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from security.strict import NotStrict, base64url, to_base64url

_HEADER = "lockgate-root-key-v1 "
_KEY_BYTES = 32
ROOTS_MAX = 8
_FILE_BYTES_MAX = 1024


class KeyringError(Exception):
    """The root key cannot be used.  The message says what to do and holds no key material."""


class Purpose(StrEnum):
    """Closed: a new use is a new member.  A member's value never changes its meaning."""

    API_KEYS = "api-keys"
    AUDIT = "audit"
    AUDIT_SIGNING = "audit-signing"
    PSEUDONYM = "pseudonym"
    REQUEST_IDS = "request-ids"
    IDEMPOTENCY = "idempotency"
    FORGOTTEN = "forgotten"
    KEY_ID = "key-id"
    TENANT_SECRETS = "tenant-secrets"
    CACHE_PUBLIC = "cache-public"
    REGISTERED_PUBLIC = "registered-public"
    PROOFS = "proofs"


@dataclass(frozen=True, slots=True)
class Keyring:
    """`epoch` is drawn anew in each process; what must not outlive it mixes it in."""

    _roots: tuple[bytes, ...] = field(repr=False)
    epoch: bytes = field(repr=False)

    def derive(self, purpose: Purpose, context: bytes = b"", *, root: str | None = None) -> bytes:
        """32 bytes for this purpose and context, and for no other.  `root`: the id of one of
        `root_ids`; None: the first.  KeyringError where the file has no such root."""
        return _derive(self._root(root), purpose, context)

    @property
    def id(self) -> str:
        """Which keyring this is, safe to show: 16 hexadecimal digits that say nothing about it."""
        return self.root_ids[0]

    @property
    def root_ids(self) -> tuple[str, ...]:
        """Of each root, oldest first; the last one wraps."""
        return tuple(_id_of(each) for each in self._roots)

    def _root(self, wanted: str | None) -> bytes:
        if wanted is None:
            return self._roots[0]
        for root in self._roots:
            if _id_of(root) == wanted:
                return root
        raise KeyringError(
            f"Root key {wanted} is not in the root key file, which has {', '.join(self.root_ids)}. "
            "Restore the file from your backup: what that key protects cannot be read without it."
        )

    def pseudonymiser(self) -> Callable[[str], str]:
        """Text to 32 hexadecimal digits: equal for equal text, meaningless without the root key."""
        key = self.derive(Purpose.PSEUDONYM)
        return lambda text: hmac.digest(key, text.encode(), "sha256")[:16].hex()

    def retry_keys(self) -> Callable[[tuple[str, ...]], bytes]:
        """A client's retry key with all that it belongs to, to 16 bytes: equal for equal parts, in every
        process of this deployment; meaningless without the root key."""
        digest = self.idempotency("retry")
        return lambda parts: digest([part.encode() for part in parts])[:16]

    def forgotten(self) -> Callable[[Sequence[bytes]], bytes]:
        """The parts of a name to 32 bytes, by which it is called where it is not to be read any more."""
        return self._digest(Purpose.FORGOTTEN, b"")

    def proofs(self) -> Callable[[Sequence[bytes]], bytes]:
        """What a proof of possession is remembered by, and what its nonces are made of, to 32 bytes."""
        return self._digest(Purpose.PROOFS, b"")

    def idempotency(self, use: str) -> Callable[[Sequence[bytes]], bytes]:
        """The parts of one thing to 32 bytes, as `retry_keys`.  `use`: what of, so that a key is never equal to a body."""
        return self._digest(Purpose.IDEMPOTENCY, use.encode())

    def _digest(self, purpose: Purpose, context: bytes) -> Callable[[Sequence[bytes]], bytes]:
        key = self.derive(purpose, context)
        return lambda parts: hmac.new(
            key, b"".join(_sized(part) for part in parts), hashlib.sha256
        ).digest()


def open_keyring(path: Path, *, rng: Callable[[int], bytes] = os.urandom) -> Keyring:
    """Read the root key, creating it on first start.  Raises KeyringError."""
    if not path.exists() and not path.is_symlink():
        # Two from the first day, so that the one that wraps can be replaced and destroyed.
        create_secret_file(path, roots_text((rng(_KEY_BYTES), rng(_KEY_BYTES))), rng=rng)
    return Keyring(read_roots(path), rng(16))


def read_roots(path: Path) -> tuple[bytes, ...]:
    """Oldest first.  Raises KeyringError."""
    text = read_secret_file(path, bytes_max=_FILE_BYTES_MAX).decode("ascii", "replace")
    roots = tuple(_root_of(line) for line in text.removesuffix("\n").split("\n"))
    whole = [root for root in roots if root is not None]
    if len(whole) != len(roots) or len(set(whole)) != len(whole) or len(whole) > ROOTS_MAX:
        raise KeyringError(
            f"{path} is not a Lockgate root key. Restore it from your backup: a new key would make "
            "every API key invalid and every audit record unverifiable."
        )
    return tuple(whole)


def roots_text(roots: Iterable[bytes]) -> bytes:
    return "".join(f"{_HEADER}{to_base64url(root)}\n" for root in roots).encode()


def _root_of(line: str) -> bytes | None:
    try:
        root = base64url(line.removeprefix(_HEADER))
    except NotStrict:
        return None
    return root if line.startswith(_HEADER) and len(root) == _KEY_BYTES else None


def _derive(root: bytes, purpose: Purpose, context: bytes) -> bytes:
    info = b"lockgate/v1" + _sized(purpose.value.encode()) + _sized(context)
    return HKDF(SHA256(), _KEY_BYTES, salt=None, info=info).derive(root)


def _id_of(root: bytes) -> str:
    return _derive(root, Purpose.KEY_ID, b"")[:8].hex()


def create_secret_file(path: Path, data: bytes, *, rng: Callable[[int], bytes]) -> bool:
    """Write `data` to a new file of mode 0600, whole or not at all, durably.  False where another
    process was first; its file then stands."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{rng(8).hex()}")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise KeyringError(f"{path} cannot be created: {error.strerror}.") from error
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        try:
            os.link(draft, path)  # unlike a rename, never replaces a file that is there
        except FileExistsError:
            return False
    finally:
        draft.unlink()
    sync_folder(path.parent)
    return True


def read_secret_file(path: Path, *, bytes_max: int) -> bytes:
    """Refuses links, anything but a plain file, another's file, and one that others can read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise KeyringError(f"{path} cannot be read: {error.strerror}.") from error
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        os.close(fd)
        raise KeyringError(f"{path} is not a plain file.")
    with os.fdopen(fd, "rb") as file:
        if info.st_uid not in {0, os.geteuid()}:
            raise KeyringError(f"{path} belongs to another account. Give it to this one.")
        if info.st_mode & 0o077:
            raise KeyringError(
                f"{path} is open to others (mode {info.st_mode & 0o777:04o}, expected 0600). If "
                "nobody can have read it, run chmod 600 on it; else replace the key."
            )
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise KeyringError(f"{path} has more than {bytes_max} bytes.")
    return data


def sync_folder(path: Path) -> None:
    """Make a new name in a folder survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sized(data: bytes) -> bytes:
    """Length-prefixed, so that no two lists of parts have one encoding."""
    return len(data).to_bytes(4) + data
