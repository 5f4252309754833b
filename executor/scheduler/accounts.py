"""What each tenant and each user has had, in nanoseconds of the device by weight: the start times that
decide whose turn it is.

Theory of operation.  A tenant has *one* account, whatever classes and users its work is spread over, so
spreading gains nothing; a class's weight says how much a nanosecond of its work counts.  On admission a
request's probable cost is charged ahead (else a burst would be let in before its first cost is known);
what is measured beyond that is charged as it happens, and what was charged too much is given back at
the end.  So refund + charge = measured, exactly once it is over.

Refuses to know: room, order, steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic

from executor.contract import Workload
from executor.cost import Rates
from executor.scheduler.lanes import Band, Entry
from executor.scheduler.protocol import W
from policies.fairness import Level


class Accounts(Generic[W]):
    """A flow of the tenants' level, and of its users' level, for every request that is here."""

    __slots__ = ("_users", "tenants")

    def __init__(self) -> None:
        self.tenants: Level[str] = Level()
        self._users: dict[str, Level[str]] = {}

    def open(self, work: W, band: Band[W]) -> Entry[W]:
        tenant = self.tenants.enter(work.tenant, work.tenant_weight, band.virtual)
        users = self._users.get(work.tenant)
        if users is None:
            users = self._users[work.tenant] = Level()
        user = users.enter(work.user, work.user_weight)
        return Entry(work, work.ticket, band, tenant, user)

    def wait(self, entry: Entry[W]) -> None:
        """It joins the queue of its band.  Nobody has credit for the time when nothing waited."""
        tenant, user, band = entry.tenant, entry.user, entry.band
        if not band.waits(tenant.key):
            tenant.start = max(tenant.start, band.virtual)
        if not band.waits(tenant.key, user.key):
            self._users[tenant.key].lift(user)
        band.push(entry)

    def serve(self, entry: Entry[W], likely_ns: float) -> None:
        """It is let in, and was taken out of its band: time goes on to the least start time there."""
        start = entry.tenant.start
        behind = entry.band.tenants.first()
        entry.band.virtual = max(
            entry.band.virtual, start if behind is None else min(start, behind.start)
        )
        self.tenants.advance(entry.band.virtual)
        self._users[entry.tenant.key].advance(entry.user.start)
        if likely_ns > entry.charged_ns:
            self._charge(entry, likely_ns - entry.charged_ns)

    def measured(self, entry: Entry[W], device_ns: int) -> None:
        entry.measured_ns += device_ns
        if entry.measured_ns > entry.charged_ns:
            self._charge(entry, entry.measured_ns - entry.charged_ns)

    def close(self, entry: Entry[W], bands: Mapping[str, Band[W]]) -> bool:
        """It is over: the account is put right.  True if its tenant has nothing here any more."""
        if entry.charged_ns > entry.measured_ns:
            self._charge(entry, entry.measured_ns - entry.charged_ns)
            for band in bands.values():
                band.refresh(entry)
        tenant, users = entry.tenant, self._users[entry.tenant.key]
        users.leave(entry.user)
        self.tenants.leave(tenant)
        if tenant.holds:
            return False
        del self._users[tenant.key]
        return True

    def _charge(self, entry: Entry[W], cost_ns: float) -> None:
        entry.charged_ns += cost_ns
        cost_ns /= entry.band.weight
        self.tenants.charge(entry.tenant, cost_ns)
        self._users[entry.tenant.key].charge(entry.user, cost_ns)


def likely_ns(work: W, expected_tokens: int, rows: int, rates: Rates) -> float:
    """What a request will probably cost from here on, beside `rows` others."""
    fixed_ns = rates.step_ns / (rows + 1)
    prompt_ns = rates.row_ns(work.todo, work.computed)
    ahead = max(0, expected_tokens - work.known)
    middle = (work.known + expected_tokens) // 2
    return fixed_ns * (1 + ahead) + prompt_ns + ahead * rates.row_ns(1, middle)


def terms_of(workloads: tuple[Workload, ...], name: str) -> Workload:
    """Work of a class that nobody named has neutral terms."""
    return next((each for each in workloads if each.name == name), Workload(name=name))
