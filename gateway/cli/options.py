"""Options that several commands share, so that each is spelt and explained once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.show import Refusal
from gateway.settings.load import ENV_STATE_DIR
from policies.tags import parse

ENV_ADMIN_URL = "LOCKGATE_ADMIN_URL"
ENV_TOKEN = "LOCKGATE_TOKEN"  # noqa: S105 — the name of a variable

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
StateDir = Annotated[
    Path,
    typer.Option(
        "--state-dir", envvar=ENV_STATE_DIR, help="Where the server keeps everything it writes."
    ),
]
AdminUrl = Annotated[
    str | None,
    typer.Option(
        "--admin-url",
        envvar=ENV_ADMIN_URL,
        help="The server's admin listener; in development it is known.",
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar=ENV_TOKEN,
        help="An operator's or tenant administrator's token; in development it is known. "
        "The variable keeps it out of process lists.",
    ),
]
Reason = Annotated[
    str, typer.Option("--reason", help="Why; it is kept with the change, and who made it.")
]
Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", help="Such as team=search; may be given several times."),
]
VAR = Path("var")


def tags_of(given: list[str] | None) -> dict[str, str]:
    """Raises Refusal."""
    try:
        pairs = [parse(text) for text in given or ()]
    except ValueError as why:
        raise Refusal(f"--tag: {why}.", exit_code=2) from None
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Refusal("--tag: one name has one value.", exit_code=2)
    return found
