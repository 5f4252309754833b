"""The bench's tables, and the simulator beside measured runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.simulation.experiments import Bar, Contender, Experiment, Figures
from tests.bench import fairness_published
from tests.bench.fairness import NAMES, experiments, lines, outcome

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"


def run(contender: Contender) -> Figures:
    return {"wait_s": float(len(contender.name)), "share": 0.25}


EXAMPLE = Experiment(
    "E0",
    "an example",
    run,
    (
        Bar("shorter", lambda f: f["vtc"]["wait_s"] < f["fcfs"]["wait_s"]),
        Bar("longer", lambda f: f["fair"]["wait_s"] > f["fcfs"]["wait_s"]),
        Bar("as its twin", lambda f: f["fair"]["wait_s"] < f["vtc*"]["wait_s"]),
    ),
)


def test_a_table_has_a_column_for_each_contender_and_a_line_for_each_bar() -> None:
    assert lines(outcome(EXAMPLE, ("fcfs", "vtc", "fair"))) == [
        "E0  an example",
        "         fcfs    vtc   fair",
        "wait s      4      3      4",
        " share  0.250  0.250  0.250",
        "  holds: shorter",
        "  FAULT: longer",
        "  not run: as its twin",
    ]


def test_an_experiment_that_nobody_knows_is_named() -> None:
    with pytest.raises(ValueError, match=r"no experiment E99; expected some of E1, E2"):
        experiments(["E1", "E99"], TRACES)
    assert [each.name for each in experiments(["E4", "E6"], TRACES)] == ["E4", "E6"]
    assert "E5" in NAMES


@pytest.fixture(scope="module")
def pairs() -> dict[tuple[str, str], fairness_published.Pair]:
    if not (TRACES / fairness_published.RUNS).is_file():
        pytest.skip("VTC's measured runs are not beside this checkout (../shared/traces)")
    slower, found = fairness_published.compare(TRACES)
    assert 1.05 < slower < 1.15
    return {(pair.suite, pair.scheduler): pair for pair in found}


def off(pair: fairness_published.Pair, figure: str) -> float:
    return pair.simulated[figure] / pair.measured[figure] - 1


@pytest.mark.slow
def test_simulated_and_measured_agree(
    pairs: dict[tuple[str, str], fairness_published.Pair],
) -> None:
    """E1, E3, E6 within 10 %, but for what is one instant of a swing (VTC's gap) and for FCFS in E3:
    its measured run was 3 % slower than VTC's on the same work, and near saturation that is 13 % of the
    wait."""
    for pair in pairs.values():
        assert abs(off(pair, "tokens_per_s")) < 0.05
    assert abs(off(pairs["overload", "FCFS"], "gap_at_330s")) < 0.1
    assert abs(off(pairs["proportional", "VTC"], "light_ttft_mean_s")) < 0.1
    assert abs(off(pairs["proportional", "FCFS"], "light_ttft_mean_s")) < 0.15
    for name in pairs["overload-weighted", "WVTC"].measured:
        assert abs(off(pairs["overload-weighted", "WVTC"], name)) < 0.02
    for scheduler in ("FCFS", "VTC"):
        assert abs(off(pairs["real", scheduler], "diff_mean")) < 0.1
        assert abs(off(pairs["real", scheduler], "alone_ttft_p99_s")) < 0.3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suite", "figure"),
    (
        ("overload", "gap_max"),
        ("increase", "light_ttft_mean_s"),
        ("proportional", "light_ttft_mean_s"),
        ("real", "diff_mean"),
        ("real", "alone_ttft_p99_s"),
    ),
)
def test_simulation_ranks_as_measured(
    pairs: dict[tuple[str, str], fairness_published.Pair], suite: str, figure: str
) -> None:
    for get in ("measured", "simulated"):
        fcfs, vtc = (getattr(pairs[suite, each], get)[figure] for each in ("FCFS", "VTC"))
        assert fcfs > 1.5 * vtc
