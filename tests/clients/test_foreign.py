"""What is said of foreign suites: a failure that nobody has explained fails, and every explanation is one."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from tests.clients.foreign.__main__ import HERE, SUITES, Row, judged, matching

SUITE: dict[str, Any] = {"deviates": {"unit/test_a.py::test_b[*": "their own words"}}


def found(test: str, outcome: str, why: str = "") -> dict[str, str]:
    return {"test": test, "outcome": outcome, "why": why}


def test_a_failure_without_a_reason_is_new() -> None:
    rows = judged(
        [
            found("unit/test_a.py::test_a", "passed"),
            found("unit/test_a.py::test_b[x-1]", "failed", "assert 1 == 2"),
            found("unit/test_a.py::test_b", "failed", "assert 2 == 3"),
            found("unit/test_a.py::test_c", "not applicable", "images"),
        ],
        SUITE,
    )
    assert rows == [
        Row("unit/test_a.py::test_a", "passes"),
        Row("unit/test_a.py::test_b[x-1]", "deviates", "their own words"),
        Row("unit/test_a.py::test_b", "NEW", "assert 2 == 3"),
        Row("unit/test_a.py::test_c", "not applicable", "images"),
    ]


def test_only_a_star_stands_for_something() -> None:
    assert matching("t::a[b]", {"t::a[b]": "yes"}) == "yes"
    assert matching("t::ab", {"t::a[b]": "yes"}) is None
    assert matching("t::a[b\nc]", {"t::a[*": "yes"}) == "yes"


@pytest.mark.parametrize("file", SUITES.values())
def test_every_suite_names_its_files_and_its_reasons(file: str) -> None:
    suite = tomllib.loads((HERE / file).read_text("utf-8"))
    assert suite["files"]
    for reasons in (suite["deviates"], suite["not_applicable"]):
        assert all(len(reason.split()) > 1 or reason == "images" for reason in reasons.values())
        assert all(test.startswith(("*", *suite["files"])) for test in reasons)
