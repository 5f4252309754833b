"""Requests by an `Idempotency-Key` in a whole house: what their tests ask, and what the book says of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, select

from tenants import schema
from tests.gateway.inhouse import CHAT, Answered, Caller, Exchange, Inhouse, chat_body

KEY = "b0d5a1f2-7a52-4c55-8f2e-2f3c3a0d1a11"
REPLAYED = "idempotent-replayed"


def keyed(caller: Caller, key: str = KEY) -> Caller:
    return caller.with_headers(idempotency_key=key)


def start(caller: Caller, content: str = "hello", key: str = KEY, **fields: object) -> Exchange:
    return keyed(caller, key).start("POST", CHAT, chat_body(content, **fields))


async def ask(caller: Caller, content: str = "hello", key: str = KEY, **fields: object) -> Answered:
    return await start(caller, content, key, **fields).end()


async def rows(home: Inhouse) -> list[Mapping[Any, Any]]:
    """All keys, as they stand in the database."""

    def op(conn: Connection) -> list[Mapping[Any, Any]]:
        return list(conn.execute(select(schema.idempotency)).mappings())

    return await home.store.read(op)


async def reservations(home: Inhouse) -> list[Mapping[Any, Any]]:
    def op(conn: Connection) -> list[Mapping[Any, Any]]:
        return list(conn.execute(select(schema.reservation)).mappings())

    return await home.store.read(op)


async def charged(home: Inhouse) -> int:
    """Nano-USD, of all there ever was."""
    return sum(row["charge"] for row in await reservations(home))


async def turns(condition: Any, most: int = 200) -> None:
    """Until it is so."""
    for _ in range(most):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came to be so")


def told(answer: Answered) -> tuple[int, bytes, Mapping[str, str]]:
    """What two answers must have in common to be one; the id of a request is its own."""
    own = {"x-request-id", "request-id", REPLAYED, "content-length"}
    return answer.status, answer.body, {k: v for k, v in answer.headers.items() if k not in own}
