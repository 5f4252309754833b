"""A machine from measured steps, and from a file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from executor.cost import Share
from executor.simulation.fit import FitError, Fitted, Step, fit
from executor.simulation.machine import A10G, CPU, Machine
from executor.simulation.machine_file import MachineError, named, read, write

TRUE = replace(CPU, kv_token_ns=3e3, pair_ns=200.0)


def rows_of(rng: Random) -> list[Share]:
    decodes = [Share(1, rng.randrange(10, 500)) for _ in range(rng.randrange(1, 12))]
    chunks = [Share(rng.randrange(2, 200), rng.choice((0, 64))) for _ in range(rng.randrange(3))]
    return decodes + chunks


def steps_of(machine: Machine, count: int, noise: float = 0.0, seed: int = 0) -> list[Step]:
    rng = Random(seed)
    found = []
    for _ in range(count):
        rows = rows_of(rng)
        factor = rng.lognormvariate(0.0, noise) if noise else 1.0
        found.append(Step(rows, round(machine.step_ns(rows) * factor)))
    return found


def fitted_of(steps: list[Step], seqs: int = 16) -> Fitted:
    return fit(steps, name=TRUE.name, seqs=seqs, block_tokens=16, kv_blocks=128)


def fitted(steps: list[Step]) -> Machine:
    return fitted_of(steps).machine


def test_what_a_machine_takes_is_found_again() -> None:
    found = fitted(steps_of(TRUE, 120))
    for name in ("fixed_ns", "sequence_ns", "kv_token_ns", "token_ns", "pair_ns"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=1e-4)
    assert (found.seqs, found.block_tokens, found.kv_blocks) == (16, 16, 128)


def test_a_noisy_one_is_neither_faster_nor_slower_as_a_whole() -> None:
    steps = steps_of(TRUE, 300, noise=0.3)
    found = fitted(steps)
    took = sum(step.took_ns for step in steps)
    assert sum(found.step_ns(step.rows) for step in steps) == pytest.approx(took, rel=1e-4)


def test_no_coefficient_is_negative() -> None:
    """Where prompts take nothing, noise would make some so."""
    for seed in range(5):
        found = fitted(steps_of(replace(A10G, token_ns=0.0), 60, noise=0.2, seed=seed))
        assert min(found.fixed_ns, found.sequence_ns, found.kv_token_ns, found.token_ns) >= 0


def test_a_stall_of_the_host_is_set_aside_and_counted() -> None:
    steps = steps_of(TRUE, 120)
    steps[7] = steps[7]._replace(took_ns=steps[7].took_ns * 50)
    found = fit(steps, name="x", seqs=1, block_tokens=1, kv_blocks=1)
    assert found.set_aside == 1
    assert found.machine.fixed_ns == pytest.approx(TRUE.fixed_ns, rel=1e-3)
    assert found.spread < 1e-6


def stalled(count: int, every: int) -> list[Step]:
    return [
        step._replace(took_ns=step.took_ns * (1 if number % every else 50))
        for number, step in enumerate(steps_of(TRUE, count))
    ]


def of_rows(*counts: int) -> list[Step]:
    """Steps of so many rows only."""
    steps = steps_of(TRUE, 1500, seed=3)
    return [step for step in steps if len(step.rows) in counts]


def of_lengths(*lengths: int) -> list[Step]:
    """Steps with prompts of these lengths only."""
    rng = Random(4)
    rows = [[Share(1, 50)] * (1 + n % 9) + [Share(rng.choice(lengths), 0)] for n in range(120)]
    return [Step(each, TRUE.step_ns(each)) for each in rows]


def whatever(spread: float) -> list[Step]:
    """Times that have nothing to do with what was in the steps."""
    rng = Random(5)
    return [Step(rows_of(rng), round(1e7 * rng.lognormvariate(0.0, spread))) for _ in range(400)]


@pytest.mark.parametrize(
    ("steps", "why"),
    (
        (
            steps_of(TRUE, 20),
            "20 steps were measured, .* expected 50 or more, .* measure for longer",
        ),
        ([Step([Share(1, 9)], 5)] * 80, "0 with a prompt, 80 with a decode"),
        (stalled(52, 10), "52 steps were measured and 6 of them set aside as stalls, which leaves"),
        (stalled(200, 4), "50 of 200 steps took 4 times as long .* something else runs"),
        (of_rows(4, 5, 6), "3 different numbers of rows; expected 4 or more"),
        (of_lengths(7, 30, 90), "3 different lengths of prompts; expected 4 or more"),
        (whatever(1.0), "explains .% of their variance, and half of them lie more than"),
        (steps_of(replace(TRUE, fixed_ns=1e13), 60), "`fixed_ns` would be 1e[+]13; expected 0 to"),
        (steps_of(replace(TRUE, fixed_ns=0, sequence_ns=0), 60), "would take no time"),
        ([*steps_of(TRUE, 60), Step([Share(1, 9)], -5)], "less than no time"),
    ),
)
def test_what_makes_no_machine_is_refused(steps: list[Step], why: str) -> None:
    with pytest.raises(FitError, match=why):
        fitted(steps)


def test_enough_is_enough() -> None:
    """Just beyond what is refused: few stalls, four sizes, one row where there is but one, and times that
    hardly differ, of which there is nothing to explain."""
    assert fitted_of(stalled(60, 10)).set_aside == 6
    assert fitted(of_rows(4, 5, 6, 7)).sequence_ns == pytest.approx(TRUE.sequence_ns, rel=1e-3)
    assert fitted(of_lengths(7, 30, 60, 90)).token_ns == pytest.approx(TRUE.token_ns, rel=0.05)
    alone = [step for step in of_rows(1, 2, 3) if len(step.rows) == 1]
    prompts = [[Share(n, 0)] for n in range(2, 42)]
    alone += [Step(each, TRUE.step_ns(each)) for each in prompts]
    assert fitted_of(alone, seqs=1).explained == pytest.approx(1.0)
    found = fitted_of(whatever(0.2))
    assert found.explained < 0.5
    assert found.machine.step_ns([Share(1, 9)]) == pytest.approx(1e7, rel=0.1)


def test_a_machine_comes_back_from_its_file(tmp_path: Path) -> None:
    write(TRUE, tmp_path / "m.json")
    assert read(tmp_path / "m.json") == TRUE


@pytest.mark.parametrize("wrong", ({"name": "a@b"}, {"fixed_ns": 1e13}, {"pair_ns": float("nan")}))
def test_what_would_not_be_read_is_not_written(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="what was to be written describes no machine"):
        write(replace(TRUE, **wrong), tmp_path / "m.json")
    assert not (tmp_path / "m.json").exists()


def test_any_file_name_makes_a_name() -> None:
    assert named("Qwen2.5 (7B)") == "Qwen2.5 (7B)"
    assert named("a@b\x1b[2J") == "a-b--2J"
    assert named("") == "unnamed"
    assert len(named("x" * 500)) == 128


def document(**changes: object) -> str:
    whole = {name: getattr(TRUE, name) for name in TRUE.__dataclass_fields__} | changes
    return json.dumps({name: value for name, value in whole.items() if value is not None})


@pytest.mark.parametrize(
    ("text", "why"),
    (
        ("", "no JSON object"),
        ("[" * 9000, "describes no machine"),
        (document(fixed_ns=-1), r"\$\.fixed_ns"),
        (document(fixed_ns="secret"), r"\$\.fixed_ns"),
        (document(kv_blocks=0), r"\$\.kv_blocks"),
        (document(seqs=1 << 40), r"\$\.seqs"),
        (document(token_ns=None), "missing required field `token_ns`"),
        (document(speed=1), "unknown field 'speed'; expected .* an object of name, fixed_ns, "),
        (document(**{"\x1b[2J" + "x" * 900: 1}), r"unknown field '\\x1b\[2Jx{60}'…; expected"),
        (document(**{"a` - at `$.\x07": 1}), r"unknown field 'a` - at `\$\.\\x07'; expected"),
        (document(name="\x1b[2J"), r"\$\.name"),
        (document(fixed_ns=0, sequence_ns=0), "takes no time"),
        (document(name="m" * 70_000), "larger than 65,536 bytes"),
    ),
)
def test_a_bad_file_is_refused_with_the_reason(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(MachineError, match=why) as refused:
        read(tmp_path / "m.json")
    assert "expected what `python -m tests.bench validate --out FILE` writes" in str(refused.value)
    assert "secret" not in str(refused.value)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 400
