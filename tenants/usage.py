"""What became of one request, in numbers: the row behind `explain` and every report.

Refuses to know: text, prices.  Counts, spans and reasons only; nothing of a prompt or an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection, select

from tenants import schema
from tenants.scopes import Dimensions
from tenants.sql import Find, insert_many, within


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """`outcome` is how it ended for the caller; `reason` the refusal's or fault's code.

    `output_tokens` is what is billed, `generated_tokens` what the executor sampled, and
    `delivered_tokens` what was handed to the caller's connection.  The spans add up to `total_ns`
    but for what the gateway itself took; `device_start` is the executor's start in which it ran, `faulted_ns`
    the device time of a request that a fault of ours ended, which is nobody's `device_ns`; `trace` is (stage, wall milliseconds), in order."""

    request_id: str
    dims: Dimensions
    route: str
    received_at_ms: int
    outcome: str
    reason: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    generated_tokens: int = 0
    delivered_tokens: int = 0
    admitted_ns: int = 0
    queued_ns: int = 0
    prefill_ns: int = 0
    decode_ns: int = 0
    total_ns: int = 0
    device_ns: int = 0
    recomputed_ns: int = 0
    device_start: str | None = None
    faulted_ns: int = 0
    preemptions: int = 0
    trace: tuple[tuple[str, int], ...] = ()


_DIMS = ("tenant", "project", "user", "issuer", "key_id", "model", "service_class")
_PLAIN = tuple(name for name in UsageRecord.__dataclass_fields__ if name not in {"dims", "trace"})


_INSERT = insert_many(schema.request)
_KNOWN = Find(select(schema.request.c.request_id).where(within(schema.request.c.request_id, "ids")))


def dims_of(row: Mapping[Any, Any]) -> Dimensions:
    return Dimensions(**{name: row[name] for name in _DIMS})


def dims_row(dims: Dimensions) -> dict[str, Any]:
    return {name: getattr(dims, name) for name in _DIMS}


def keep(conn: Connection, records: Sequence[UsageRecord]) -> int:
    """The first record of a request stands.  Returns how many were new."""
    if not records:
        return 0
    first = {record.request_id: record for record in reversed(records)}
    for known in _KNOWN.rows(conn, {"ids": sorted(first)}):
        del first[known["request_id"]]
    if first:
        _INSERT.run(conn, [_row(record) for record in first.values()])
    return len(first)


def _row(record: UsageRecord) -> dict[str, Any]:
    row = dims_row(record.dims) | {name: getattr(record, name) for name in _PLAIN}
    row["trace"] = msgspec.json.encode(record.trace).decode()
    return row


def read(conn: Connection, request_id: str) -> UsageRecord | None:
    table = schema.request
    row = (
        conn.execute(select(table).where(table.c.request_id == request_id)).mappings().one_or_none()
    )
    if row is None:
        return None
    plain = {name: row[name] for name in _PLAIN}
    trace = msgspec.json.decode(row["trace"], type=tuple[tuple[str, int], ...])
    return UsageRecord(dims=dims_of(row), trace=trace, **plain)
