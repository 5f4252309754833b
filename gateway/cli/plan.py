"""`lockgate plan`: how many replicas a promise needs for a trace of one's own.

The simulator belongs to the executor, which may not be imported here: it runs as a process of its own,
and its output, its refusals and its exit code are this command's.  What a configuration promises its
classes goes with it as one word.  Needs no server.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gateway.cli.options import Json
from gateway.cli.show import Refusal
from gateway.service_classes import workloads
from gateway.settings import SettingsError, load
from gateway.settings.facts import service_classes

SIMULATOR = "executor.simulation"


def plan(
    trace: Annotated[
        Path,
        typer.Option(
            help="Who came when, how long: Mooncake JSON lines, an Azure CSV, or rows of "
            "arrival_s,tenant,prompt_tokens,output_tokens, also with a class; gzipped or not."
        ),
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="Plan for the classes of this configuration, each with what it is promised.",
        ),
    ] = None,
    classes: Annotated[
        list[str] | None,
        typer.Option(
            "--class",
            metavar="NAME=PART",
            help="With --config: so much of the requests that say no class is of this one. May be "
            "repeated; the rest is of the first class that takes turns.",
        ),
    ] = None,
    ttft_ms: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=1e7,
            help="Without --config, promised to all: the first token within.",
            show_default="2000",
        ),
    ] = None,
    tpot_ms: Annotated[
        float | None,
        typer.Option(min=0.01, max=1e6, help="The same: mean time of a token after the first."),
    ] = None,
    part: Annotated[
        float, typer.Option(min=0.01, max=1, help="Part (of each class) that must be in time.")
    ] = 0.99,
    machine: Annotated[
        str,
        typer.Option(
            help="Step times: a10g is Llama-2-7B on one A10G, cpu is a model of 135 million parameters on "
            "two cores, both assumed; or the file of a machine that was measured."
        ),
    ] = "a10g",
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
    if classes and config is None:
        raise Refusal("--class needs the classes of a configuration. Give --config.", exit_code=2)
    given = {
        "trace": trace,
        "terms": None if config is None else _terms(config),
        "ttft-ms": ttft_ms,
        "tpot-ms": tpot_ms,
        "part": part,
        "machine": machine,
        "slower": slower,
        "kv-tokens": kv_tokens,
        "replicas-max": replicas_max,
        "limit-requests": limit_requests,
    }
    words = [f"--{name}={value}" for name, value in given.items() if value is not None]
    words += [f"--class={each}" for each in classes or ()]
    raise typer.Exit(simulate("plan", *words, *(["--json"] if as_json else [])))


def _terms(config: Path) -> str:
    try:
        settings = load(config, os.environ, now_s=int(time.time()))
    except SettingsError as error:
        raise Refusal(str(error)) from None
    found = workloads(service_classes(settings.classes))
    if not found:
        raise Refusal(
            f"{config} has no classes to plan for. Write [classes.NAME] with what it is promised, or leave "
            "--config out and promise all the same with --ttft-ms."
        )
    return msgspec.json.encode(found).decode()


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
