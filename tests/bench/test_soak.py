"""The soak finds nothing on a right server, and on each wrong one what is wrong with it."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from tests.bench import soak as module
from tests.bench.fake import Fake, Flaws, running
from tests.bench.mixed_load import Mix
from tests.bench.server import Server
from tests.bench.soak import Sample, Soaked, rises, soak, trends_of
from tests.bench.soak_command import verdict
from tests.bench.trend import trend
from tests.models import write_tiny_llama

pytestmark = pytest.mark.slow  # a developer's tools; the whole run has them

RIGHT = Flaws()
SMALL = Mix(streams=4, input_max=8, output_max=6, probe_streams=2, probe_input=3, probe_output=4)


def soaked(flaws: Flaws = RIGHT) -> Soaked:
    async def go() -> Soaked:
        ticks = count()
        async with running(Fake(flaws)) as site:
            return await soak(
                site, seconds=60, window_s=10, mix=SMALL, clock_s=lambda: next(ticks) * 0.25
            )

    return asyncio.run(go())


def test_a_right_server_has_no_fault() -> None:
    seen = soaked()
    assert seen.faults == ()
    assert len(seen.samples) >= 4
    assert seen.requests > seen.hung_up > 0
    assert seen.samples[0].step_ms == pytest.approx(1.0)
    assert seen.structured
    assert verdict(seen)[-1] == "all holds"


def test_holds_that_leak_are_found_after_the_first_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_S_MAX", 0.05)
    seen = soaked(Flaws(leaks_holds=True))
    assert any("open_holds left over" in fault for fault in seen.faults)
    assert verdict(seen)[-1].startswith("FAULT")


def test_a_book_that_disagrees_is_found() -> None:
    assert any("output tokens, billed" in fault for fault in soaked(Flaws(overbills=1)).faults)


def test_answers_that_end_early_are_found() -> None:
    assert any("short" in fault for fault in soaked(Flaws(stops_short=True)).faults)


def samples(
    *,
    executor_a_minute: float = 0.0,
    step_a_minute: float = 0.0,
    noise: float = 0.0,
    others_cores: float = 0.0,
) -> Iterator[Sample]:
    for minute in range(1, 61):
        jitter = noise * (-1) ** minute
        yield Sample(
            at_min=float(minute),
            requests=1,
            hung_up=0,
            generated=1,
            gateway_mib=150.0 + jitter,
            executor_mib=600.0 + executor_a_minute * minute + jitter,
            step_ms=20.0 + step_a_minute * minute + jitter,
            others_cores=others_cores,
            idle_s=0.1,
        )


def faults(found: list[Sample]) -> list[str]:
    return rises(found, trends_of(found))


def test_flat_and_noisy_passes() -> None:
    assert faults(list(samples(noise=5.0))) == []


def test_memory_that_grows_is_found_and_steps_that_slow_down() -> None:
    (fault,) = faults(list(samples(executor_a_minute=1.0, noise=2.0)))
    assert fault.startswith("executor_mib rises by 4")
    assert "at most 1" in fault
    (fault,) = faults(list(samples(step_a_minute=0.1, noise=1.0)))
    assert fault.startswith("step_ms rises by ")


def test_a_step_time_beside_busy_neighbours_is_not_judged() -> None:
    slower = list(samples(step_a_minute=0.1, others_cores=0.5))
    assert faults(slower) == []
    assert "executor_mib" in faults(list(samples(executor_a_minute=1.0, others_cores=0.5)))[0]


def test_what_grows_while_it_settles_is_no_leak() -> None:
    found = list(samples())
    found[:5] = [replace(each, executor_mib=100.0) for each in found[:5]]
    assert faults(found) == []


def test_few_samples_are_no_verdict() -> None:
    assert "too few" in faults(list(samples())[:3])[0]


def test_a_line_is_found_with_its_error() -> None:
    exact = trend([0, 1, 2, 3], [1, 3, 5, 7])
    assert exact is not None
    assert (exact.slope, exact.growth, exact.error) == (2, 6, 0)
    # slope 0.6 and residuals −0.1, 0.3, −0.3, 0.1 by hand: √(0.2 / 2 / 5)
    rough = trend([0, 1, 2, 3], [0, 1, 1, 2])
    assert rough is not None
    assert rough.slope == pytest.approx(0.6)
    assert rough.error == pytest.approx(0.02**0.5)
    assert rough.rises_by(1.0)
    assert not rough.rises_by(1.9)
    assert trend([0, 1], [0, 1]) is None


def test_a_small_model_for_a_while(tmp_path: Path) -> None:
    """The whole line, for real.  How fast steps are is not judged here: tests are not alone.  So its clock
    goes on with each request: by seconds, a slow machine would have few windows, or none that is settled.
    What is kept of prompts fills its memory page after page: a small one, full before anything is judged."""
    ticks = count()
    tiny = write_tiny_llama(tmp_path / "tiny", max_position_embeddings=8192)
    mix = Mix(streams=8, input_max=24, output_max=32, words=True, probe_input=8)
    with Server.prepare(model_path=str(tiny), threads=1, kv_memory="16 MiB") as server:
        seen = asyncio.run(
            soak(server.site, seconds=15, window_s=2, mix=mix, clock_s=lambda: next(ticks) * 0.02)
        )
    assert [fault for fault in seen.faults if "step_ms" not in fault] == []
    assert seen.hung_up > 0
    assert seen.structured
