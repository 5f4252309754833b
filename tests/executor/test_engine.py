from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from executor.batch import Batch
from executor.choice import Ask, Choice
from executor.contract import Cause, Emitted, Ended, Prefilling, Sampling, Waiting
from executor.engine import FAILURES_MAX
from executor.inbox import Gone
from executor.settings import Settings
from tests.executor.fakes import OPTIMIST, FakeRunner, Harness, job, logits_of


def greedy(
    prompt: tuple[int, ...], count: int, vocab_size: int = 32, habits: float = 0.0
) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        logits = logits_of(tokens, vocab_size, habits)
        tokens.append(max(range(vocab_size), key=lambda i: logits[i]))
    return tokens[len(prompt) :]


def test_a_request_runs_to_its_length_and_says_so_once() -> None:
    house = Harness()
    house.submit(job(1, (1, 2, 3), max_new_tokens=9))
    house.run()
    assert house.tokens(1) == greedy((1, 2, 3), 9)
    last = house.ended(1)
    assert (last.cause, last.prefilled, last.generated) == (Cause.LENGTH, 3, 9)
    assert last.prefill_ns > 0
    assert last.decode_ns > 0
    kinds = [type(update) for update in house.heard[0, 1]]
    assert kinds == [Prefilling, *[Emitted] * 9, Ended]
    house.assert_empty()


def test_the_spans_add_up_to_the_life_in_the_executor() -> None:
    house = Harness()
    house.submit(job(1))
    begin_ns = house.clock.now_ns + house.clock.tick_ns  # the reading with which the step begins
    house.run()
    last = house.ended(1)
    spans_ns = last.queued_ns + last.prefill_ns + last.decode_ns
    assert spans_ns == house.clock.now_ns - begin_ns


def test_a_stop_token_is_the_last_of_generated() -> None:
    stop = greedy((1, 2, 3), 3)[2]
    assert stop not in greedy((1, 2, 3), 2)
    house = Harness()
    house.submit(job(1, stop_token_ids=(stop,), max_new_tokens=20))
    house.run()
    assert house.tokens(1) == greedy((1, 2, 3), 3)
    assert house.ended(1).cause is Cause.STOP
    assert house.ended(1).generated == 3


def test_min_tokens_keeps_stop_tokens_from_being_sampled() -> None:
    stop = greedy((1, 2, 3), 1)[0]
    house = Harness()
    house.submit(job(1, stop_token_ids=(stop,), min_tokens=5, max_new_tokens=30))
    house.run()
    tokens = house.tokens(1)
    assert stop not in tokens[:5]
    assert len(tokens) >= 5


def test_the_context_being_full_ends_in_length() -> None:
    house = Harness(FakeRunner(context_tokens=10, kv_blocks=16))
    house.submit(job(1, (1, 2, 3), max_new_tokens=50))
    house.run()
    assert house.ended(1).cause is Cause.LENGTH
    assert house.ended(1).generated == 7


def test_the_last_survivor_that_cannot_grow_ends_in_length() -> None:
    house = Harness(FakeRunner(kv_blocks=2, block_tokens=4))
    house.submit(job(1, (1, 2, 3), max_new_tokens=50))
    house.run()
    assert house.ended(1).cause is Cause.LENGTH
    assert house.tokens(1) == greedy((1, 2, 3), 6)  # 8 places are computed, the 9th token sampled


def test_what_can_never_fit_is_refused_at_once_and_told_why() -> None:
    house = Harness(FakeRunner(context_tokens=64, kv_blocks=2, block_tokens=4))
    house.submit(job(1, range(8)))
    house.submit(job(2, ()))
    house.submit(job(3, (99,)))
    house.submit(job(4, (-1,)))
    house.submit(job(5, max_new_tokens=0))
    house.submit(job(6, sampling=Sampling(temperature=float("nan"))))
    house.submit(job(7, sampling=Sampling(logit_bias=((32, 1.0),))))
    house.submit(job(8, range(7), max_new_tokens=1))
    house.step()
    for request in range(1, 8):
        assert house.ended(request).cause is Cause.REFUSED
        assert house.ended(request).detail
    assert house.ended(8).cause is Cause.LENGTH
    house.assert_empty()


