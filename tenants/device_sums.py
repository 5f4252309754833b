"""The accounts of device time, read: summed by model and span, and checked against requests' records.

Refuses to know: who may read them, money.  Source: MONEY.md §1, invariant 8; §2 ("Reconciliation").

The check is other arithmetic than what posted: minutes are summed against their start, and a start against
the records of its requests, which executors and gateways wrote apart from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import BigInteger, Connection, func, literal_column, select

from policies.periods import month_at
from tenants import schema
from tenants.devices import SLACK_MS
from tenants.reports.facts import SPANS, Slice
from tenants.schema.devices import ACCOUNTS, OVERHEAD

_S, _M, _Q = schema.device_start, schema.device_minute, schema.request
COLUMNS: Final = ("model", *SPANS)
"""By what device time is summed."""


class TooMany(Exception):
    """More rows than one answer holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """Nanoseconds of devices, so `wall_ns` is that of all of them together and the sum of the others."""

    group: Mapping[str, str | int]
    wall_ns: int
    attributed_ns: int
    idle_ns: int
    overhead_ns: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """`sums`: of the minutes in question.  Everything else is of all the time of the starts that they are of:
    `requests_ns`, what their requests' records have; `in_flight_ns`, what was attributed in those that go on
    and no record has yet, less what records have and was not told yet; `difference_ns`, what is in neither
    place or in both, of those that are over."""

    sums: DeviceRow
    starts: int
    running: int
    requests_ns: int
    in_flight_ns: int
    difference_ns: int
    named: tuple[str, ...]

    @property
    def agree(self) -> bool:
        return not self.named and self.difference_ns == 0


def cut(conn: Connection, by: tuple[str, ...], of: Slice, *, most: int) -> tuple[DeviceRow, ...]:
    """In order of `by`, which are of `COLUMNS`.  TooMany."""
    assert set(by) <= set(COLUMNS)
    keys: list[Any] = []
    for name in by:
        length = literal_column(str(SPANS.get(name) or SPANS["day"]), BigInteger)
        keys.append(_M.c.model if name == "model" else _M.c.minute_ms // length * length)
    query = select(*keys, *_sums()).where(*_within(of)).group_by(*keys)
    merged: dict[tuple[str | int, ...], list[int]] = {}
    for row in conn.execute(query):
        group = tuple(
            month_at(int(value)).start_ms if name == "month" else value
            for name, value in zip(by, row[: len(by)], strict=True)
        )
        into = merged.setdefault(group, [0] * (len(ACCOUNTS) + 1))
        merged[group] = [a + int(b or 0) for a, b in zip(into, row[len(by) :], strict=True)]
        if len(merged) > most:
            raise TooMany
    return tuple(_row(dict(zip(by, group, strict=True)), merged[group]) for group in sorted(merged))


def total(conn: Connection, of: Slice) -> DeviceRow:
    rows = cut(conn, (), of, most=1)
    return rows[0] if rows else _row({}, [0] * (len(ACCOUNTS) + 1))


def check(conn: Connection, of: Slice, *, now_ms: int) -> Devices:
    """Every start that a minute of `of` is of, and all that is known of it."""
    sums = total(conn, of)
    mine = select(_M.c.start).where(*_within(of)).distinct()
    minutes = {
        row[0]: [int(value) for value in row[1:]]
        for row in conn.execute(
            select(_M.c.start, *_sums()).where(_M.c.start.in_(mine)).group_by(_M.c.start)
        )
    }
    records = {
        row[0]: (int(row[1]), int(row[2]))
        for row in conn.execute(
            select(_Q.c.device_start, func.sum(_Q.c.device_ns), func.sum(_Q.c.faulted_ns))
            .where(_Q.c.device_start.in_(mine))
            .group_by(_Q.c.device_start)
        )
    }
    kept = {
        row["start"]: row for row in conn.execute(select(_S).where(_S.c.start.in_(mine))).mappings()
    }
    named: list[str] = []
    running = in_flight_ns = difference_ns = 0
    for start, found in minutes.items():
        row, (device_ns, faulted_ns) = kept.get(start), records.get(start, (0, 0))
        if row is None:
            named.append(f"{start}: it has minutes of device time, and no account")
            continue
        posted = [row["wall_ns"] * row["devices"], *(int(row[name]) for name in ACCOUNTS)]
        named += _unlike(start, posted, found)
        missing_ns = row["busy_ns"] - device_ns
        if row["ended_at_ms"] is None:
            running += 1
            in_flight_ns += missing_ns
            untold_ms = max(0, now_ms - row["told_at_ms"]) + SLACK_MS
            if missing_ns < -untold_ms * 1_000_000 * row["devices"]:
                difference_ns -= missing_ns
                named.append(
                    f"{start}, {row['model']}: its requests' records have {-missing_ns} ns more than it told, which "
                    "it has not lived since"
                )
        elif missing_ns or row["faults_ns"] != faulted_ns:
            difference_ns += abs(missing_ns) + abs(row["faults_ns"] - faulted_ns)
            named.append(
                f"{start}, {row['model']}: its requests' records have {device_ns} ns of device time and"
                f" {faulted_ns} ns by our fault, its account {row['busy_ns']} and {row['faults_ns']}"
            )
    return Devices(
        sums=sums,
        starts=len(minutes),
        running=running,
        requests_ns=sum(device_ns for device_ns, _ in records.values()),
        in_flight_ns=in_flight_ns,
        difference_ns=difference_ns,
        named=tuple(named),
    )


def _unlike(start: str, posted: list[int], minutes: list[int]) -> list[str]:
    unlike = [] if posted == minutes else [f"{start}: minutes {minutes}, account {posted}"]
    return unlike + [
        f"{start}: {sum(each[1:])} ns in accounts, {each[0]} ns by the clock"
        for each in (posted, minutes)
        if each[0] != sum(each[1:])
    ]


def _sums() -> list[Any]:
    wall = func.sum(_M.c.wall_ns * _M.c.devices)
    return [wall, *(func.sum(_M.c[name]) for name in ACCOUNTS)]


def _within(of: Slice) -> tuple[Any, ...]:
    return (_M.c.minute_ms >= of.from_ms, _M.c.minute_ms < of.to_ms)


def _row(group: Mapping[str, str | int], numbers: list[int]) -> DeviceRow:
    wall_ns, attributed_ns, idle_ns, *overhead = numbers
    return DeviceRow(
        group=group,
        wall_ns=wall_ns,
        attributed_ns=attributed_ns,
        idle_ns=idle_ns,
        overhead_ns=dict(zip(OVERHEAD, overhead, strict=True)),
    )
