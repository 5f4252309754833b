"""`lockgate audit purge`: what a purge's record proves, checked offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gateway.cli.audit import Public, RootKey, keyring_of, public_of
from gateway.cli.options import VAR, Json, StateDir
from gateway.cli.show import Refusal, document, instant, say
from security.purge import PurgeRecord

purges = typer.Typer()


@purges.callback()
def _group() -> None:
    """Keep `verify` a word of its own while it is the only one."""


@purges.command("verify")
def verify(
    path: Annotated[Path, typer.Argument(help="The proof, or what 'cache purge --json' printed.")],
    root_key: RootKey = None,
    public_key: Public = None,
    state_dir: StateDir = VAR,
    as_json: Json = False,
) -> None:
    """Check that a purge was recorded as told, by the log's public key alone. Exit code 1: it proves nothing,
    or not all of it was purged.

    It says what was counted in the executors' memory. It cannot speak of swap and of copies elsewhere.
    """
    from security.audit_proof import decode_proof
    from security.purge import read_purge

    keyring = (
        None if public_key is not None and root_key is None else keyring_of(root_key, state_dir)
    )
    public = public_of(public_key, keyring)
    if public is None:
        raise Refusal("Whose log is it? Give --public-key, as 'lockgate audit key' prints it.")
    proof = decode_proof(_proof_in(path))
    found = None if proof is None else read_purge(proof, public)
    if as_json:
        document(_told(found))
    elif found is None:
        say(f"{path} proves no purge.")
    else:
        say(_sentence(found))
    raise typer.Exit(0 if found is not None and found.purged.is_complete else 1)


def _proof_in(path: Path) -> bytes:
    """By itself, or as the member of an answer."""
    from security.audit_proof import PROOF_BYTES_MAX

    try:
        with path.open("rb") as file:
            raw = file.read(2 * PROOF_BYTES_MAX)
    except OSError as error:
        raise Refusal(f"{path} cannot be read: {error.strerror}.") from None
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return b""
    inner = value.get("proof") if isinstance(value, dict) else None
    return msgspec.json.encode(inner) if isinstance(inner, dict) else raw


def _told(found: PurgeRecord | None) -> dict[str, object]:
    if found is None:
        return {"proves": False}
    purged = found.purged
    return {
        "proves": True,
        "complete": purged.is_complete,
        "record": found.index,
        "at_ms": found.at_ms,
        "tenant": found.tenant,
        "scope": purged.scope,
        "reason": purged.reason.value,
        "blocks": purged.blocks,
        "blocks_zeroed": purged.blocks_zeroed,
        "blocks_read_zero": purged.blocks_read_zero,
        "key_destroyed": purged.key_destroyed,
        "unacknowledged": purged.unacknowledged,
    }


def _sentence(found: PurgeRecord) -> str:
    purged = found.purged
    whose = "of all tenants" if found.tenant is None else f"of {found.tenant}"
    key = "its key was destroyed" if purged.key_destroyed else "its key lives on"
    silent = (
        f" {purged.unacknowledged} executors did not acknowledge, so it is NOT COMPLETE."
        if purged.unacknowledged
        else ""
    )
    return (
        f"Record {found.index:,}, {instant(found.at_ms // 1000)}: of scope {purged.scope} ({whose}; "
        f"{purged.reason.value}) {purged.blocks:,} blocks were found, {purged.blocks_zeroed:,} zeroed and "
        f"{purged.blocks_read_zero:,} read back as zero; {key}.{silent}"
    )
