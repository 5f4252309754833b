"""What every test run has in common."""

from __future__ import annotations

import gc
import os
from pathlib import Path

pytest_plugins = ["tests.servers_valkey"]

ROOT = Path(__file__).resolve().parents[1]


def pytest_configure() -> None:
    """What the tests start is this tree too, whichever folder it is started in (`python -P`)."""
    before = [path for path in [os.environ.get("PYTHONPATH")] if path]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *before])


def pytest_collection_finish() -> None:
    """Thousands of collected tests are not garbage: do not look through them again and again."""
    gc.collect()
    gc.freeze()
