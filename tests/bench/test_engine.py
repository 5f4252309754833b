"""The engine's bench on a tiny random model: shares add up, bounds are arithmetic, the loop ends."""

from itertools import count
from pathlib import Path

import pytest

from executor.model_runner import load
from tests.bench.bounds import BF16_BYTES, Rates
from tests.bench.engine import Model, loop, shares
from tests.bench.engine_command import step_lines, turn_lines
from tests.bench.limits import model_size
from tests.bench.stopwatch import Part, Stopwatch, clocked
from tests.models import write_tiny_gguf, write_tiny_llama

pytestmark = pytest.mark.slow  # a developer's tools; the whole run has them

RATES = Rates(read_bytes_per_s=1e9, flops_per_s=1e9, threads=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = write_tiny_llama(tmp_path_factory.mktemp("tiny"))
    _, runner = load(path, threads=1, kv_bytes=4 << 20)
    made = Model(runner, model_size(path), RATES)  # type: ignore[arg-type]  # a decoder, on a CPU
    made.touch()
    return made


def test_a_step_is_shared_out_whole(model: Model) -> None:
    step = model.decode(rows=4, context=40, repeats=3)
    assert (step.rows, step.tokens, step.context) == (4, 4, 40)
    assert sum(step.shares.values()) == pytest.approx(1.0)
    assert all(step.shares[part] > 0 for part in Part)
    assert 0 < step.least_ms <= step.median_ms
    assert len(step_lines([step])) == 2


def test_the_clocked_decoder_says_what_the_plain_one_says(model: Model) -> None:
    from executor.batch import Batch, Row

    ticks = count()
    batch = Batch([Row([5, 6, 7], 0, [0], wants_logits=True)])
    watch = Stopwatch(lambda: next(ticks))
    plain = model.decoder.run(batch).clone()
    assert clocked(model.decoder, watch).run(batch).equal(plain)
    spent = watch.take()
    layers = model.decoder.config.layers
    # every reading of this clock is one more than the last
    assert spent == {
        Part.PLAN: 1,
        Part.LINEARS: 4 * layers,
        Part.HEAD: 1,
        Part.ATTENTION: layers,
        Part.SMALL: 1 + (2 * layers + 1) + layers,
    }
    assert watch.take() == {}


def test_a_prompt_is_bound_by_its_operations(model: Model) -> None:
    step = model.prefill(tokens=128, repeats=3)
    assert step.tokens == step.context == 128
    expected_s = model.size.prefill_s(RATES, weight_bytes=0, tokens=128)
    assert step.bound_ms == pytest.approx(1000 * expected_s)


def test_what_has_no_room_is_known_before(model: Model) -> None:
    assert model.fits(1, 512)
    assert not model.fits(1, 513)
    assert not model.fits(10_000, 64)


@pytest.mark.parametrize("temperature", (0.0, 1.0))
def test_the_loop_shows_what_the_model_waits_for(model: Model, temperature: float) -> None:
    turn = loop(model.decoder, 3, temperature=temperature, steps=4)
    assert turn.rows == 3
    assert turn.gap_ms == pytest.approx(turn.sampling_ms + turn.engine_ms + turn.between_ms)
    assert min(turn.model_ms, turn.sampling_ms, turn.engine_ms, turn.between_ms) > 0
    assert len(turn_lines([turn])) == 2
    again = loop(model.decoder, 3, temperature=temperature, steps=4)  # all blocks came back
    assert again.rows == 3


def test_what_no_part_took_is_other() -> None:
    found = shares({Part.LINEARS: 60, Part.ATTENTION: 30}, 100)
    assert found["other"] == pytest.approx(0.1)
    assert found["head"] == 0


def test_a_file_of_blocks_is_counted_as_it_lies(tmp_path: Path) -> None:
    size = model_size(write_tiny_gguf(tmp_path / "m.gguf"))
    assert size.layers == 2
    assert size.file_bytes > 0
    assert size.bf16_bytes == BF16_BYTES * (size.layer_weights + size.head_weights)
