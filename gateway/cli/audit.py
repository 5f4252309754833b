"""`lockgate audit`: the log of records checked offline, and what an outsider needs to check it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from gateway.cli.options import VAR, Json, StateDir
from gateway.cli.show import Refusal, document, note, say

if TYPE_CHECKING:
    from security.audit_checkpoint import Checkpoint, PublicKey
    from security.keyring import Keyring

T = TypeVar("T")
audit = typer.Typer()

Dir = Annotated[Path | None, typer.Option("--dir", help="The log's folder [STATE_DIR/audit].")]
Dirs = Annotated[
    list[Path] | None,
    typer.Option(
        "--dir", help="The log's folder [STATE_DIR/audit]; each of several, compared too."
    ),
]
RootKey = Annotated[
    Path | None,
    typer.Option(help="The root key, to check who wrote the records [STATE_DIR/root.key]."),
]
Public = Annotated[
    str | None,
    typer.Option("--public-key", help="What `audit key` prints, to check without the root key."),
]
Kept = Annotated[
    list[Path] | None,
    typer.Option("--checkpoint", help="A checkpoint kept elsewhere: the log must still hold it."),
]
Proofs = Annotated[
    list[Path] | None, typer.Option("--proof", help="Check a proof of `audit prove` instead.")
]


@audit.command("verify")
def verify(
    folders: Dirs = None,
    root_key: RootKey = None,
    public_key: Public = None,
    checkpoints: Kept = None,
    proofs: Proofs = None,
    state_dir: StateDir = VAR,
    as_json: Json = False,
) -> None:
    """Check that no audit record was changed, removed or put in. The server may be running.

    The root key checks who wrote the records, the public key the checkpoints. Without any only the chain is
    checked: enough against an accident, not against somebody who can write the files. A checkpoint kept
    elsewhere also finds what somebody changed who has all keys.
    """
    from security.audit_verify import check_proof, first_difference, sentence
    from security.audit_verify import verify as walk
    from security.keyring import Purpose

    keyring = (
        None if public_key is not None and root_key is None else keyring_of(root_key, state_dir)
    )
    public = public_of(public_key, keyring)
    if proofs:
        found = {path: _read(path, lambda path: check_proof(path, public)) for path in proofs}
        if as_json:
            document({str(path): index for path, index in found.items()})
        else:
            for path, index in found.items():
                say(f"{path} proves {'nothing' if index is None else f'record {index:,}'}.")
        raise typer.Exit(0 if None not in found.values() else 1)
    kept = [_kept(path, public) for path in checkpoints or ()]
    key = keyring.derive(Purpose.AUDIT) if keyring is not None else None
    where = folders or [state_dir / "audit"]
    verdicts = {
        folder: _read(folder, lambda folder: walk(folder, key, public=public, kept=kept))
        for folder in where
    }
    differ = [first_difference(where[0], other) for other in where[1:]]
    told = [{"dir": str(path), **dataclasses.asdict(each)} for path, each in verdicts.items()]
    if as_json:
        document(told[0] if len(told) == 1 else {"dirs": told, "differ_at": differ})
    else:
        for folder, verdict in verdicts.items():
            say(sentence(verdict, folder))
        for other, index in zip(where[1:], differ, strict=True):
            if index is not None:
                say(f"{where[0]} and {other} differ from record {index:,} on.")
    if key is None and public is None:
        note("note: without the root key only the chain was checked, not who wrote it.")
    whole = all(each.ok for each in verdicts.values()) and not any(
        each is not None for each in differ
    )
    raise typer.Exit(0 if whole else 1)


@audit.command("key")
def key(root_key: RootKey = None, state_dir: StateDir = VAR) -> None:
    """Print the public key of the checkpoints: one line, for `--public-key`. Keep it elsewhere."""
    keyring = keyring_of(root_key, state_dir)
    if keyring is None:
        raise Refusal(
            f"There is no {state_dir / 'root.key'}. Name it with --root-key or --state-dir."
        )
    say(str(public_of(None, keyring)))


@audit.command("checkpoint")
def checkpoint(folder: Dir = None, state_dir: StateDir = VAR) -> None:
    """Print the last signed checkpoint. Keep it elsewhere: it shows later what was changed before it."""
    from security.audit_proof import last_note

    found = _read(folder or state_dir / "audit", last_note)
    if found is None:
        raise Refusal(
            "There is no checkpoint yet. The first is made a minute after the first record."
        )
    typer.echo(found, nl=False)


@audit.command("prove")
def prove(
    index: Annotated[int, typer.Option("--index", help="The record's number (`seq`).")],
    folder: Dir = None,
    state_dir: StateDir = VAR,
) -> None:
    """Print a proof that a record stands in the log, which `audit verify --proof` checks without the log."""
    from security.audit_proof import encode_proof, last_note
    from security.audit_proof import prove as proof_of

    where = folder or state_dir / "audit"
    found = _read(where, lambda where: last_note(where, covers=index)) if index >= 0 else None
    if found is None:
        raise Refusal(f"No checkpoint covers record {index:,} yet. Wait for the next one.")
    proof = _read(where, lambda where: proof_of(where, index, found))
    if proof is None:
        raise Refusal(f"{where} is not what its last checkpoint covers. Look with 'audit verify'.")
    say(encode_proof(proof).decode())


def keyring_of(root_key: Path | None, state_dir: Path) -> Keyring | None:
    """None where no root key was named and there is none."""
    from security.keyring import KeyringError, open_keyring

    path = root_key or state_dir / "root.key"
    with _readable(path):
        if not path.exists():
            if root_key is not None:
                raise Refusal(f"{path} does not exist. Correct --root-key, or leave it out.")
            return None
    try:
        return open_keyring(path)
    except KeyringError as error:
        raise Refusal(str(error)) from None


def public_of(line: str | None, keyring: Keyring | None) -> PublicKey | None:
    from security.audit_checkpoint import parse_public_key
    from security.audit_signer import Signer

    if line is None:
        return Signer.of(keyring).public if keyring is not None else None
    found = parse_public_key(line)
    if found is None:
        raise Refusal("--public-key is not a line that `audit key` prints. Copy it whole.")
    return found


def _kept(path: Path, public: PublicKey | None) -> Checkpoint:
    from security.audit_verify import read_kept

    found = _read(path, lambda path: read_kept(path, public))
    if found is None:
        raise Refusal(f"{path} is no checkpoint, or not signed by that key.")
    return found


def _read(path: Path, read: Callable[[Path], T]) -> T:
    with _readable(path):
        return read(path)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise Refusal(
            f"There is no audit log in {path}. Name it with --dir or --state-dir."
            if path.suffix == ""
            else f"{path} does not exist."
        ) from None
    except OSError as error:
        raise Refusal(f"{path} cannot be read: {error.strerror}.") from None
