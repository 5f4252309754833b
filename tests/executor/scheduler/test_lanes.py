"""What of a class may be looked at."""

from __future__ import annotations

from executor.contract import Workload
from executor.scheduler.accounts import Accounts
from executor.scheduler.lanes import Band
from tests.executor.scheduler.driver import Job


def test_who_was_set_aside_is_not_looked_at_when_the_last_of_it_is_put_out() -> None:
    accounts: Accounts[Job] = Accounts(1e9)
    band: Band[Job] = Band(Workload(name=""))
    entry = accounts.open(Job(0), band)
    accounts.wait(entry)
    band.aside("a")
    band.rest("a")
    assert band.resting.first() is None
    band.put_back(entry.tenant, rests=True)
    assert band.resting.first() is band.tenants.first() is entry.tenant
