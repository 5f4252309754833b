"""Each thing that can be wrong with a machine is found, and comes with its fix."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.cli.diagnosis import (
    RELEASED_S,
    FileFacts,
    Machine,
    RedisFacts,
    Verdict,
    diagnose,
)
from policies.outage import Trouble

FIT = Machine(
    python=(3, 12, 1),
    system="Linux",
    architecture="x86_64",
    torch="2.13.0+cpu",
    packages_missing=(),
    cpu_flags=frozenset({"avx2"}),
    cores=2,
    memory_available_bytes=8 << 30,
    disk_free_bytes=8 << 30,
    files_max=1024,
    now_s=RELEASED_S + 1000,
    newest_state_s=RELEASED_S + 1000,
    state_dir="var",
    state_dir_writable=True,
    secrets=(FileFacts("var/root.key", 0o600), FileFacts("var/dev.json", None)),
    ports={8080: None},
    ports_ours=frozenset(),
    model_fault=None,
    config_faults=(),
)


def test_a_fit_machine_has_nothing_wrong() -> None:
    assert {item.verdict for item in diagnose(FIT)} == {Verdict.OK}
    there = replace(FIT, redis=RedisFacts("redis://h", None, "noeviction", limited=True))
    assert {item.verdict for item in diagnose(there)} == {Verdict.OK}


def test_a_port_that_our_own_server_holds_is_not_wrong() -> None:
    held = replace(FIT, ports={8080: "Port 8080 is in use."}, ports_ours=frozenset({8080}))
    assert {item.verdict for item in diagnose(held)} == {Verdict.OK}


@pytest.mark.parametrize(
    ("machine", "what"),
    (
        (replace(FIT, python=(3, 10, 9)), "Python"),
        (replace(FIT, system="Windows"), "platform"),
        (replace(FIT, torch=None), "torch"),
        (replace(FIT, torch="2.10.1"), "torch"),
        (replace(FIT, torch="2.14.0"), "torch"),
        (replace(FIT, packages_missing=("jwt",)), "packages"),
        (replace(FIT, memory_available_bytes=1 << 30), "memory"),
        (replace(FIT, disk_free_bytes=1), "disk"),
        (replace(FIT, files_max=256), "open files"),
        (replace(FIT, now_s=0), "clock"),
        (replace(FIT, newest_state_s=RELEASED_S + 5000), "clock"),
        (replace(FIT, state_dir_writable=False), "state directory"),
        (replace(FIT, secrets=(FileFacts("var/root.key", 0o640),)), "root.key"),
        (replace(FIT, secrets=(FileFacts("var/root.key", 0o600, ours=False),)), "root.key"),
        (replace(FIT, ports={8080: "Port 8080 is in use."}), "port 8080"),
        (replace(FIT, model_fault="There is no model at x."), "model"),
        (replace(FIT, config_faults=("listen.hosts: is missing.",)), "configuration"),
        *(
            (replace(FIT, redis=RedisFacts("redis://h", trouble.value)), "Redis")
            for trouble in Trouble
        ),
        (replace(FIT, redis=RedisFacts("redis://h", None, "allkeys-lru", limited=True)), "Redis"),
    ),
)
def test_each_fault_is_found_with_its_fix(machine: Machine, what: str) -> None:
    wrong = [item for item in diagnose(machine) if item.verdict is Verdict.WRONG]
    assert [item.what for item in wrong] == [what]
    assert wrong[0].fix


@pytest.mark.parametrize(
    ("machine", "what"),
    (
        (replace(FIT, python=(3, 14, 0)), "Python"),
        (replace(FIT, system="Darwin", architecture="arm64", cpu_flags=frozenset()), "platform"),
        (replace(FIT, cpu_flags=frozenset({"sse4_2"})), "CPU"),
        (replace(FIT, memory_available_bytes=None), "memory"),
        (replace(FIT, files_max=None), "open files"),
        (replace(FIT, redis=RedisFacts("redis://h", None)), "Redis"),
        (replace(FIT, redis=RedisFacts("redis://h", None, "allkeys-lru", limited=False)), "Redis"),
    ),
)
def test_what_works_less_well_is_a_note(machine: Machine, what: str) -> None:
    notes = [item.what for item in diagnose(machine) if item.verdict is not Verdict.OK]
    assert notes == [what]
