"""An executor that has kept what it is told to say, and remembers what it was asked to purge."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from executor.contract import ExecutorLost, Kept, Listed, Purged
from executor.echo import EchoExecutor
from security.audit_proof import Proof, decode_proof
from security.audit_signer import Signer
from security.keyring import open_keyring
from security.purge import PurgeRecord, read_purge
from tests.gateway.inhouse import Answered, Inhouse

CACHE, PURGE = "/v1/admin/cache", "/v1/admin/cache/purge"
WHY = {"reason": "SAID-BY-A-PERSON"}


@dataclass
class Order:
    owner: str | None
    tags: tuple[bytes, ...]
    spare: bool


class Keeping(EchoExecutor):
    def __init__(self, *rows: Kept, entries: int = 3) -> None:
        super().__init__()
        self.rows = rows
        self.entries = entries
        self.purges: list[Order] = []
        self.lost = False
        self.zeroed = True

    async def list_kept(self, owner: str | None = None, *, by_label: bool = False) -> Listed:
        if self.lost:
            raise ExecutorLost
        return Listed(number=1, rows=tuple(r for r in self.rows if owner in {None, r.owner}))

    async def purge(
        self, owner: str | None = None, tags: tuple[bytes, ...] = (), *, spare: bool = False
    ) -> Purged:
        self.purges.append(Order(owner, tags, spare))
        if self.lost:
            raise ExecutorLost
        return Purged(number=1, entries=self.entries, ended=1, zeroed=self.zeroed)


def read(home: Inhouse, answer: Answered) -> PurgeRecord:
    """What its proof says to an outsider."""
    proof = decode_proof(json.dumps(answer.json()["proof"]).encode())
    assert proof is not None
    return checked(home, proof)


def checked(home: Inhouse, proof: Proof) -> PurgeRecord:
    public = Signer.of(open_keyring(home.folder / "root.key")).public
    found = read_purge(proof, public)
    assert found is not None
    return found


def purge_records(home: Inhouse) -> list[dict[str, Any]]:
    return [each for each in home.audited() if each["kind"] == "cache.purged"]


def row(owner: str, kind: str = "user", **more: Any) -> Kept:
    return Kept(
        **{"owner": owner, "kind": kind, "blocks": 4, "pinned": 0, "oldest_ms": 61_000, **more}
    )
