"""The tree of commands.  Each file beside this one holds a family of them."""

from __future__ import annotations

import importlib.metadata
from typing import Annotated

import typer

from gateway.cli import (
    audit,
    audit_isolation,
    audit_purge,
    audit_report,
    audit_timing,
    backup,
    budgets,
    cache,
    chat,
    check,
    credentials,
    doctor,
    explain,
    plan,
    registered,
    scheduling,
    secrets,
    serve,
    tenant_deletion,
    usage,
    users,
)
from gateway.cli.show import say

app = typer.Typer(
    name="lockgate",
    help="A gateway for language models: who may ask, on whose budget.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        say(f"lockgate {importlib.metadata.version('lockgate')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the version.")
    ] = False,
) -> None:
    """A gateway for language models: who may ask, on whose budget."""


app.command("serve")(serve.serve)
app.command("run")(chat.run)
app.command("check")(check.check)
app.command("explain")(explain.explain)
app.command("queue")(scheduling.queue)
app.command("promises")(scheduling.promises)
app.command("plan")(plan.plan)
app.command("doctor")(doctor.doctor)
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)
audit.audit.command("timing")(audit_timing.timing)
audit.audit.command("isolation")(audit_isolation.isolation)
audit.audit.add_typer(
    audit_report.reports, name="report", help="Reports of the audits: verify.", no_args_is_help=True
)
audit.audit.add_typer(
    audit_purge.purges, name="purge", help="Proofs of purges: verify.", no_args_is_help=True
)
for name, group, says in (
    ("token", credentials.tokens, "Tokens of people: mint in development, revoke anywhere."),
    ("key", credentials.keys, "API keys of services."),
    (
        "tenant",
        tenant_deletion.tenants,
        "Tenants: list, suspend, resume, shred, delete; their secrets.",
    ),
    ("user", users.users, "People, as what is kept names them: pseudonymise."),
    ("budget", budgets.budgets, "Budgets: set, show, top-up, credit, refund."),
    ("usage", usage.usage, "What was used and what it cost: report, export, reconcile, close."),
    ("document", registered.documents, "Documents: add, list, grant, revoke, delete."),
    ("template", registered.templates, "Prompt templates: add, list, delete."),
    ("root-key", secrets.roots, "The root keys: show, add, rewrap, drop."),
    ("cache", cache.caches, "What is kept of prompts: list, purge."),
    ("audit", audit.audit, "The audit log, and the audits."),
):
    app.add_typer(group, name=name, help=says, no_args_is_help=True)
