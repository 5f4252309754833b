"""What stands on the way of requests finds its rows by an index, however many lie beside them.

SQLite tells how it will do each statement; a `SCAN` of a table is one look at every row that was ever
written.  With three rows nobody notices, and with a million each hold takes a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, event

from policies.facts import Budget, Meters
from policies.tags import Origin
from tenants import (
    adjustments,
    forgetting,
    leases,
    ledger,
    outbox,
    prices,
    purging,
    schema,
    tags,
    usage,
    windows,
)
from tenants import idempotency_rows as keys
from tenants import responses_rows as responses
from tenants.adjustments import AdjustAsk, Kind
from tenants.asks import BookFault, LapseAsk, SettleAsk, VoidAsk
from tenants.idempotency_rows import Claim
from tenants.pseudonyms import Names, Person
from tenants.scopes import BudgetAccount, scope_id
from tenants.sql import drive
from tenants.store.sqlite import opened
from tests.tenants.house import (
    DIMS,
    NOON_MS,
    PRICE,
    ask,
    folder,
    project_budget,
    record,
    tag,
    tag_budget,
    tenant_budget,
    user_budget,
)

HOUR_MS = 3_600_000
KEYED = replace(DIMS, key_id="k1")
KEY_BUDGET = BudgetAccount("key", "k1", Budget(10**9))
WATCHED = replace(
    tenant_budget(10**9), budget=replace(tenant_budget(10**9).budget, notify_at=(0.00001,))
)
ALL = (KEY_BUDGET, user_budget(10**9), project_budget(10**9), WATCHED)
TAGS = (tag(), tag("trace", "t1", Origin.CLIENT))
TAGGED = (*ALL, tag_budget(10**9))
MANY = frozenset(schema.metadata.tables) - {"adjustment"}
"""What people give by hand stays few, and its sum is bounded each time."""
ONLY_HELD = "USING INDEX reservation_held"
CLAIM = Claim("d1", b"body", "acme", "r1", metered=True)


def turn(conn: Connection, *asks: Any, at_ms: int = NOON_MS) -> list[Any]:
    answers = ledger.turn(conn, asks, owner="g1", now_ms=at_ms)
    assert not [each for each in answers if isinstance(each, BookFault)]
    return answers


def hold_by_key(conn: Connection) -> None:
    keys.claim(conn, CLAIM, owner="g1", now_ms=NOON_MS)
    asked = replace(ask("r1", *TAGGED, dims=KEYED, dispatched=False, tags=TAGS), claim="d1")
    assert not keys.lost_claims(conn, [asked])
    turn(conn, asked, ask("r2", *ALL, dims=KEYED), ask("r3", *ALL[1:]), ask("r4", WATCHED))
    assert leases.mark_dispatched(conn, "r1", now_ms=NOON_MS)
    assert len(leases.renew(conn, ["r1", "r2", "r9"], lease_s=60, now_ms=NOON_MS)) == 1
    keys.renew(conn, ["d1"], owner="g1", now_ms=NOON_MS)


def end(conn: Connection) -> None:
    turn(
        conn,
        SettleAsk("r1", Meters(input=100, output=20), record("r1", dims=KEYED)),
        VoidAsk("r2", record("r2", dims=KEYED)),
        LapseAsk("r3"),
    )
    assert keys.finish(conn, CLAIM.digest, CLAIM.request_id, b"x", 1, None)
    later_ms = NOON_MS + HOUR_MS
    assert leases.sweep(conn, now_ms=later_ms).expired == ("r4",)
    turn(conn, SettleAsk("r3", Meters(input=100)), at_ms=later_ms)  # late
    turn(conn, SettleAsk("r3", Meters(input=100)), at_ms=later_ms)  # and again
    windows.peek(conn, KEY_BUDGET, later_ms // 1000)
    assert usage.read(conn, "r1")


def adjust(conn: Connection) -> None:
    shared: dict[str, Any] = {"tenant": "acme", "actor": "op", "reason": "because"}
    for asked in (
        AdjustAsk(id="a1", kind=Kind.TOP_UP, nano_usd=1, budget=KEY_BUDGET, **shared),
        AdjustAsk(id="a2", kind=Kind.CREDIT, nano_usd=1, **shared),
        AdjustAsk(id="a3", kind=Kind.REFUND, nano_usd=1, request_id="r1", **shared),
    ):
        adjustments.adjust(conn, asked, now_ms=NOON_MS)


def tell(conn: Connection) -> None:
    (told, *_) = outbox.claim(conn, now_ms=NOON_MS + HOUR_MS)
    outbox.postpone(conn, told, until_ms=NOON_MS)
    outbox.finish(conn, told, "delivered", now_ms=NOON_MS)


def sweep(conn: Connection) -> None:
    windows.peek(conn, tag_budget(10**9, window="total"), NOON_MS // 1000)
    alice = str(scope_id("user", DIMS))
    for of in ({"before_ms": NOON_MS}, {"user_account": alice}, {}):
        tags.forget_client_tags(conn, tenant="acme", **of)
    windows.drop_old(conn, NOON_MS // 1000)
    leases.recover(conn, owner="g2", now_ms=NOON_MS)
    keys.sweep(conn, now_ms=NOON_MS)


def store(conn: Connection) -> None:
    whose = responses.Whose("acme", "", "idp", "alice")
    for id_, previous in (("resp_1", None), ("resp_2", "resp_1"), ("resp_3", None)):
        begun = responses.Begun(id_, "m", background=True, previous=previous)
        responses.begin(conn, whose, begun, owner="g1", now_ms=NOON_MS)
    assert responses.progress(conn, "resp_1", owner="g1")
    assert responses.keep(conn, "resp_1", "completed", b"x", 1, owner="g1")
    assert responses.abandon(conn, "resp_3", owner="g1")
    assert responses.chain(conn, whose, "resp_2", now_ms=NOON_MS, most=9)[1]
    assert responses.cancel(conn, whose, "resp_2")
    assert responses.to_end(conn, ["resp_2"]) == ["resp_2"]
    responses.renew(conn, ["resp_2"], owner="g1", now_ms=NOON_MS)
    assert responses.stale(conn, "acme", 2)
    assert responses.reseal(conn, "resp_1", b"x", b"y", 2)
    responses.sealed_by(conn, "acme")
    responses.sweep(conn, now_ms=NOON_MS + 40 * 24 * HOUR_MS)
    responses.remove(conn, whose, "resp_2")
    responses.forget_person(conn, "acme", "idp", "alice", before_ms=NOON_MS)
    responses.forget(conn, "acme")


def forget(conn: Connection) -> None:
    """All but what an operator asks of one person, once: changes, notices."""
    names, who = Names("acme", lambda _: b"d" * 32, b"salt"), Person("acme", "idp", "alice")
    forgetting.tenants_of(conn)
    forgetting.oldest_ms(conn, "acme")
    span = {"from_ms": 0, "to_ms": NOON_MS + HOUR_MS}
    forgetting.forget_person(conn, names, who, before_ms=NOON_MS, now_ms=NOON_MS)
    forgetting.forget_recorded(conn, names, who, **span)
    forgetting.forget_all(conn, names, now_ms=NOON_MS, **span)
    purging.purge(conn, "acme", **span)
    purging.drop_notices(conn, before_ms=NOON_MS, people_before_ms=NOON_MS)


@contextmanager
def noted(conn: Connection) -> Iterator[dict[str, Any]]:
    """The statements meanwhile, each with what it was given last."""
    seen: dict[str, Any] = {}

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, _: Any, many: bool) -> None:
        seen[statement] = parameters[0] if many else parameters

    def driven(conn: Connection, statement: str, values: Any, act: Any) -> Any:
        seen[statement] = values[0] if values and isinstance(values[0], list) else values
        return drive(conn, statement, values, act)

    event.listen(conn, "before_cursor_execute", note)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tenants.sql.drive", driven)  # which SQLAlchemy hears nothing of
        yield seen
    event.remove(conn, "before_cursor_execute", note)


def looks_through(conn: Connection, work: Callable[[Connection], None]) -> list[str]:
    """The tables that `work` read from end to end, and by which statement."""
    with noted(conn) as seen:
        work(conn)
    assert len(seen) >= 3, "nothing was seen"
    return [
        f"{step[3]}: {statement}"
        for statement, given in seen.items()
        if not statement.startswith("PRAGMA")
        for step in conn.exec_driver_sql("EXPLAIN QUERY PLAN " + statement, tuple(given))
        if step[3].startswith("SCAN") and step[3].split()[1] in MANY
        if not step[3].endswith(ONLY_HELD)
    ]


def test_nothing_on_the_way_of_a_request_looks_through_a_table() -> None:
    with folder() as where:
        writer, reader = opened(where / "x.db")
        with writer.engine.begin() as conn:
            prices.keep(conn, [PRICE])
            for work in (hold_by_key, end, adjust, tell, sweep, store, forget):
                assert looks_through(conn, work) == [], work.__name__
        writer.close()
        reader.close()
