"""Figures are what their definitions say, on answers made by hand."""

import pytest

from tests.bench.admin import Used
from tests.bench.figures import Answer, median, percentile, row
from tests.bench.ledger import check
from tests.bench.show import table

pytestmark = pytest.mark.slow  # a developer's tools; the whole run has them


def answer(sent_s: float, *, tokens: int = 3, error: str | None = None) -> Answer:
    return Answer(
        asked_tokens=3,
        sent_s=sent_s,
        first_s=sent_s + 0.1,
        gaps_s=(0.02, 0.04),
        ended_s=sent_s + 0.2,
        status=200,
        input_tokens=5,
        output_tokens=tokens,
        finish="length",
        error=error,
    )


def test_percentiles_are_linear_between_ranks() -> None:
    assert percentile([], 50) is None
    assert percentile([7.0], 99) == 7.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile([0.0, 10.0], 99) == pytest.approx(9.9)


def test_a_row_counts_whole_answers_over_the_whole_time() -> None:
    one = row([answer(0.0), answer(1.0), answer(0.5, tokens=2)], concurrency=2, client_cpu_s=0.012)
    assert one.requests == 3
    assert one.errors == 1
    assert one.output_tokens == 6
    assert one.wall_s == pytest.approx(1.2)
    assert one.output_per_s == pytest.approx(5.0)
    assert one.ttft_p50_ms == pytest.approx(100)
    assert one.itl_p50_ms == pytest.approx(30)
    assert one.tpot_p50_ms == pytest.approx(50)
    assert one.client_cpu_share == pytest.approx(0.01)


def test_a_median_hides_no_error() -> None:
    good = row([answer(0.0)], concurrency=1, client_cpu_s=0)
    bad = row([answer(0.0, error="cut")], concurrency=1, client_cpu_s=0)
    middle = median([good, bad, good])
    assert middle.errors == 1
    assert middle.output_per_s == good.output_per_s
    assert middle.ttft_p50_ms == good.ttft_p50_ms


def test_a_table_names_its_rows_and_shows_the_unmeasured_as_such() -> None:
    head, line = table([row([answer(0.0)], concurrency=8, client_cpu_s=0)], ["ours"])
    assert len(head) == len(line)
    assert line.split()[:4] == ["ours", "8", "1", "0"]
    assert "-" in line.split()


def test_the_ledger_holds_when_billed_is_received_and_nothing_is_left() -> None:
    answers = [answer(0.0), answer(1.0)]
    billed = Used(requests=2, input_tokens=10, output_tokens=6)
    assert check(answers, billed, {}).holds
    assert "received" in check(answers, billed, {}).sentence()


@pytest.mark.parametrize(
    ("billed", "leftovers", "fault"),
    (
        (Used(requests=2, input_tokens=10, output_tokens=7), {}, "output_tokens: received 6"),
        (Used(requests=1, input_tokens=10, output_tokens=6), {}, "requests: received 2, billed 1"),
        (Used(requests=2, input_tokens=9, output_tokens=6), {}, "input_tokens"),
        (Used(requests=2, input_tokens=10, output_tokens=6), {"open_holds": 1}, "1 open_holds"),
    ),
)
def test_the_ledger_does_not_hold(billed: Used, leftovers: dict[str, int], fault: str) -> None:
    verdict = check([answer(0.0), answer(1.0)], billed, leftovers)
    assert not verdict.holds
    assert fault in verdict.sentence()


def test_a_broken_answer_is_a_fault_and_a_refused_one_is_not_asked_of_the_ledger() -> None:
    refused = Answer(asked_tokens=3, sent_s=0, ended_s=1, status=429, error="429")
    billed = Used(requests=1, input_tokens=5, output_tokens=3)
    assert check([answer(0.0), refused], billed, {}).holds
    broken = answer(1.0, error="cut: no [DONE]")
    assert not check([answer(0.0), broken], billed, {}).holds
