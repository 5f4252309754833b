"""Liveness and readiness.  No credential, no detail beyond one word.

`/health`: the process answers.  `/ready`: it would serve a request now; 503 while a model loads,
while the audit log cannot be written, while the database does not answer, and while draining, so that a
balancer looks elsewhere.  Ready
with `"audit": "behind"`: a directory of the audit log lacks records that another has.  Ready with
`"tempo": "degraded"`: Redis is given up, and limits are this process's part.  With `"till": "degraded"`: budgets
that have a till are decided by the database alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from gateway.api.wire import json_bytes
from gateway.house import House
from gateway.streaming import respond
from security.audit import AuditUnavailable


@dataclass(frozen=True, slots=True)
class Health:
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, 200, b'{"status":"ok"}')


@dataclass(frozen=True, slots=True)
class Ready:
    house: House

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = readiness(self.house)
        if status == "ready":
            await respond(send, 200, json_bytes({"status": status, **behind(self.house)}))
        else:
            await respond(send, 503, json_bytes({"status": status}), {"retry-after": "1"})


def readiness(house: House) -> str:
    if house.draining():
        return "draining"
    if any(deployment.executor.card is None for deployment in house.deployments.values()):
        return "loading"
    try:
        house.audit.require_healthy()
    except AuditUnavailable:
        return "audit_unavailable"
    return "book_down" if house.book.away else "ready"


def behind(house: House) -> dict[str, str]:
    """What does not keep it from serving, and should be looked at."""
    said = {}
    if not all(each.current for each in house.audit.sinks()):
        said["audit"] = "behind"
    if house.tempo.trouble is not None:
        said["tempo"] = "degraded"
    till = house.book.till
    if till is not None and (till.trouble or house.tempo.trouble) is not None:
        said["till"] = "degraded"
    return said
