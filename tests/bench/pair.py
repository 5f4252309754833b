"""Two whole gateways, processes of their own, on one PostgreSQL and, where it is asked for, one Valkey.

Their executors compute nothing (`modelless`); all else is the product's.  Refuses to know: what is asked of them.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2

from tests.bench.issuer import Issuer
from tests.bench.server import Server
from tests.servers_postgres import database
from tests.servers_valkey import valkey

URL = "https://llm.example.com"
"""What both are called from outside, for proofs of possession."""


@dataclass(frozen=True)
class Pair:
    servers: tuple[Server, Server]
    issuer: Issuer

    @property
    def bases(self) -> list[str]:
        return [server.site.base_url for server in self.servers]

    def token(self, name: str = "acme/alice") -> str:
        return self.servers[0].site.tokens[name]

    def admin(self, at: int, path: str, body: object | None = None) -> Any:
        """POST, or GET where there is no body."""
        answer = httpx2.request(
            "GET" if body is None else "POST",
            self.servers[at].site.admin_url + "/v1/admin" + path,
            json=body,
            headers={"Authorization": f"Bearer {self.token('operator')}"},
        )
        assert answer.status_code < 300, answer.text
        return answer.json()


@contextmanager
def pair(*, redis: bool = True, steps: int, step_ms: int) -> Iterator[Pair]:
    """Started at the same moment, on an empty database.  Without Redis each has its own limits."""
    with ExitStack() as stack:
        postgres = stack.enter_context(database())
        shared = "[state]"
        if redis:
            shared += f'\nredis_url = "{stack.enter_context(valkey()).url}"\ngateways = 2'
        root = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "root.key"
        first, second = _prepared(stack), _prepared(stack)
        for server in (first, second):
            (server.folder / "jwks.json").write_bytes((first.folder / "jwks.json").read_bytes())
            file = server.folder / "lockgate.toml"
            text = file.read_text()
            text = re.sub("database_url = .*", f'database_url = "{postgres}"', text)
            text = re.sub("root_key_file = .*", f'root_key_file = "{root}"', text)
            text = text.replace("[listen]", f'[listen]\nurls = ["{URL}"]')
            file.write_text(text.replace("[state]", shared))
        command = [sys.executable, "-m", "tests.bench.modelless"]
        command += ["--steps", str(steps), "--step-ms", str(step_ms)]
        for server in (first, second):
            server.command = (*command, "--config", str(server.folder / "lockgate.toml"))
        second.site = replace(second.site, tokens=first.site.tokens)

        async def start() -> None:
            await asyncio.gather(first.started(), second.started())

        asyncio.run(start())
        yield Pair((first, second), first.issuer)


def _prepared(stack: ExitStack) -> Server:
    server = Server.prepare()
    stack.callback(server.__exit__)
    return server
