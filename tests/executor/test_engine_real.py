"""The engine over a real, tiny Llama in `invariant`: whatever else runs, is put out, guesses or shares a
prompt, each request says bit for bit what it says alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import msgspec
import pytest
import torch
from torch import Tensor

from executor.batch import Batch, Row, Runner
from executor.choice import Ask, Choice
from executor.contract import (
    Cause,
    Emitted,
    Gauges,
    Logprob,
    Purge,
    Quota,
    Quotas,
    Sampling,
    Submit,
    TokenLogprobs,
)
from executor.cost import PESSIMIST, StepTimes
from executor.model_runner import load
from executor.settings import Settings
from tests.executor.fakes import FREE, GREEDY, Clock, Harness, job
from tests.executor.labelled import labelled
from tests.executor.test_guesses import said
from tests.models import write_tiny_llama

pytestmark = pytest.mark.slow
SAMPLINGS = (
    GREEDY,
    Sampling(temperature=0.0, top_logprobs=1),
    Sampling(temperature=0.6, top_p=0.9, seed=5),
    Sampling(temperature=0.5, repetition_penalty=1.05, seed=6),
)


@dataclass(frozen=True, slots=True)
class Small:
    """A runner with less memory than it has."""

    whole: Runner
    kv_blocks: int

    @property
    def block_tokens(self) -> int:
        return self.whole.block_tokens

    @property
    def vocab_size(self) -> int:
        return self.whole.vocab_size

    @property
    def context_tokens(self) -> int:
        return self.whole.context_tokens

    def run(self, batch: Batch) -> Tensor:
        return self.whole.run(batch)

    def sample(self, logits: Tensor, asks: Sequence[Ask]) -> list[Choice]:
        return self.whole.sample(logits, asks)

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        self.whole.zero_blocks(blocks)

    def are_zero(self, blocks: Sequence[int]) -> bool:
        return self.whole.are_zero(blocks)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    before = torch.get_num_threads()
    path: Path = write_tiny_llama(tmp_path_factory.mktemp("tiny") / "m")
    yield load(path, numerics="invariant", dtype="float32", kv_bytes=1 << 20, threads=1)[1]
    torch.set_num_threads(before)


def test_a_row_with_guesses_has_the_logits_of_its_decodes(runner: Runner) -> None:
    random = Random(2)
    tokens = [random.randrange(3, 300) for _ in range(61)]
    blocks = [3, 1]
    one = [runner.run(Batch([Row(tokens[at : at + 1], at, blocks, at > 49)])) for at in range(61)]
    decodes = torch.cat(one[50:])
    for start, wrong in ((50, 0), (54, 3)):
        drafted = 60 - start
        row = Row(tokens[start:], start, blocks, wants_logits=True, drafted=drafted)
        beside = Row(tokens[:9], 0, [5], wants_logits=True)
        found = runner.run(Batch([beside, row]))
        assert found.shape[0] == drafted + 2
        assert torch.equal(found[1:], decodes[start - 50 :])
        guesses = [*tokens[start : start + 2], *[7] * wrong]
        runner.run(
            Batch([Row(guesses, start, blocks, True, wrong)])
        )  # left behind, and written over
    runner.zero_blocks([1, 3, 5])


def jobs_of(random: Random) -> dict[int, Submit]:
    made: dict[int, Submit] = {}
    for request in range(1, random.randint(3, 9)):
        named = random.choice([None, None, *made])
        words = [random.randrange(3, 300) for _ in range(random.choice([3, 8, 40]))]
        prompt = made[named].prompt if named else (words * random.randint(1, 4))[:90]
        made[request] = job(
            request,
            prompt,
            sibling=named,
            max_new_tokens=random.choice([4, 30, 90]),
            stop_token_ids=random.choice([(), (random.randrange(300),)]),
            sampling=random.choice(SAMPLINGS),
        )
    return made


def alone(runner: Runner, asked: Submit, blocks: int) -> tuple[object, ...]:
    house = Harness(model=Small(runner, blocks), settings=Settings(speculation=False))
    house.submit(asked)
    house.run()
    tokens, logprobs, cause, _, _ = said(house, asked.request)
    return tokens, logprobs, cause


def bits(logprobs: Sequence[TokenLogprobs]) -> list[list[Logprob]]:
    return [[each.chosen, *each.top] for each in logprobs]


def play(runner: Runner, seed: int) -> Gauges:
    random = Random(seed)
    blocks = random.choice([6, 8, 16])
    settings = Settings(
        seqs_max=random.choice([3, 8]),
        step_tokens_max=random.choice([5, 32, 500]),
        chunk_tokens_min=4,
        check_invariants=True,  # free + held = total after every step
    )
    house = Harness(
        model=Small(runner, blocks),
        settings=settings,
        clock=Clock(tick_ns=20_000_003),
        times=StepTimes(random.choice([PESSIMIST, FREE, FREE])),
    )
    jobs = jobs_of(random)
    late, aborted = list(jobs), set()
    while late or house.inbox or house.engine.busy:
        if late and random.random() < 0.3:
            house.submit(jobs[late.pop(0)])
        if random.random() < 0.01:
            told = random.choice(list(jobs))
            house.abort(told)
            aborted.add(told)
        house.step()
    assert house.engine.gauges.blocks_free == blocks
    for n, asked in jobs.items():
        tokens, logprobs, cause, _, generated = said(house, n)
        assert len(tokens) == generated
        wanted = alone(runner, asked, blocks)
        if cause is Cause.ABORTED and n in aborted:
            assert tokens == wanted[0][:generated]  # type: ignore[index]
        else:
            assert (tokens, cause) == (wanted[0], wanted[2])
            assert bits(logprobs) == bits(wanted[1])  # type: ignore[arg-type]
    return house.engine.gauges


def test_fifteen_scenarios(runner: Runner) -> None:
    seen = [play(runner, seed) for seed in range(15)]
    assert sum(each.preemptions for each in seen) > 5
    assert sum(each.accepted_tokens for each in seen) > 20
    assert sum(each.drafted_tokens - each.accepted_tokens for each in seen) > 20


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_an_answer_after_a_hit_is_the_same_bit_for_bit(runner: Runner, sampling: Sampling) -> None:
    """A prompt of two full blocks and some, computed, found, and found while another runs beside it."""
    house = Harness(model=runner, settings=Settings(pool_part=0.5, check_invariants=True))
    house.order(Quotas(quotas=(Quota(owner="a", part=1.0, pinned=0.0),)))
    prompt = [3 + (13 * at) % 290 for at in range(75)]
    told = msgspec.structs.replace(sampling, top_logprobs=3)
    heard = []
    for n in (1, 2, 3):
        if n == 3:
            house.submit(job(9, prompt[:40], max_new_tokens=30))
        house.submit(labelled(n, prompt, max_new_tokens=12, sampling=told))
        house.run()
        said = [each for each in house.heard[0, n] if isinstance(each, Emitted)]
        heard.append(
            ([t for each in said for t in each.tokens], [p for e in said for p in e.logprobs])
        )
    assert [house.ended(n).cached for n in (1, 2, 3)] == [0, 64, 64]
    assert heard[0] == heard[1] == heard[2]
    house.order(Purge(number=1))
    house.step()
    assert (house.answers[0].entries, house.answers[0].zeroed) == (2, True)
    assert runner.are_zero(range(runner.kv_blocks))
