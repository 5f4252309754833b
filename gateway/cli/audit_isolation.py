"""`lockgate audit isolation`: the matrix of `security.isolation_audit`, run against a running server.

Every half is asked several times with texts of its own.  What the server refuses to vary is shown with its
own words, never as a pass.  Source: SECURITY.md §1 (P1, P2), §2.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Annotated, Any, Final

import typer

from gateway.cli import audit_asking, audit_report
from gateway.cli.audit import RootKey
from gateway.cli.audit_asking import Answer, Line
from gateway.cli.audit_registry import Registry
from gateway.cli.options import VAR, Json, StateDir
from gateway.cli.show import Refusal, clean, table
from security.audit_report import isolation_report
from security.isolation_audit import HELD, ROWS, Ask, Half, Need, Result, Row
from security.timing_audit_plan import Role, letters

REFUSED: Final = frozenset({400, 404, 501})
"""Of these a server says that it has no such thing."""

Asker = Callable[[Ask, str], Answer]


def isolation(
    repeats: Annotated[int, typer.Option(min=1, max=100, help="Texts of each half.")] = 3,
    prefix_tokens: Annotated[
        int, typer.Option(min=16, max=1 << 20, help="Length of the text that may be reused.")
    ] = 256,
    seed: Annotated[int | None, typer.Option(help="Draws the texts [a new one].")] = None,
    model: Annotated[str, typer.Option(help="The model's name or alias.")] = "default",
    second_model: Annotated[
        str | None, typer.Option(help="Another model of the server, for the row 'model'.")
    ] = None,
    tokens: audit_asking.TokensFile = None,
    attacker: audit_asking.Attacker = "acme/alice",
    colleague: audit_asking.Colleague = "acme/bob",
    stranger: audit_asking.Stranger = "globex/carol",
    admin: audit_asking.Admin = "acme/admin",
    i_operate_this: audit_asking.Operated = False,
    out: audit_report.Out = None,
    root_key: RootKey = None,
    state_dir: StateDir = VAR,
    as_json: Json = False,
) -> None:
    """Show in which dimensions a difference of scope keeps a cached prefix from being reused.

    Exit code: 0 PASS, 1 FAIL, 3 INCONCLUSIVE (nothing is reused at all, or something is not there yet).
    """
    seed = secrets.randbits(63) if seed is None else seed
    names = {Role.ATTACKER: attacker, Role.COLLEAGUE: colleague, Role.STRANGER: stranger}
    where = audit_asking.target(tokens, state_dir, names, operated=i_operate_this)
    with ExitStack() as stack:
        lines = {
            role: stack.enter_context(Line(where.server(name), model))
            for role, name in names.items()
        }

        registry = stack.enter_context(
            Registry(
                where.server(colleague),
                where.server(admin) if admin in where.tokens else None,
                where.server(attacker),
            )
        )
        registry.prepare(seed, frozenset({Need.DOCUMENTS, Need.TEMPLATES}), each=2)

        def ask(what: Ask, text: str) -> Answer:
            if what.renewed and what.document is not None:
                registry.renew(what.document)
            said = f"{registry.text} {text}" if what.pastes else text
            fields = {**what.fields, **registry.fields(text, what.document, what.template)}
            if what.model and second_model is not None:
                fields["model"] = second_model
            return lines[what.role].ask(said, fields)

        rows = matrix(
            ask,
            seed=seed,
            repeats=repeats,
            prefix_tokens=prefix_tokens,
            lacks={
                **registry.lacks,
                **({} if second_model else {Need.SECOND_MODEL: "name one by --second-model"}),
            },
        )
    if not as_json:
        table([_shown(row) for row in rows])
    report = isolation_report(rows, audit_report.about(where.url, model, seed, time.time()))
    audit_report.finish(report, out, root_key, state_dir, as_json=as_json)


def matrix(
    ask: Asker, *, seed: int, repeats: int, prefix_tokens: int, lacks: Mapping[Need, str]
) -> tuple[Result, ...]:
    """`lacks`: what the server does not have, and why."""
    found = [
        Result(dimension=row.dimension, held_by=row.held_by, remark=lacks[row.needs])
        if row.needs is not None and row.needs in lacks
        else _row(row, ask, f"{seed}/{at}", repeats, prefix_tokens)
        for at, row in enumerate(ROWS)
    ]
    held = [Result(dimension=each.dimension, held_by=each.by) for each in HELD]
    return (*found, *held)


def _row(row: Row, ask: Asker, seed: str, repeats: int, prefix_tokens: int) -> Result:
    try:
        halves = [
            _half(says, pair, ask, f"{seed}/{at}", repeats, prefix_tokens)
            for at, (says, pair) in enumerate(zip(row.says, (row.same, row.other), strict=True))
        ]
    except Refusal as refusal:
        if refusal.facts.get("status") not in REFUSED:
            raise
        return Result(dimension=row.dimension, held_by=row.held_by, remark=clean(refusal.message))
    return Result(dimension=row.dimension, same=halves[0], other=halves[1])


def _half(
    says: str, pair: tuple[Ask, Ask], ask: Asker, seed: str, repeats: int, prefix_tokens: int
) -> Half:
    """The reader asks for the writer's text and for one that nobody sent: the same in shape, so that what
    is cached for everybody counts on both sides."""
    writer, reader = pair
    reused = most = 0
    for at in range(repeats):
        text, fresh, end = (
            letters(f"{seed}/{at}/{kind}", count)
            for kind, count in (("text", prefix_tokens), ("fresh", prefix_tokens), ("end", 8))
        )
        ask(writer, text)
        again, control = ask(reader, f"{text} {end}"), ask(reader, f"{fresh} {end}")
        reused += again.cached_tokens > control.cached_tokens
        most = max(most, again.cached_tokens)
    return Half(says=says, tried=repeats, reused=reused, cached_tokens=most)


def _shown(row: Result) -> dict[str, Any]:
    same, other = (
        None if half is None else f"{half.says}: {half.reused} of {half.tried}"
        for half in (row.same, row.other)
    )
    return {
        "dimension": row.dimension,
        "state": row.state.value,
        "same_scope_reused": same,
        "other_scope_reused": other,
        "remark": row.held_by or row.remark,
    }
