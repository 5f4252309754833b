"""Registered texts in a whole house: what their tests ask, and an executor that is slow with its word."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from executor.contract import ExecutorLost, Revoked
from executor.echo import EchoExecutor
from tests.gateway.inhouse import CHAT, MODEL, Answered, Caller, Exchange, Inhouse
from tests.gateway.test_line import Hold

DOCS, TMPLS = "/v1/documents", "/v1/templates"
BOB = {"users": [{"subject": "bob"}]}


async def register(caller: Caller, text: str = "The rent is 4200.", **more: Any) -> str:
    answer = await caller.post(DOCS, {"text": text, **more})
    assert answer.status == 200, answer.body
    return str(answer.json()["id"])


def sharing(*users: str, **more: Any) -> dict[str, Any]:
    return {"acl": {"users": [{"subject": user} for user in users], **more}}


async def ask(caller: Caller, *documents: str, text: str = "hi", **more: Any) -> Answered:
    parts: list[dict[str, Any]] = [
        {"type": "file", "file": {"file_id": each}} for each in documents
    ]
    parts.append({"type": "text", "text": text})
    body = {"model": MODEL, "messages": [{"role": "user", "content": parts}], **more}
    return await caller.post(CHAT, body)


def said(answer: Answered) -> str:
    assert answer.status == 200, answer.body
    return str(answer.json()["choices"][0]["message"]["content"])


async def do(caller: Caller, method: str, path: str, body: object = None) -> Answered:
    return await caller.start(method, path, body).end()


class Telling(EchoExecutor):
    """Remembers what it is told; `answer` holds its word back, `lost` is a connection that broke."""

    def __init__(self, gate: Hold | None = None) -> None:
        super().__init__(gate=gate)
        self.told: list[tuple[tuple[bytes, ...], int]] = []
        self.answer = asyncio.Event()
        self.answer.set()
        self.lost = False
        self.deaf_to: tuple[bytes, ...] = ()

    async def revoke(self, tags: tuple[bytes, ...], snapshot: int) -> Revoked:
        self.told.append((tags, snapshot))
        await self.answer.wait()
        if self.lost or (self.deaf_to and tags == self.deaf_to):
            raise ExecutorLost
        return await super().revoke(tags, snapshot)


def reading(home: Inhouse, name: str, id_: str) -> Exchange:
    parts = [{"type": "file", "file": {"file_id": id_}}, {"type": "text", "text": "hi"}]
    body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": parts}]}
    return home.caller(name).start("POST", CHAT, body)


def on_disk(folder: Path) -> bytes:
    return b"".join(each.read_bytes() for each in folder.rglob("*") if each.is_file())


CONFIRMED = ("revocation.confirmed", "done")


def told_of(home: Inhouse) -> list[tuple[str, str]]:
    """What the audit log says of rights that were taken away, and of what became of it."""
    ends = ("expired", "revoked", "deleted", "changed", "suspended", "confirmed")
    records = [each for each in home.audited() if each["kind"].endswith(ends)]
    assert len({each["target"] for each in records}) <= 1
    return [(each["kind"], each["outcome"]) for each in records]


async def told(echo: Telling) -> None:
    async with asyncio.timeout(20):
        while not echo.told:
            await asyncio.sleep(0)


async def queued(home: Inhouse, count: int) -> None:
    """Until so many changes of the registry wait for their turn."""
    async with asyncio.timeout(20):
        while len(home.house.registered.documents._changing) < count:
            await asyncio.sleep(0)
