"""Metrics: what may be a label."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter

from gateway.labelled import Labelled
from tests.gateway.inhouse import CHAT, MODEL, Caller, Inhouse
from tests.gateway.test_attacks import token
from tests.gateway.test_line import lived

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def series(home: Inhouse) -> set[str]:
    lines = home.house.metrics.exposition().decode().splitlines()
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}


@pytest.mark.slow
def test_l6_many_subjects_make_no_series(tmp_path: Path) -> None:
    """Tenants are configured, so they are a label; whoever signs tokens names subjects."""

    async def story(home: Inhouse) -> None:
        for round_ in range(2):  # the first makes what there is for any
            names = [f"somebody-{round_}-{n}" for n in range(40)]
            tokens = [token(home, user=name, jti=name) for name in names]
            callers = [Caller(home.public, each) for each in tokens]
            answers = await asyncio.gather(
                *(
                    caller.post(CHAT, {**BODY, "user": f"end-{n}"})
                    for n, caller in enumerate(callers)
                )
            )
            assert {each.status for each in answers} <= {200, 429}
            assert any(each.status == 200 for each in answers)
            found = series(home)
            if round_ == 0:
                before = found
        assert found == before
        assert not any("somebody" in line or "end-" in line for line in found)

    lived(tmp_path, story)


def test_a_series_is_looked_up_once_and_is_the_metrics_own() -> None:
    registry = CollectorRegistry()
    counter = Counter("x", "X.", ("model",), registry=registry)
    labelled = Labelled(counter)
    labelled.labels("a").inc()
    labelled.labels("a").inc()
    counter.labels("a").inc()
    labelled.labels("b").inc()
    assert labelled.labels("a") is counter.labels("a")
    assert registry.get_sample_value("x_total", {"model": "a"}) == 3
    assert registry.get_sample_value("x_total", {"model": "b"}) == 1
