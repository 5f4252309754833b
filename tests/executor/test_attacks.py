"""One request's numbers may end that request, and never those beside it (SECURITY.md P14); the
process's last words hold none of them (P10)."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
import torch

from executor import sampler
from executor.__main__ import tell_crashes
from executor.choice import Ask, Choice
from executor.contract import Cause, Sampling
from executor.sampler import sample
from tests.executor.fakes import Harness, job

FITS: dict[str, Any] = {
    "temperature": 1e-5,
    "top_p": 0.5,
    "repetition_penalty": 1e-3,
    "logit_bias": ((3, 1e6),),
}


@pytest.mark.parametrize(
    "fields",
    (
        {"repetition_penalty": 1e-40},
        {"repetition_penalty": 1e300},
        {"repetition_penalty": float("nan")},
        {"presence_penalty": -1e300},
        {"frequency_penalty": float("nan")},
        {"logit_bias": ((3, 1e300),)},
        {"logit_bias": ((3, float("nan")),)},
    ),
)
def test_numbers_that_leave_float32_are_refused(fields: dict[str, Any]) -> None:
    house = Harness()
    house.submit(job(1, sampling=Sampling(top_p=0.5, **fields)))
    house.submit(job(2))
    house.run()
    assert house.ended(1).cause is Cause.REFUSED
    assert house.ended(2).cause is Cause.LENGTH
    house.assert_empty()


def test_numbers_at_the_bounds_can_be_drawn_from() -> None:
    raw = torch.linspace(-300, 300, 64).repeat(4, 1)
    for sign in (1, -1):
        wants = [
            Ask(Sampling(seed=seed, **(FITS | more)), list(range(64)), 8)
            for seed, more in enumerate(
                (
                    {},
                    {"repetition_penalty": 1e3},
                    {"min_p": 1e-9, "presence_penalty": sign * 1e6},
                    {"top_k": 5, "frequency_penalty": sign * 1e6},
                )
            )
        ]
        assert all(choice.token is not None for choice in sample(raw, wants))


def test_a_row_that_cannot_be_sampled_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = sampler._draw

    def poisoned(row: torch.Tensor, ids: torch.Tensor | None, ask: Ask) -> int:
        if ask.sampling.seed == 13:
            raise IndexError("argmax of nothing")
        return draw(row, ids, ask)

    monkeypatch.setattr(sampler, "_draw", poisoned)
    raw = torch.zeros(3, 16)
    wants = [Ask(Sampling(seed=seed), [1], 1) for seed in (12, 13, 14)]
    first, second, third = sample(raw, wants)
    assert second == Choice(None)
    assert first.token is not None
    assert third.token is not None
    house = Harness()
    house.submit(job(1, sampling=Sampling(seed=13)))
    house.submit(job(2, sampling=Sampling(seed=14)))
    house.run()
    assert house.ended(1).cause is Cause.CRASHED
    assert house.ended(2).cause is Cause.LENGTH


def test_a_crash_says_its_kind_and_no_numbers(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for module in (sys, threading):
        monkeypatch.setattr(module, "excepthook", module.excepthook)  # to be put back
    tell_crashes()

    def crash() -> None:
        raise KeyError(49151)

    thread = threading.Thread(target=crash)
    thread.start()
    thread.join()
    try:
        crash()
    except KeyError as fault:
        sys.excepthook(KeyError, fault, fault.__traceback__)
    written = "".join(capfd.readouterr())
    assert written.count("crashed") == 2
    assert written.count("KeyError") == 2
    assert "49151" not in written
