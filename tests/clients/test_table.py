"""The README's table of clients is what the tests declare, whether or not they run now."""

from __future__ import annotations

import pytest

from tests.clients.conftest import cells, whole
from tests.clients.matrix import DEVIATIONS, Cell, Outcome, summary, table
from tests.clients.table import PAGES, written


def test_the_readmes_have_the_tables_that_the_tests_declare(request: pytest.FixtureRequest) -> None:
    """After a change: `pytest tests/clients -m "not long"`, then `python -m tests.clients.table --write`."""
    if not whole(request.config):
        pytest.skip("only some of the clients' tests are collected")
    declared = cells(request.config)
    for page, shown in PAGES.items():
        assert written(page) == shown(declared), page
    assert set(DEVIATIONS) <= set(declared)


def test_a_cell_that_failed_or_did_not_run_is_no_pass() -> None:
    one, two, three = (
        Cell("models", "listed", name) for name in ("openai-python", "AI SDK", "LangChain")
    )
    shown = table([one, two, three], {one: Outcome.FAILED, two: Outcome.PASSED})
    assert "| listed | **fails** | ✓ | not run |" in shown


def test_a_deviation_has_its_number_and_its_reason() -> None:
    [cell] = [cell for cell in DEVIATIONS if cell.what.startswith("a spent budget")]
    shown = table([cell])
    assert f"| {cell.what} | 1 |" in shown
    assert f"\n1. {cell.client} {DEVIATIONS[cell]}" in shown


def test_a_summary_is_as_good_as_its_worst_part() -> None:
    [cell] = [cell for cell in DEVIATIONS if cell.what.startswith("a spent budget")]
    other = Cell("chat", "listed", "AI SDK")
    passed = {cell: Outcome.PASSED, other: Outcome.PASSED}
    path = "| `POST /v1/chat/completions` |"
    assert f"{path} ✓ 1 |" in summary(passed, passed)
    assert f"{path} not run |" in summary(passed, {cell: Outcome.PASSED})
    assert f"{path} **fails** |" in summary(passed, {cell: Outcome.PASSED, other: Outcome.FAILED})
    assert f"{path} ✓ |" in summary([other])