def test_a_full_queue_refuses_and_what_runs_is_not_disturbed() -> None:
    house = Harness(settings=Settings(seqs_max=1, waiting_max=1, check_invariants=True))
    house.submit(job(1))
    house.step()
    house.submit(job(2))
    house.submit(job(3))
    house.run()
    assert house.ended(3).cause is Cause.BACKLOG
    assert house.ended(1).cause is house.ended(2).cause is Cause.LENGTH


def test_a_deadline_in_the_queue_ends_only_what_has_not_started() -> None:
    house = Harness(settings=Settings(seqs_max=1, check_invariants=True))
    house.submit(job(1, queue_ms_max=5, max_new_tokens=30))
    house.submit(job(2, queue_ms_max=5))
    house.submit(job(3, queue_ms_max=10_000))
    house.run()
    assert house.ended(1).cause is house.ended(3).cause is Cause.LENGTH
    late = house.ended(2)
    assert (late.cause, late.prefilled, late.generated) == (Cause.QUEUE_DEADLINE, 0, 0)
    assert late.queued_ns >= 5_000_000
    assert (late.prefill_ns, late.decode_ns, late.device_ns) == (0, 0, 0)


def test_places_are_told_within_the_tenant() -> None:
    house = Harness(settings=Settings(seqs_max=1, check_invariants=True))
    a, b = (("a", 1.0), ("x", 1.0)), (("b", 1.0),)
    for request, share in ((1, a), (2, a), (3, b), (4, a), (5, b)):
        house.submit(job(request, share=share))
    house.step()
    places = {n: house.heard[0, n][0] for n in (2, 3, 4, 5)}
    assert places == {
        2: Waiting(request=2, position=0),
        3: Waiting(request=3, position=0),
        4: Waiting(request=4, position=1),
        5: Waiting(request=5, position=1),
    }
    assert not any(isinstance(update, Waiting) for update in house.heard[0, 1])


def test_an_abort_during_the_step_is_heard_before_its_results() -> None:
    asked: list[int] = []

    class Counting(FakeRunner):
        def sample(self, logits: Tensor, asks: Sequence[Ask]) -> list[Choice]:
            asked.append(len(asks))
            return super().sample(logits, asks)

    house = Harness(Counting())
    house.submit(job(1, max_new_tokens=20))
    house.submit(job(2, (4, 5), max_new_tokens=20))
    for _ in range(3):
        house.step()
    seen = house.tokens(1)
    house.runner.before = lambda _: house.abort(1)
    house.step()
    house.runner.before = lambda _: None
    assert house.tokens(1) == seen
    assert asked == [2, 2, 2, 1]  # its token of that step was not even sampled
    last = house.ended(1)
    assert (last.cause, last.generated) == (Cause.ABORTED, len(seen))
    house.run()
    assert house.tokens(2) == greedy((4, 5), 20)
    house.assert_empty()


def test_an_abort_in_the_very_step_that_finishes_it_leaves_nothing() -> None:
    house = Harness()
    house.submit(job(1, max_new_tokens=1))
    house.runner.before = lambda _: house.abort(1)
    house.step()
    assert house.ended(1).cause is Cause.ABORTED
    assert house.ended(1).prefilled == 3  # it ran, so it is billed
    house.step()
    house.assert_empty()


def test_an_abort_in_the_middle_of_a_prompt_frees_within_that_chunk() -> None:
    house = Harness(settings=Settings(step_tokens_max=4, check_invariants=True))
    house.submit(job(1, range(20)))
    house.step()
    house.abort(1)
    house.step()
    assert (house.ended(1).cause, house.ended(1).prefilled) == (Cause.ABORTED, 4)
    house.assert_empty()


def test_unknown_and_ended_numbers_may_be_aborted() -> None:
    house = Harness()
    house.abort(7)
    house.submit(job(1))
    house.run()
    house.abort(1)
    assert house.step() == {}
    house.ended(1)


def test_a_connection_that_goes_takes_its_requests_with_it() -> None:
    house = Harness()
    house.submit(job(1, max_new_tokens=30), owner=1)
    house.submit(job(1, (4, 5)), owner=2)
    house.step()
    house.inbox.append((1, Gone()))
    house.step()
    assert (house.engine.gauges.running, house.engine.gauges.waiting) == (1, 0)
    house.run()
    assert house.ended(1, owner=2).cause is Cause.LENGTH
    house.assert_empty()


