"""A house with a real executor and the default model behind it, instead of one that echoes."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from executor.client import ExecutorProcess
from gateway.caching_start import enforce
from tests.gateway.inhouse import CACHES, MODEL, Inhouse, inhouse
from tests.models import default_model_path

READY_S: Final = 120


@asynccontextmanager
async def with_model(tmp_path: Path) -> AsyncIterator[Inhouse]:
    """One that keeps prompts.  PYTHONPATH must name this tree: `-P` leaves the working directory out."""
    command = [sys.executable, "-P", "-m", "executor", "--model", str(default_model_path())]
    command += ["--device", "cpu", "--numerics", "invariant", "--kv-memory", str(768 * 2**20)]
    command += ["--context-tokens", "2048", "--threads", "1"]
    with TemporaryDirectory() as folder:  # a socket's path is short
        async with ExecutorProcess(command, Path(folder)) as executor, inhouse(tmp_path) as home:
            await executor.wait_ready(READY_S)
            home.house.deployments[MODEL].executor = executor
            await enforce(home.house, CACHES)
            yield home
