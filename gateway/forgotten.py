"""A tenant that was deleted, here or at another gateway, goes also from what this process counts by its name.

Refuses to know: who deletes, rows.
"""

from __future__ import annotations

from gateway.house import House
from tenants.directory import Change, ChangeKind


def forget_deleted(house: House, change: Change) -> None:
    """A deletion is heard of where the directory is read anew."""
    if change.kind is ChangeKind.LEARNED:
        house.metrics.forget(house.directory.is_deleted)
        house.promises.forget(house.directory.is_deleted)
