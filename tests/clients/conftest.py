"""Clients as fixtures, and what the tests say of each: collected, and kept by the run for `table`."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.clients.driving import Client, node_client
from tests.clients.matrix import Cell, Outcome

HERE = Path(__file__).resolve().parent
FOUND = HERE.parents[1] / "var" / "artefacts" / "clients.json"
DECLARED = pytest.StashKey[dict[str, Cell]]()
OUTCOMES = pytest.StashKey[dict[Cell, Outcome]]()


class Clients:
    """Each is started when it is first asked for."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._started: dict[str, Client] = {}

    def __getitem__(self, name: str) -> Client:
        if name not in self._started:
            self._started[name] = self._start(name)
        return self._started[name]

    def _start(self, name: str) -> Client:
        scripts = {
            "openai-node": "openai.mjs",
            "AI SDK": "ai_sdk.mjs",
            "LangChain.js": "langchain.mjs",
        }
        if name in scripts:
            return self._stack.enter_context(node_client(scripts[name]))
        from tests.clients import python_clients  # whose libraries take seconds to import

        return python_clients.PythonClient(python_clients.BY_NAME[name])


@pytest.fixture(scope="session")
def clients() -> Iterator[Clients]:
    with ExitStack() as stack:
        yield Clients(stack)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "covers(what, api=…, client=…): a cell of the table of clients (matrix.py)"
    )
    config.stash[DECLARED] = {}
    config.stash[OUTCOMES] = {}


@pytest.hookimpl(tryfirst=True)  # before any are deselected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        mark = item.get_closest_marker("covers")
        if mark is not None:
            said = vars(item)["callspec"].params if hasattr(item, "callspec") else {}
            said = {**said, **mark.kwargs}
            cell = Cell(said["api"], mark.args[0], said["client"])
            config.stash[DECLARED][item.nodeid] = cell


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    cell = item.config.stash[DECLARED].get(item.nodeid)
    if cell is not None:
        found = item.config.stash[OUTCOMES]
        worst = [found.get(cell), Outcome.FAILED if report.failed else None]
        if report.skipped:
            worst.append(Outcome.SKIPPED)
        if report.when == "call" and report.passed:
            worst.append(Outcome.PASSED)
        order = (Outcome.FAILED, Outcome.SKIPPED, Outcome.PASSED)
        known = [outcome for outcome in order if outcome in worst]
        if known:
            found[cell] = known[0]
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Only a run of all of them is told of."""
    config = session.config
    declared = cells(config)
    found = config.stash[OUTCOMES]
    if not whole(config) or set(declared) != set(found):
        return
    FOUND.parent.mkdir(parents=True, exist_ok=True)
    rows = [{**cell._asdict(), "outcome": found[cell]} for cell in declared]
    told = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "cells": rows}
    FOUND.write_text(json.dumps(told, indent=1) + "\n")


def cells(config: pytest.Config) -> list[Cell]:
    """What is declared, in the order of the files' names, however they were named to pytest."""
    declared = config.stash[DECLARED]
    by_file = sorted(declared, key=lambda nodeid: nodeid.partition("::")[0])
    return list(dict.fromkeys(declared[nodeid] for nodeid in by_file))


def whole(config: pytest.Config) -> bool:
    """Whether every module here that declares cells was collected."""
    seen = {nodeid.partition("::")[0].rpartition("/")[2] for nodeid in config.stash[DECLARED]}
    return seen == {
        path.name for path in HERE.glob("test_*.py") if "mark.covers" in path.read_text()
    }
