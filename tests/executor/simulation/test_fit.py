"""A machine from measured steps, and from a file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from executor.cost import Share
from executor.simulation.fit import Step, fit
from executor.simulation.machine import A10G, CPU, Machine
from executor.simulation.machine_file import MachineError, read, write

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


def fitted(steps: list[Step]) -> Machine:
    return fit(steps, name=TRUE.name, seqs=16, block_tokens=16, kv_blocks=128).machine


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


@pytest.mark.parametrize(
    ("steps", "why"),
    (
        (steps_of(TRUE, 20), "20 steps were measured"),
        ([Step([Share(1, 9)], 5)] * 80, "0 with a prompt, 80 with a decode"),
    ),
)
def test_too_little_is_refused(steps: list[Step], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        fitted(steps)


def test_a_machine_comes_back_from_its_file(tmp_path: Path) -> None:
    write(TRUE, tmp_path / "m.json")
    assert read(tmp_path / "m.json") == TRUE


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
        (document(speed=1), "unknown field `speed`"),
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
