"""The accounts of device time: what executors told, beside what requests' records say.

Theory of operation.  An executor tells cumulative counters, so it does not matter how often, how late or by
which report they arrive: a start's row keeps the last that was told and what was posted of it, and the
difference is posted to the minute in which it was heard.  Minutes that are over never change.  When a start
is over, what it attributed and no request's record has is `lost`; where records have more than was told (the
last report died with its gateway), it must have lived that much longer, as far as it can have.  Both are found
anew when a record comes later, and only then: a record that has changed is for `device_sums` to find.  So for
each start that is over

    Σ device_ns of its requests + Σ overhead + idle = wall × devices        (MONEY.md §1, invariant 8)

Refuses to know: executors, HTTP, money.  `account_of` decides; the rest writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy import Connection, delete, func, insert, or_, select, update

from tenants import schema
from tenants.schema.devices import ACCOUNTS, OVERHEAD, TOLD
from tenants.schema.money import FAULTED
from tenants.sql import insert_new

__all__ = ["OVERHEAD", "SILENT_MS", "DeviceReport", "account_of", "again", "sweep", "tell"]

_S, _M, _Q = schema.device_start, schema.device_minute, schema.request
MINUTE_MS: Final = 60_000
SILENT_MS: Final = 120_000
"""Nothing was heard of a start for so long: it is over, until something is."""
SETTLING_MS: Final = 600_000
"""Records of a start that is over still come for about so long; after that they come out of a journal."""
SLACK_MS: Final = 60_000
"""Reports are told every few seconds; a busy machine may take longer."""
AGAIN_MS: Final = 7 * 86_400_000
AGAIN_MOST: Final = 1_000
UNTOLD: Final = "untold"
"""The rule of a start that died before it told one."""
_TIMES: Final = ("wall_ns", *ACCOUNTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReport:
    """What an executor told of one start, cumulative."""

    start: str
    model: str
    devices: int
    rule: str
    coefficients: str
    wall_ns: int
    attributed_ns: int
    load_ns: int = 0
    capture_ns: int = 0
    warm_up_ns: int = 0
    recompute_ns: int = 0
    wrong_guesses_ns: int = 0
    failed_steps_ns: int = 0
    empty_steps_ns: int = 0


def account_of(
    told: DeviceReport,
    *,
    faulted_ns: int,
    recorded_ns: int | None = None,
    longer_most_ns: int | None = None,
) -> dict[str, int]:
    """By column.  `faulted_ns`: of requests that were priced zero by our fault; `recorded_ns`: of all others,
    of a start that is over; None: it goes on, and what nobody recorded yet is on its way.
    `longer_most_ns`: that it can have lived beyond what it told; None: nobody knows."""
    kinds = {f"{kind}_ns": int(getattr(told, f"{kind}_ns")) for kind in TOLD}
    wall_ns, attributed_ns = told.wall_ns, told.attributed_ns
    idle_ns = wall_ns * told.devices - attributed_ns - sum(kinds.values())
    lost_ns = 0
    if recorded_ns is None:
        faulted_ns = min(faulted_ns, attributed_ns)
    else:
        lost_ns = attributed_ns - recorded_ns - faulted_ns
        if lost_ns < 0:
            untold_ns, lost_ns = -lost_ns, 0
            if longer_most_ns is not None:
                untold_ns = min(untold_ns, longer_most_ns * told.devices)
                faulted_ns = min(faulted_ns, attributed_ns + untold_ns)
            longer_ns = -(-untold_ns // told.devices)
            wall_ns += longer_ns
            attributed_ns += untold_ns
            idle_ns += longer_ns * told.devices - untold_ns
    busy_ns = attributed_ns - faulted_ns - lost_ns
    return {
        "wall_ns": wall_ns,
        "busy_ns": busy_ns,
        "idle_ns": idle_ns,
        **kinds,
        "faults_ns": faulted_ns,
        "lost_ns": lost_ns,
    }


def tell(
    conn: Connection, report: DeviceReport, *, owner: str, now_ms: int, over: bool = False
) -> None:
    """What `owner`'s executor said; `over`: nothing more will come of this start.  Told again, or after
    something newer, it changes nothing."""
    kept = _account(conn, report, owner, now_ms)
    if kept["rule"] == UNTOLD != report.rule:
        for table in (_M, _S):  # what stood in for it, some seconds ago
            conn.execute(delete(table).where(table.c.start == report.start))
        kept = _account(conn, report, owner, now_ms)
    newer = report.wall_ns > kept["told_wall_ns"]
    if not newer and not over:
        return
    ended_ms = (kept["ended_at_ms"] or now_ms) if over else None
    heard = {"told_at_ms": now_ms, "owner": owner} if newer else {}
    told = report if newer else _told(kept)
    _post(conn, kept, told, ended_ms=ended_ms, now_ms=now_ms, heard=heard)


def sweep(conn: Connection, *, owner: str, now_ms: int, alone: bool) -> int:
    """End the starts of which nothing was heard for long, and look once more at those that ended lately.
    `alone`: nobody else writes here, so what is not `owner`'s is over.  Returns how many were ended."""
    left = _S.c.told_at_ms < now_ms - SILENT_MS
    if alone:
        left = or_(left, _S.c.owner != owner)
    found = select(_S).where(_S.c.ended_at_ms.is_(None), left).order_by(_S.c.start)
    ended = conn.execute(found.with_for_update()).mappings().all()
    for kept in ended:
        _post(conn, kept, _told(kept), ended_ms=now_ms, now_ms=now_ms)
    again(conn, now_ms=now_ms, since_ms=now_ms - SETTLING_MS)
    return len(ended)


