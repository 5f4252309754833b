"""A12, W7, W12 and P17 at a real server: every bad client at once, and then all is as it was before."""

from __future__ import annotations

import asyncio
import sys

import pytest

from tests.bench.hostile import ACTS, survived
from tests.bench.server import Server

pytestmark = pytest.mark.slow
SECONDS = 8.0
WAIT_S = 30.0  # of a machine that others use too; alone it takes one


def test_after_a_flood_all_is_as_it_was() -> None:
    async def scene() -> None:
        server = Server.prepare()
        config = str(server.folder / "lockgate.toml")
        command = (sys.executable, "-m", "tests.bench.modelless", "--config", config)
        server.command = (*command, "--steps", "64", "--step-ms", "10")
        try:
            await server.started()
            seen = await survived(server.site, seconds=SECONDS, wait_s=WAIT_S)
            assert seen.faults == ()
            assert seen.back_s is not None
            assert seen.done.keys() == ACTS.keys()
            assert min(seen.done.values()) > 5
            assert '"connection.failed"' not in server.log()
            assert "handler.failed" not in server.log()
        finally:
            server.__exit__()

    asyncio.run(scene())
