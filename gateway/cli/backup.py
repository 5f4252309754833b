"""`lockgate backup` and `restore`: the book in a file, and back."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.options import Json
from gateway.cli.serve import Config, choose
from gateway.cli.show import Refusal, document, pairs, say
from gateway.settings import SettingsError
from gateway.settings.load import ENV_STATE_DIR
from tenants import backup as copies
from tenants.backup import Copy
from tenants.store import StoreRefused, file_of

Where = Annotated[
    Path | None,
    typer.Option(
        "--state-dir", envvar=ENV_STATE_DIR, help="Where the server keeps its state [var]."
    ),
]


def backup(
    to: Annotated[Path, typer.Argument(help="The new file.")],
    config: Config = None,
    state_dir: Where = None,
    as_json: Json = False,
) -> None:
    """Copy the book to a new file, while the server goes on.

    The copy is looked through from end to end. It opens nothing by itself: keep the root key and the
    audit log too, and not beside it. A tenant that is shredded later is still in it, wrapped.
    """
    try:
        found = copies.back_up(_book(config, state_dir), to)
    except StoreRefused as why:
        raise Refusal(str(why)) from None
    _show(found, as_json=as_json)


def restore(
    source: Annotated[Path, typer.Argument(help="A file that `lockgate backup` made.")],
    config: Config = None,
    state_dir: Where = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Keep the book that is there as ….before.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Put a copy of the book in its place. The server must not run.

    Requests that ran when the copy was taken are charged what they had reserved, as after a crash, and
    what came after it is not in it.
    """
    try:
        found = copies.restore(source, _book(config, state_dir), replace=replace)
    except StoreRefused as why:
        raise Refusal(str(why)) from None
    _show(found, as_json=as_json)


def _book(config: Path | None, state_dir: Path | None) -> Path:
    try:
        settings = choose(config, None, None, state_dir)
    except SettingsError as error:
        raise Refusal(str(error)) from None
    path = file_of(settings.state.database_url)
    if path is None:
        raise Refusal(
            "The book is in PostgreSQL. Use pg_dump and pg_restore; deploy/README.md shows how."
        )
    return path


def _show(found: Copy, *, as_json: bool) -> None:
    told: dict[str, Any] = asdict(found) | {"path": str(found.path)}
    if as_json:
        document(told)
        return
    pairs(told)
    say("Whole: looked through from end to end.")