def again(conn: Connection, *, now_ms: int, since_ms: int | None = None) -> None:
    """Whether more was recorded meanwhile of the starts that ended since: of a week, if nothing is said, and
    then of those too that died before anything was told of them."""
    if since_ms is None:
        since_ms = now_ms - AGAIN_MS
        for report in _untold(conn):
            tell(conn, report, owner="", now_ms=now_ms, over=True)
    ended = select(_S).where(_S.c.ended_at_ms > since_ms).order_by(_S.c.start).limit(AGAIN_MOST)
    for kept in conn.execute(ended.with_for_update()).mappings().all():
        _post(conn, kept, _told(kept), ended_ms=kept["ended_at_ms"], now_ms=now_ms)


def _untold(conn: Connection) -> list[DeviceReport]:
    """Starts that only requests know: all that is known of them is what those took."""
    known = select(_S.c.start).where(_S.c.start == _Q.c.device_start).exists()
    query = select(_Q.c.device_start, func.min(_Q.c.model)).where(
        _Q.c.device_start.is_not(None), ~known
    )
    return [
        DeviceReport(
            start=start, model=model, devices=1, rule=UNTOLD, coefficients="",
            wall_ns=0, attributed_ns=0,
        )
        for start, model in conn.execute(
            query.group_by(_Q.c.device_start).order_by(_Q.c.device_start).limit(AGAIN_MOST)
        )
    ]  # fmt: skip


def recorded(conn: Connection, start: str) -> tuple[int, int, int]:
    """How many records a start's requests have, their device time, and that which a fault of ours ended."""
    sums = select(
        func.count(),
        func.coalesce(func.sum(_Q.c.device_ns), 0),
        func.coalesce(func.sum(_Q.c.faulted_ns), 0),
    )
    count, device_ns, faulted_ns = conn.execute(sums.where(_Q.c.device_start == start)).one()
    return int(count), int(device_ns), int(faulted_ns)


def _account(conn: Connection, report: DeviceReport, owner: str, now_ms: int) -> Mapping[Any, Any]:
    """The row of a start, locked; made where there is none, by whoever is first."""
    query = select(_S).where(_S.c.start == report.start).with_for_update()
    if (kept := conn.execute(query).mappings().one_or_none()) is not None:
        return kept
    insert_new(conn, _S, [_nothing(report, owner, now_ms)])
    return conn.execute(query).mappings().one()


