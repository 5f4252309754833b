"""One request, in numbers: what `explain` shows."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from policies.price import Charge
from policies.tags import Tag
from tenants import ledger, tags, usage
from tenants.purging import PURGED
from tenants.scopes import Dimensions
from tenants.usage import UsageRecord


@dataclass(frozen=True, slots=True)
class Explanation:
    """`record` is None while it runs, or where it ended without its own word; `state` is None where
    nothing was ever held (it was refused)."""

    request_id: str
    dims: Dimensions
    record: UsageRecord | None
    state: str | None
    reserved_nano_usd: int
    charge: Charge | None
    estimated: bool
    refunded_nano_usd: int = 0
    tags: tuple[Tag, ...] = ()
    held_at_ms: int = 0
    reserved_tokens: tuple[int, int] = (0, 0)  # of the prompt, and of all choices' answers

    @property
    def purged(self) -> bool:
        """How it went was kept for its time, and is no more."""
        return self.record is not None and self.record.outcome == PURGED


def explain(conn: Connection, request_id: str) -> Explanation | None:
    record = usage.read(conn, request_id)
    row = ledger.find(conn, request_id)
    if row is None:
        if record is None:
            return None
        return Explanation(request_id, record.dims, record, None, 0, None, estimated=False)
    return Explanation(
        request_id,
        usage.dims_of(row),
        record,
        row["state"],
        row["amount"],
        ledger.charge_now(conn, row),
        row["estimated"],
        row["refunded"],
        tags.read(row["tags"]),
        row["at_ms"],
        (row["prompt_tokens"], row["output_tokens"] * row["n"]),
    )
