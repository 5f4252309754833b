"""Adding a root key and dropping one: the two ends of a rotation, done to the file.

    add_root          a new last line, which wraps from the next start on
    (restart, then TenantSecrets.rewrap: everything is wrapped by the new root, in one commit)
    drop_root         the old line goes, unless something still needs it

Whoever has an old copy of the database and not the dropped root cannot read the secrets in it.  The
first root is never dropped: API keys and audit records hang on it.  Refuses to know: what is wrapped.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from security.keyring import (
    ROOTS_MAX,
    Keyring,
    KeyringError,
    create_secret_file,
    read_roots,
    roots_text,
    sync_folder,
)


def add_root(path: Path, *, rng: Callable[[int], bytes] = os.urandom) -> str:
    """The new root's id.  Raises KeyringError, the file being then as it was."""
    with _alone(path):
        roots = read_roots(path)
        if len(roots) >= ROOTS_MAX:
            raise KeyringError(f"{path} has {ROOTS_MAX} root keys. Drop those that wrap nothing.")
        root = rng(32)
        _replace(path, (*roots, root), rng)
        return _ids((root,))[0]


def drop_root(
    path: Path, root_id: str, *, in_use: Collection[str], rng: Callable[[int], bytes] = os.urandom
) -> None:
    """Forget a root.  `in_use`: `TenantSecrets.root_ids()`, asked after the re-wrapping.  Raises
    KeyringError where it is the first, the last, in use, or not there."""
    with _alone(path):
        roots = read_roots(path)
        ids = _ids(roots)
        if root_id not in ids[1:-1]:
            raise KeyringError(
                f"Root key {root_id} cannot be dropped from {path}: only one between the first and "
                f"the last can ({', '.join(ids[1:-1]) or 'there is none'})."
            )
        if root_id in in_use:
            raise KeyringError(
                f"Root key {root_id} still wraps tenants' secrets. Wrap them again first."
            )
        _replace(path, [root for root, its in zip(roots, ids, strict=True) if its != root_id], rng)


def _ids(roots: Sequence[bytes]) -> tuple[str, ...]:
    return Keyring(tuple(roots), b"").root_ids


def _replace(path: Path, roots: Sequence[bytes], rng: Callable[[int], bytes]) -> None:
    """Whole or not at all, durably."""
    fresh = path.with_name(f".{path.name}.next.{rng(8).hex()}")
    create_secret_file(fresh, roots_text(roots), rng=rng)
    fresh.replace(path)
    sync_folder(path.parent)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Two at once would lose one's root, and with it whatever it had wrapped."""
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