def _nothing(report: DeviceReport, owner: str, now_ms: int) -> dict[str, Any]:
    return {
        "start": report.start,
        "model": report.model,
        "devices": report.devices,
        "rule": report.rule,
        "owner": owner,
        "began_ms": now_ms,
        "told_at_ms": now_ms,
        "ended_at_ms": None,
        "told_wall_ns": 0,
        "told_attributed_ns": 0,
        "records": 0,
        **dict.fromkeys(_TIMES, 0),
    }


def _told(kept: Mapping[Any, Any]) -> DeviceReport:
    """The last that was told, out of its row: what was posted differs only where the book found something."""
    return DeviceReport(
        start=kept["start"],
        model=kept["model"],
        devices=kept["devices"],
        rule=kept["rule"],
        coefficients="",
        wall_ns=kept["told_wall_ns"],
        attributed_ns=kept["told_attributed_ns"],
        **{f"{kind}_ns": kept[f"{kind}_ns"] for kind in TOLD},
    )


def _post(
    conn: Connection,
    kept: Mapping[Any, Any],
    told: DeviceReport,
    *,
    ended_ms: int | None,
    now_ms: int,
    heard: Mapping[str, Any] | None = None,
) -> None:
    """Bring the accounts of a start, whose row is locked, to what is known now."""
    records, longer_most_ns = kept["records"], None
    if ended_ms is None:
        device_ns, faulted_ns = None, _faulted(conn, told.start)
    else:
        records, device_ns, faulted_ns = recorded(conn, told.start)
        ended_before = (kept["told_wall_ns"], kept["ended_at_ms"]) == (told.wall_ns, ended_ms)
        if ended_before and records <= kept["records"]:
            return
        if told.rule != UNTOLD:
            told_ms = now_ms if heard else kept["told_at_ms"]
            longer_most_ns = (max(0, ended_ms - told_ms) + SLACK_MS) * 1_000_000
    target = account_of(
        told, faulted_ns=faulted_ns, recorded_ns=device_ns, longer_most_ns=longer_most_ns
    )
    conn.execute(
        update(_S)
        .where(_S.c.start == told.start)
        .values(
            {
                **target,
                **(heard or {}),
                "ended_at_ms": ended_ms,
                "told_wall_ns": told.wall_ns,
                "told_attributed_ns": told.attributed_ns,
                "records": records,
            }
        )
    )
    change = {name: target[name] - kept[name] for name in _TIMES}
    if any(change.values()):
        _to_minute(conn, told, change, now_ms)


def _faulted(conn: Connection, start: str) -> int:
    found = select(func.coalesce(func.sum(_Q.c.faulted_ns), 0)).where(
        _Q.c.device_start == start, FAULTED
    )
    return int(conn.execute(found).scalar_one())


def _to_minute(
    conn: Connection, told: DeviceReport, change: Mapping[str, int], now_ms: int
) -> None:
    minute_ms = now_ms // MINUTE_MS * MINUTE_MS
    values: dict[str, Any] = {name: _M.c[name] + change[name] for name in _TIMES}
    if told.coefficients:
        values["coefficients"] = told.coefficients
    here = (_M.c.start == told.start, _M.c.minute_ms == minute_ms)
    if conn.execute(update(_M).where(*here).values(values)).rowcount:
        return
    named = asdict(told)
    row = {name: named[name] for name in ("start", "model", "devices", "rule", "coefficients")}
    conn.execute(insert(_M).values({**row, "minute_ms": minute_ms, **change}))


def tell_all(
    conn: Connection, heard: Iterable[tuple[DeviceReport, bool]], *, owner: str, now_ms: int
) -> None:
    """Several, with whether each is over; in one order wherever it is done, so that nobody waits in a ring."""
    for report, over in sorted(heard, key=lambda each: each[0].start):
        tell(conn, report, owner=owner, now_ms=now_ms, over=over)
