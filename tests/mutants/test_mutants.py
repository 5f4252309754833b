"""The mutation gate itself: that its catalogue is of this tree, that it can tell, and that all are killed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.__main__ import main
from tests.mutants.catalogue import MUTANTS
from tests.mutants.gate import ROOT, Run, Verdict, judge, run
from tests.mutants.mutant import DoesNotApply, Mutant, faults

KNOWN = {each.name: each for each in MUTANTS}
FEW = (
    "tenant_not_in_the_key",
    "acl_version_not_in_the_key",
    "only_the_first_block_is_salted",
    "another_owner_is_evicted",
    "merkle_proof_is_not_checked",
    "signature_is_not_verified",
)
"""Run with the slow tests, so that the machinery is."""


def test_every_patch_applies_and_every_test_is_there() -> None:
    assert [f"{each.name}: {why}" for each, why in faults(MUTANTS, ROOT)] == []


def test_every_property_is_attacked() -> None:
    attacked = {each.attacks for each in MUTANTS}
    assert {f"P{number}" for number in range(1, 19)} <= attacked


SOUND = Mutant(
    "m", "P1", "security/merkle.py", "EMPTY_ROOT =", "EMPTY =", "tests/test_dev.py::test_bounds"
)


def test_what_is_wrong_with_a_catalogue_is_said(tmp_path: Path) -> None:
    (tmp_path / "security").mkdir()
    (tmp_path / "security" / "merkle.py").write_text("EMPTY_ROOT = 1\nTWICE = TWICE = 2\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_dev.py").write_text("def test_bounds(): ...\n")

    def told(*mutants: Mutant) -> list[str]:
        return [why for _, why in faults(mutants, tmp_path)]

    assert told(SOUND) == []
    assert told(SOUND, SOUND) == ["there are two of this name"]
    assert told(replace(SOUND, killed_by="tests/test_dev.py::test_bounds[a]")) == []
    for change, says in (
        ({"attacks": "P19"}, "P19 is no property"),
        ({"file": "tests/test_dev.py"}, "does not ship"),
        ({"file": "security/gone.py"}, "No such file"),
        ({"old": "TWICE"}, "2 times, not once"),
        ({"old": "gone"}, "0 times, not once"),
        ({"new": "EMPTY_ROOT = # and so"}, "it is no Python"),
        ({"new": "EMPTY_ROOT  ="}, "it changes nothing"),
        ({"killed_by": "tests/test_dev.py::test_gone"}, "there is no test"),
        ({"killed_by": "tests/gone.py::test_bounds"}, "there is no test"),
    ):
        (why,) = told(replace(SOUND, **change))
        assert says in why
    with pytest.raises(DoesNotApply):
        SOUND.apply("")


def report(inner: str) -> str:
    return f'<testsuites><testsuite><testcase name="test_x">{inner}</testcase></testsuite></testsuites>'


@pytest.mark.parametrize(
    ("code", "inner", "verdict", "says"),
    (
        (0, "", Verdict.SURVIVED, ""),
        (1, '<failure message="assert 1 == 2"/>', Verdict.KILLED, ""),
        (1, '<failure message="AssertionError: why&#10;assert 1 == 2"/>', Verdict.KILLED, ""),
        (1, '<failure message="Failed: DID NOT RAISE"/>', Verdict.KILLED, ""),
        (1, '<failure message="TimeoutError"/>', Verdict.KILLED, ""),
        (1, '<failure message="NameError: name"/>', Verdict.FAULT, "test_x: NameError: name"),
        (1, '<error message="assert 1 == 2"/>', Verdict.FAULT, "not by an assertion"),
        (2, '<error message="collection"/>', Verdict.FAULT, "exit code 2"),
        (4, "", Verdict.FAULT, "exit code 4"),
        (5, "", Verdict.FAULT, "exit code 5"),
        (None, "", Verdict.FAULT, "too long"),
    ),
)
def test_a_kill_is_a_failed_assertion_and_nothing_else(
    code: int | None, inner: str, verdict: Verdict, says: str
) -> None:
    found, why = judge(code, report(inner))
    assert found is verdict
    assert says in why


@pytest.mark.slow
def test_a_few_are_killed_and_what_is_not_broken_is_not() -> None:
    few = [KNOWN[name] for name in FEW]
    merkle = few[FEW.index("merkle_proof_is_not_checked")]
    harmless = replace(merkle, name="harmless", new="return found == root and last == 0")
    unreadable = replace(merkle, name="unreadable", new="return last == 0 and found == root_")
    gone = replace(merkle, name="gone", killed_by=f"{merkle.killed_by}[none]")
    heard: list[Run] = []
    *found, whole = run([*few, harmless, unreadable], heard.append)
    assert [each.verdict for each in found] == [Verdict.KILLED] * len(few) + [
        Verdict.SURVIVED,
        Verdict.FAULT,
    ]
    assert "NameError" in found[-1].why
    assert (whole.mutant, whole.verdict) == (None, Verdict.SURVIVED)
    assert len(heard) == len(few) + 3
    (lost, nothing) = run([gone], heard.append)
    assert (lost.verdict, nothing.verdict) == (Verdict.FAULT, Verdict.FAULT)
    for each in few:
        assert (ROOT / each.file).read_text(encoding="utf-8").count(each.old) == 1


def test_mutants_are_listed_and_unknown_ones_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in KNOWN)
    assert main(["no_such", "--list"]) == 2
    assert "no_such" in capsys.readouterr().err


@pytest.mark.long
def test_every_mutant_is_killed_by_the_test_that_is_named_for_it() -> None:
    runs = run(MUTANTS, lambda _: None)
    astray = [
        f"{'(nothing broken)' if each.mutant is None else each.mutant.name}: {each.verdict} {each.why}"
        for each in runs
        if each.verdict is not (Verdict.SURVIVED if each.mutant is None else Verdict.KILLED)
    ]
    assert astray == []
