"""Options that several commands share, so that each is spelt and explained once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gateway.settings.load import ENV_STATE_DIR

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
VAR = Path("var")
