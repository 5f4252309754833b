"""A tenant's secret was rotated or destroyed at another gateway: the same holds here, within the bound of epochs.

What is kept of prompts under what is not current any more goes from our executors, as it went there; with
the last version also whoever reads it ends.  Texts and sealed answers are rows, and gone with their rows.
Refuses to know: who asked, records (the other gateway's log has them).  Source: SECURITY.md §6 (Keys), P12.
"""

from __future__ import annotations

from gateway.house import House
from gateway.purging import Target, purge


async def hear_secrets(house: House) -> None:
    """StoreUnavailable; KeyringError where another gateway wraps by a root that is not here."""
    for tenant in sorted(await house.secrets.refresh()):
        shredded = house.secrets.is_shredded(tenant)
        newest = house.secrets.newest(tenant)
        over = range(1, newest + 1 if shredded else newest)
        tags = tuple(house.caches.keys.of_secret(tenant, version) for version in over)
        if not shredded:  # what was on its way under the old one here may still be written
            house.rotations.rotated(tenant, house.clock.monotonic_ns())
        if not tags:
            continue
        executors = {id(each.executor): each.executor for each in house.deployments.values()}
        target = Target(tenant, tenant, house.pseudonym(tenant), () if shredded else tags)
        heard = await purge(executors.values(), target, spare=not shredded)
        house.purges.note(tenant)
        house.log(
            "secret.changed_elsewhere",
            tenant=tenant,
            shredded=shredded,
            blocks=heard.blocks,
            unacknowledged_count=heard.unacknowledged,
        )
