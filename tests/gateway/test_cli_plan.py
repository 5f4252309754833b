"""`lockgate plan`: the simulator as a process of its own, with the same options."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from executor.contract import Workload
from executor.simulation.__main__ import _parser
from executor.simulation.plan_classes import terms_of
from gateway.cli import main


def lockgate(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(words)
    return int(stop.value.code or 0)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was started; it ends with the code that stands first, if any."""
    seen: list[Any] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        code = seen.pop() if seen else 0
        seen.append(command)
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr("gateway.cli.plan.subprocess.run", run)
    return seen


def test_it_prints_the_answer_of_the_simulator(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a folder of that name lies: what is run is what is installed."""
    planted = tmp_path / "executor"
    planted.mkdir()
    (planted / "__init__.py").write_text("raise SystemExit(99)")
    monkeypatch.chdir(tmp_path)
    trace = tmp_path / "-odd name.csv"
    trace.write_text("arrival_s,tenant,prompt_tokens,output_tokens\n0,a,10,2\n1,b,10,2\n")
    assert lockgate("plan", "--trace", trace.name) == 0
    told = capfd.readouterr()
    assert "2 requests of 2 tenants over 1 s" in told.out
    assert told.out.endswith("1 replica keeps this promise.\n")
    assert told.err == "trying 1\n"


def test_every_option_is_handed_on_as_one_word(ran: list[Any]) -> None:
    words = (
        "--trace=a b; rm",
        "--ttft-ms=5.5",
        "--tpot-ms=6.0",
        "--part=0.5",
        "--machine=cpu",
        "--slower=2.0",
        "--kv-tokens=4096",
        "--replicas-max=8",
        "--limit-requests=9",
        "--json",
    )
    assert lockgate("plan", *words) == 0
    assert ran == [[sys.executable, "-P", "-m", "executor.simulation", "plan", *words]]


def test_what_is_not_given_is_as_the_simulator_has_it(ran: list[Any]) -> None:
    assert lockgate("plan", "--trace", "t") == 0
    parser = _parser()
    assert parser.parse_args(ran[0][4:]) == parser.parse_args(["plan", "--trace", "t"])


EXAMPLE = Path(__file__).resolve().parents[2] / "deploy" / "lockgate.example.toml"


def test_a_configurations_classes_go_with_it(ran: list[Any]) -> None:
    words = ("--config", str(EXAMPLE), "--class", "batch=0.3", "--class", "critical=0.1")
    assert lockgate("plan", "--trace", "t", *words) == 0
    options = _parser().parse_args(ran[0][4:])
    assert options.classes == ["batch=0.3", "critical=0.1"]
    assert (options.ttft_ms, options.tpot_ms) == (None, None)
    assert terms_of(options.terms) == (
        Workload(name="critical", reserved=0.2, ttft_ms=500, itl_ms=80),
        Workload(name="interactive", ttft_ms=2000, itl_ms=120),
        Workload(name="batch", weight=None, floor=0.05),
    )


def test_classes_that_are_not_there_are_refused(
    ran: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none = tmp_path / "none.toml"
    none.write_text(
        re.sub(r"(?s)\[classes\..*(?=\[webhooks)", "[plans]\n[tenants]\n", EXAMPLE.read_text())
    )
    assert lockgate("plan", "--trace", "t", "--class", "batch=0.3") == 2
    assert "Give --config" in capsys.readouterr().err
    assert lockgate("plan", "--trace", "t", "--config", str(none)) == 1
    assert "has no classes to plan for" in capsys.readouterr().err
    assert lockgate("plan", "--trace", "t", "--config", str(tmp_path / "absent.toml")) == 1
    assert "absent.toml" in capsys.readouterr().err
    assert not ran


def test_no_name_of_a_configuration_breaks_a_refusal(
    ran: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one that is no UTF-8."""
    odd = tmp_path / os.fsdecode(b"n\xff\x1b[2Jone.toml")
    odd.write_text(
        re.sub(r"(?s)\[classes\..*(?=\[webhooks)", "[plans]\n[tenants]\n", EXAMPLE.read_text())
    )
    for words in ((), ("--json",)):
        assert lockgate("plan", "--trace", "t", "--config", str(odd), *words) == 1
        assert "n��[2Jone.toml has no classes to plan for" in capsys.readouterr().err


@pytest.mark.parametrize(("ended", "told"), ((0, 0), (1, 1), (2, 2), (-9, 137)))
def test_its_exit_code_is_ours(ran: list[Any], ended: int, told: int) -> None:
    ran.append(ended)
    assert lockgate("plan", "--trace", "t") == told


@pytest.mark.parametrize("missing", ("executor", "executor.simulation"))
def test_without_the_simulator_it_says_so(
    missing: str,
    ran: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def find_spec(name: str) -> None:
        if missing == "executor":
            raise ModuleNotFoundError(name="executor")

    monkeypatch.setattr("gateway.cli.plan.find_spec", find_spec)
    assert lockgate("plan", "--trace", "t") == 1
    assert "not installed here" in capsys.readouterr().err
    assert not ran


@pytest.mark.parametrize("words", (("--part", "2"), ("--slower", "nan"), ("--replicas-max", "0")))
def test_what_cannot_be_is_refused_before_anything_runs(
    words: tuple[str, ...], ran: list[Any]
) -> None:
    assert lockgate("plan", "--trace", "t", *words) == 2
    assert not ran
