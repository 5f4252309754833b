"""`lockgate audit verify`: the chain of audit records, checked offline."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.options import VAR, Json, StateDir
from gateway.cli.show import Refusal, document, note, say

audit = typer.Typer()


@audit.callback()
def _group() -> None:
    """Keep `verify` a word of its own while it is the only one."""


@audit.command("verify")
def verify(
    folder: Annotated[
        Path | None, typer.Option("--dir", help="The log's folder [STATE_DIR/audit].")
    ] = None,
    root_key: Annotated[
        Path | None,
        typer.Option(help="The root key, to check who wrote the records [STATE_DIR/root.key]."),
    ] = None,
    state_dir: StateDir = VAR,
    as_json: Json = False,
) -> None:
    """Check that no audit record was changed, removed or put in. The server may be running.

    Without the root key only the chain is checked: enough against an accident, not against somebody
    who can write the files.
    """
    from security.audit_verify import verify as walk
    from security.keyring import KeyringError, Purpose, open_keyring

    folder = folder or state_dir / "audit"
    key_path = root_key or state_dir / "root.key"
    if root_key is not None and not key_path.exists():
        raise Refusal(f"{key_path} does not exist. Correct --root-key, or leave it out.")
    try:
        key = open_keyring(key_path).derive(Purpose.AUDIT) if key_path.exists() else None
        verdict = walk(folder, key)
    except KeyringError as error:
        raise Refusal(str(error)) from None
    except FileNotFoundError:
        raise Refusal(
            f"There is no audit log in {folder}. Name it with --dir or --state-dir."
        ) from None
    except OSError as error:
        raise Refusal(f"{folder} cannot be read: {error.strerror}.") from None
    if as_json:
        document({"dir": str(folder), **dataclasses.asdict(verdict)})
    elif verdict.ok:
        say(f"{verdict.records:,} records in {folder}: whole and unchanged.")
    else:
        at = "its head" if verdict.bad_index is None else f"record {verdict.bad_index:,}"
        say(
            f"{folder} was changed: {at} is at fault ({verdict.reason}"
            + (f", in {verdict.segment}" if verdict.segment else "")
            + "). Keep the files as they are and compare with a copy."
        )
    if key is None:
        note("note: without the root key only the chain was checked, not who wrote it.")
    raise typer.Exit(0 if verdict.ok else 1)
