"""What every test run has in common."""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    """Thousands of collected tests are not garbage: do not look through them again and again."""
    gc.collect()
    gc.freeze()