def test_a_long_prompt_never_skips_a_decode() -> None:
    house = Harness(settings=Settings(step_tokens_max=4, check_invariants=True))
    house.submit(job(1, max_new_tokens=12))
    house.step()
    house.submit(job(2, range(30)))
    house.run()
    assert house.tokens(1) == greedy((1, 2, 3), 12)
    for batch in house.runner.batches[1:8]:
        assert [count for _, count in batch] == [1, 4]


def test_preempted_requests_keep_tokens_and_are_not_charged_for_recompute() -> None:
    house = Harness(FakeRunner(kv_blocks=6, block_tokens=4), settings=OPTIMIST)
    house.submit(job(1, (1, 2, 3, 4, 5), max_new_tokens=14))
    house.submit(job(2, (6, 7), max_new_tokens=14))
    house.run()
    assert house.tokens(1) == greedy((1, 2, 3, 4, 5), 14)
    assert house.tokens(2) == greedy((6, 7), 14)
    first, second = house.ended(1), house.ended(2)
    assert first.preemptions + second.preemptions > 0
    assert (first.prefilled, second.prefilled) == (5, 2)
    assert (first.generated, second.generated) == (14, 14)
    gauges = house.reports[-1].gauges
    assert first.recomputed_ns + second.recomputed_ns == gauges.overhead_ns > 0
    assert first.device_ns + second.device_ns == gauges.busy_ns
    assert gauges.busy_ns + gauges.overhead_ns == gauges.step_ns
    assert (gauges.prompt_tokens, gauges.generated_tokens) == (7, 28)
    again = house.heard[0, 2 if second.preemptions else 1]
    assert any(isinstance(u, Waiting) for u in again[2:]), "back in the queue, and told so"


def test_a_failed_step_ends_its_requests_and_the_engine_lives_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_: Batch) -> None:
        raise RuntimeError("prompt token 49151 is odd")

    house = Harness(settings=Settings(seqs_max=1, check_invariants=True))
    house.submit(job(1))
    house.submit(job(2, (4, 5)))
    house.step()
    house.runner.before = fail
    house.step()
    house.runner.before = lambda _: None
    assert house.ended(1).cause is Cause.CRASHED
    assert "49151" not in house.ended(1).detail + "".join(capsys.readouterr())
    house.run()
    assert house.tokens(2) == greedy((4, 5), 8)
    assert not house.engine.failed
    house.assert_empty()


def test_failure_after_failure_asks_for_a_new_process() -> None:
    def fail(_: Batch) -> None:
        raise RuntimeError

    house = Harness(settings=Settings(seqs_max=1, check_invariants=True))
    house.runner.before = fail
    for request in range(1, FAILURES_MAX + 1):
        assert not house.engine.failed
        house.submit(job(request))
        house.step()
        assert house.ended(request).cause is Cause.CRASHED
    assert house.engine.failed


def test_failures_that_are_not_in_a_row_are_lived_with() -> None:
    def fail(_: Batch) -> None:
        raise RuntimeError

    house = Harness()
    for request in range(1, 3 * FAILURES_MAX):
        house.runner.before = fail if request % 2 else lambda _: None
        house.submit(job(request))
        house.run()
    assert not house.engine.failed
    house.assert_empty()


def test_a_row_without_numbers_ends_alone() -> None:
    class Poisoned(FakeRunner):
        def run(self, batch: Batch) -> torch.Tensor:
            logits = super().run(batch)
            logits[0, 3] = float("nan")
            return logits

    house = Harness(Poisoned())
    house.submit(job(1))
    house.submit(job(2, (4, 5), max_new_tokens=1))
    house.run()
    assert house.ended(1).cause is Cause.CRASHED
    assert house.ended(2).cause is Cause.LENGTH
    assert not house.engine.failed
    house.assert_empty()


def test_logprobs_come_one_a_token_where_asked_for() -> None:
    house = Harness()
    house.submit(job(1, sampling=Sampling(temperature=0.0, top_logprobs=2), max_new_tokens=3))
    house.run()
    said = [u for u in house.heard[0, 1] if isinstance(u, Emitted)]
    assert [len(u.logprobs) for u in said] == [1, 1, 1]
    assert [u.logprobs[0].chosen.token for u in said] == house.tokens(1)
