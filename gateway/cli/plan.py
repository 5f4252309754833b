"""`lockgate plan`: how many replicas a promise needs for a trace of one's own.

The simulator belongs to the executor, which may not be imported here: it runs as a process of its own,
and its output, its refusals and its exit code are this command's.  Needs no server.
"""

from __future__ import annotations

import subprocess
import sys
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.options import Json
from gateway.cli.show import Refusal

SIMULATOR = "executor.simulation"


class Machine(StrEnum):
    """Those whose step times the simulator has."""

    A10G = "a10g"
    CPU = "cpu"


def plan(
    trace: Annotated[
        Path,
        typer.Option(
            help="Who came when, how long: Mooncake JSON lines, an Azure CSV, or rows of "
            "arrival_s,tenant,prompt_tokens,output_tokens; gzipped or not."
        ),
    ],
    ttft_ms: Annotated[
        float, typer.Option(min=1, max=1e7, help="Promised: the first token within.")
    ] = 2000.0,
    tpot_ms: Annotated[
        float | None,
        typer.Option(min=0.01, max=1e6, help="Promised: mean time of a token after the first."),
    ] = None,
    part: Annotated[
        float, typer.Option(min=0.01, max=1, help="Part of all requests that must be in time.")
    ] = 0.99,
    machine: Annotated[
        Machine,
        typer.Option(
            help="Assumed step times: a10g is Llama-2-7B on one A10G, cpu is a model of 135 million "
            "parameters on two cores."
        ),
    ] = Machine.A10G,
    slower: Annotated[
        float,
        typer.Option(
            min=0.001, max=1000, help="Yours takes so many times as long; below 1, it is faster."
        ),
    ] = 1.0,
    kv_tokens: Annotated[
        int | None,
        typer.Option(min=16, max=1 << 30, help="KV memory of a replica, if not that machine's."),
    ] = None,
    replicas_max: Annotated[int, typer.Option(min=1, max=1024, help="Try no more.")] = 64,
    limit_requests: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Plan for the first of a longer trace.")
    ] = 100_000,
    as_json: Json = False,
) -> None:
    """Say how many replicas keep a promise for a trace, by replaying it through the scheduler itself.

    An hour of a busy trace takes minutes; Ctrl-C ends it. Exit code 1: not even --replicas-max do.
    """
    given = {
        "trace": trace,
        "ttft-ms": ttft_ms,
        "tpot-ms": tpot_ms,
        "part": part,
        "machine": machine.value,
        "slower": slower,
        "kv-tokens": kv_tokens,
        "replicas-max": replicas_max,
        "limit-requests": limit_requests,
    }
    words = [f"--{name}={value}" for name, value in given.items() if value is not None]
    raise typer.Exit(simulate("plan", *words, *(["--json"] if as_json else [])))


def simulate(*words: str) -> int:
    """Its exit code.  It writes where we do.  Not what lies in the folder we stand in is run (`-P`)."""
    if not _installed():
        raise Refusal(
            "The simulator is not installed here: this is the gateway without its executor. Run "
            "`lockgate plan` where the whole of Lockgate is installed; it needs no GPU and no server."
        )
    command = [sys.executable, "-P", "-m", SIMULATOR, *words]
    code = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
    return code if code >= 0 else 128 - code  # ended by a signal, as a shell says it


def _installed() -> bool:
    try:
        return find_spec(SIMULATOR) is not None
    except ModuleNotFoundError:  # nothing of the executor at all
        return False
