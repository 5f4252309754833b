"""`lockgate user`: people, as what is kept names them."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.cli.client import LONG_S, connect
from gateway.cli.options import VAR, AdminUrl, Json, Reason, StateDir, Token
from gateway.cli.show import document, note, say

users = typer.Typer()


@users.callback()
def _group() -> None:
    """People, as what is kept names them."""


@users.command("pseudonymise")
def pseudonymise(
    user: Annotated[str, typer.Argument(help="The subject, as reports name it.")],
    tenant: Annotated[str, typer.Option(help="Whose.")],
    reason: Reason,
    issuer: Annotated[
        str | None, typer.Option(help="The user's identity provider [your own].")
    ] = None,
    with_budgets: Annotated[
        bool,
        typer.Option(
            "--with-budgets",
            help="Take away budgets set for this user at exactly this issuer, too. One for the name at every "
            "issuer stays.",
        ),
    ] = False,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Call a person by a pseudonym in all that is kept of them. Sums stay as they are.

    What a budget of theirs still counts keeps its name until the window ends. It cannot be undone.
    """
    body = {"tenant": tenant, "user": user, "issuer": issuer, "reason": reason}
    more = {"with_budgets": True} if with_budgets else {}
    server = connect(admin_url, token, state_dir)
    done = server.post("/v1/admin/users/pseudonymise", {**body, **more}, timeout_s=LONG_S)
    if as_json:
        document(done)
        return
    say(f"{user} is {done.get('pseudonym')} now, in {done.get('renamed'):,} requests.")
    if waiting := done.get("waiting"):
        counted = done.get("counted_by_a_budget") or 0
        say(f"{waiting:,} still bear the name: {counted:,} until a budget counts them no more.")
    standing = {name: count for name, count in (done.get("in_force") or {}).items() if count}
    if standing:
        told = ", ".join(f"{count:,} {name}" for name, count in standing.items())
        note(f"Still in force under the name, and yours to end: {told}.")
