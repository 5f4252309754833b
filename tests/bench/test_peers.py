"""Turns and comparisons, with peers that are none: what is paused, what is struck off, what is limit."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from tests.bench.bounds import ModelSize, Rates, best
from tests.bench.figures import Answer, row
from tests.bench.limits import Limits
from tests.bench.peer import Program, present
from tests.bench.peer_llama import Settings, command
from tests.bench.peers import OURS, Seen, compared, faults_of, take_turns
from tests.bench.peers_command import lines
from tests.bench.runs import Load, Round, first_token_ms

pytestmark = pytest.mark.slow  # a developer's tools; the whole run has them

LOAD = Load(concurrencies=(1, 8), input_tokens=128, output_tokens=64, long_tokens=1024)
RATES = Rates(read_bytes_per_s=1e9, flops_per_s=1e12, threads=2)
SIZE = ModelSize(
    layer_weights=40_000_000,
    head_weights=10_000_000,
    layers=2,
    heads=4,
    head_dim=64,
    kv_bytes_per_token=1000,
    file_bytes=50_000_000,
)


def a_round(per_s: float, *, long_ms: float = 500.0, error: str | None = None) -> Round:
    def answer(tokens: int) -> Answer:
        return Answer(
            asked_tokens=64, sent_s=0.0, first_s=0.1, ended_s=64 / per_s, output_tokens=tokens
        )

    rows = tuple(row([answer(64)], concurrency=c, client_cpu_s=0) for c in LOAD.concurrencies)
    return Round(rows, () if error is None else (error,), None, long_ttft_ms=long_ms)


@dataclass
class Fake:
    """Logs what is done to it; fails where told to."""

    name: str
    log: list[str]
    per_s: float = 50.0
    fails_at: str = ""

    def _do(self, what: str) -> None:
        self.log.append(f"{self.name} {what}")
        if what == self.fails_at:
            raise RuntimeError("it broke")

    async def started(self) -> float:
        self._do("started")
        return 1.0

    async def round(self, load: Load, number: int) -> Round:
        self._do(f"round {number}")
        return a_round(self.per_s)

    def version(self) -> str:
        return "1.0"

    def pause(self) -> None:
        self._do("paused")

    def resume(self) -> None:
        self._do("resumed")

    def stop(self) -> None:
        self.log.append(f"{self.name} stopped")


@dataclass
class Turns:
    log: list[str] = field(default_factory=list)

    def seen(self, *make: Callable[[list[str]], Fake], repeat: int = 2) -> Seen:
        async def ours(number: int) -> Round:
            self.log.append(f"ours {number}")
            return a_round(100.0)

        async def limits() -> Limits:
            return Limits(RATES, SIZE)

        found = [each(self.log) for each in make]
        return asyncio.run(
            take_turns(ours, found, LOAD, repeat=repeat, limits=limits, say=self.log.append)
        )


def test_all_take_turns_and_only_one_is_awake() -> None:
    turns = Turns()
    seen = turns.seen(lambda log: Fake("b", log), lambda log: Fake("c", log))
    assert {name: len(rounds) for name, rounds in seen.rounds.items()} == {OURS: 2, "b": 2, "c": 2}
    acts = [each for each in turns.log if "ready" not in each and "done" not in each]
    turn = ["b resumed", "b round 0", "b paused", "c resumed", "c round 0", "c paused"]
    assert acts == [
        *("b started", "b paused", "c started", "c paused", "ours 0", *turn, "ours 1"),
        *(each.replace("0", "1") for each in turn),
        *("b stopped", "c stopped"),
    ]


@pytest.mark.parametrize("fails_at", ("started", "resumed", "round 0", "paused"))
def test_a_peer_that_fails_is_struck_off_and_the_others_go_on(fails_at: str) -> None:
    turns = Turns()
    seen = turns.seen(
        lambda log: Fake("bad", log, fails_at=fails_at), lambda log: Fake("good", log)
    )
    assert seen.failed == {"bad": "RuntimeError: it broke"}
    assert len(seen.rounds["good"]) == len(seen.rounds[OURS]) == 2
    assert "bad round 1" not in turns.log
    assert "bad stopped" in turns.log
    assert faults_of(seen) == ["bad failed: RuntimeError: it broke"]
    assert compared(seen, LOAD).against[0].best_peer == "good"


def test_if_we_fail_every_peer_is_ended() -> None:
    log: list[str] = []

    async def ours(_: int) -> Round:
        raise RuntimeError("we broke")

    async def limits() -> Limits:
        return Limits(RATES, SIZE)

    with pytest.raises(RuntimeError, match="we broke"):
        asyncio.run(
            take_turns(ours, [Fake("b", log)], LOAD, repeat=1, limits=limits, say=log.append)
        )
    assert log[-1] == "b stopped"


def test_ours_stands_beside_the_best_peer_and_the_limit() -> None:
    seen = Turns().seen(lambda log: Fake("b", log, 40.0), lambda log: Fake("c", log, 80.0))
    outcome = compared(seen, LOAD)
    one = outcome.against[0]
    assert one.best_peer == "c"
    assert one.ratio == pytest.approx(100 / 80)
    # 64 tokens: a prefill of 128 by arithmetic (10.2 ms) or 100 MB of reading (100 ms), 63 decodes
    # of 100 MB and a few keys: just under 10 a second
    assert one.bf16_limit_per_s == pytest.approx(10, rel=0.01)
    assert one.file_limit_per_s == pytest.approx(20, rel=0.01)
    assert outcome.long_ratio == pytest.approx(1.0)
    text = "\n".join(lines(outcome, seen, LOAD, ("avx512_bf16",), "fast"))
    assert "numerics fast" in text
    assert "AMX no, avx512_bf16 yes" in text
    assert "1.25" in text


def test_an_error_of_an_answer_is_a_fault_with_its_name() -> None:
    seen = Seen({OURS: [a_round(1.0, error="short: 3 of 64 tokens")]}, {}, {}, RATES, SIZE)
    assert faults_of(seen) == ["lockgate, round 1: short: 3 of 64 tokens"]


def test_with_no_peer_there_is_no_ratio() -> None:
    outcome = compared(Turns().seen(), LOAD)
    assert outcome.against[0].ratio is None
    assert outcome.long_ratio is None


def test_a_step_is_bound_by_bytes_when_few_and_by_operations_when_many() -> None:
    def decode(rows: int) -> float:
        return SIZE.decode_s(RATES, weight_bytes=SIZE.bf16_bytes, rows=rows, context=0)

    assert decode(1) == decode(8) == pytest.approx(0.1)
    assert decode(4000) == pytest.approx(2 * 50e6 * 4000 / 1e12)
    by_tokens = SIZE.prefill_s(RATES, weight_bytes=0, tokens=1000)
    assert by_tokens == pytest.approx((2 * (40e9 + 10e6) + 2 * 2 * 4 * 64 * 1e6) / 1e12)


def test_the_fastest_moment_is_the_limit() -> None:
    fast = best([Rates(1e9, 5e12, 2), Rates(3e9, 1e12, 2)])
    assert (fast.read_bytes_per_s, fast.flops_per_s) == (3e9, 5e12)


def test_a_long_prompt_is_timed_after_one_that_warms_up() -> None:
    def answer(first_s: float) -> Answer:
        return Answer(asked_tokens=1, sent_s=0, first_s=first_s, ended_s=9, output_tokens=1)

    assert first_token_ms([answer(9.0), answer(1.0), answer(3.0), answer(2.0)]) == 2000
    assert first_token_ms([]) is None


def test_llama_gets_a_slot_a_stream_and_no_cache() -> None:
    words = command(Settings(Path("llama-server"), Path("m.gguf"), threads=2), LOAD, 1)
    said = dict(pairwise(words))
    assert (said["--parallel"], said["--threads"], said["--cache-ram"]) == ("8", "2", "0")
    assert int(said["--ctx-size"]) == 8 * 1280
    assert "--no-cache-prompt" in words


def test_what_is_absent_is_named_with_the_step_that_installs_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"README.md, 'vLLM', installs it"):
        present(tmp_path, tmp_path / "bin", step="vLLM")


def test_a_program_is_paused_and_ended_even_while_it_stands_still(tmp_path: Path) -> None:
    program = Program(["sleep", "60"], tmp_path / "log")
    program.start()
    program.pause()
    assert not program.ended
    program.stop()
    assert program.ended
    program.stop()
