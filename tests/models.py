"""Models for tests: the real one where it lies at hand, and tiny random Llamas made on the spot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

MODELS = Path(__file__).resolve().parents[1] / "var" / "models"


def default_model_path() -> Path:
    """LOCKGATE_TEST_MODEL, or the first GGUF file that `deploy/dev.py` has fetched; else skip."""
    if named := os.environ.get("LOCKGATE_TEST_MODEL"):
        return Path(named)
    if found := sorted(MODELS.glob("**/*.gguf")):
        return found[0]
    pytest.skip(f"no model: set LOCKGATE_TEST_MODEL, or let deploy/dev.py fetch one into {MODELS}")
