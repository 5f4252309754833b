#!/usr/bin/env python3
"""Lockgate from a fresh clone, with only Python 3.11 and pip: `serve` and `test`.

Makes `.venv` beside the project (`environment`), fetches the default model (`model`), hands over.  Each
step leaves a mark and is skipped while its mark holds, so a second start costs well under a second.
Standard library only; knows nothing of the configuration: what follows the verb belongs to the command
it starts.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036 — the reader of this line may have an older Python
    sys.exit(
        "Lockgate needs Python 3.11 or newer; this is %d.%d. Try: python3.11 deploy/dev.py"  # noqa: UP031 — older ones read it
        % sys.version_info[:2]
    )

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from deploy.console import Stop, say
from deploy.environment import ROOT, install, venv_python
from deploy.model import fetch_model

HELP = """\
usage: python3 deploy/dev.py serve [arguments of `lockgate serve`]
       python3 deploy/dev.py test [--long] [arguments of pytest]

serve   make .venv, install, fetch the default model, serve on 127.0.0.1:8080 in development mode
          serve --port 9000              another port (the admin listener takes the next one)
          serve --config lockgate.toml   production
          serve --model PATH             a model directory or .gguf file of yours; fetches nothing
test    make .venv, install the test extras, then ruff, mypy and all tests
          test --long                    also those that take minutes
          test -k rate                   further arguments go to pytest, which then runs alone

Everything is kept under .venv and var; remove either to start afresh.
"""


def wants_model(arguments: Sequence[str]) -> bool:
    """Whether `lockgate serve` with these may need the default model."""
    return not any(word == "--model" or word.startswith("--model=") for word in arguments)


def places_state(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether state is ours to place, beside the project: nobody else has said where."""
    said = {"LOCKGATE_STATE_DIR", "LOCKGATE_CONFIG"} & set(environment)
    options = ("--config", "-c", "--state-dir")
    return not said and not any(word.partition("=")[0] in options for word in arguments)


@dataclass(frozen=True)
class TestPlan:
    """`checks`: the linters too.  `marks`: pytest's -m, None to leave it to `pytest`."""

    checks: bool
    marks: str | None
    pytest: tuple[str, ...]


def test_plan(arguments: Sequence[str]) -> TestPlan:
    """`--long` is ours; all else is pytest's, and then pytest runs alone."""
    rest = tuple(word for word in arguments if word != "--long")
    long = len(rest) != len(arguments)
    chosen = any(word == "-m" or word.startswith("-m=") for word in rest)
    marks = None if chosen else "" if long else "not long"
    return TestPlan(checks=not rest, marks=marks, pytest=rest)


def state_dir() -> Path:
    """`var` beside the project, closed to other accounts."""
    path = ROOT / "var"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def serve(arguments: Sequence[str]) -> int:
    install("runtime")
    environment = dict(os.environ)
    if places_state(arguments, environment):
        environment["LOCKGATE_STATE_DIR"] = str(state_dir())
    if wants_model(arguments):
        models = environment.setdefault("LOCKGATE_MODELS_DIR", str(state_dir() / "models"))
        fetch_model(Path(models))
    lockgate = venv_python().with_name("lockgate")
    sys.stdout.flush()
    os.execve(lockgate, [str(lockgate), "serve", *arguments], environment)  # noqa: S606 — no shell wanted


def test(arguments: Sequence[str]) -> int:
    """All checks run even if an early one fails; the exit code tells whether any did."""
    install("test")
    models = state_dir() / "models"
    fetch_model(models)
    plan = test_plan(arguments)
    python = str(venv_python())
    commands: list[list[str]] = []
    if plan.checks:
        commands += [
            [python, "-m", "ruff", "check"],
            [python, "-m", "ruff", "format", "--check"],
            [python, "-m", "mypy"],
        ]
    marks = [] if plan.marks is None else ["-m", plan.marks]
    commands.append([python, "-m", "pytest", *marks, *plan.pytest])
    environment = {**os.environ, "LOCKGATE_MODELS_DIR": str(models)}
    failed: list[str] = []
    for command in commands:
        if failed and command is commands[-1]:
            say(f"Failed so far: {', '.join(failed)}.")
        say(f"── {' '.join(command[2:])}")
        if subprocess.run(command, check=False, cwd=ROOT, env=environment).returncode != 0:
            failed.append(f"{command[2]} {command[3]}" if command[2] == "ruff" else command[2])
    if failed and failed != ["pytest"]:  # pytest has said so itself, as the last line
        say(f"Failed: {', '.join(failed)}.")
    return 1 if failed else 0


def main(arguments: Sequence[str]) -> int:
    verbs = {"serve": serve, "test": test}
    if not arguments or arguments[0] not in verbs or arguments[1:2] in (["-h"], ["--help"]):
        asked = not arguments or arguments[-1] in {"-h", "--help", "help"}
        print(HELP, end="", file=sys.stdout if asked else sys.stderr)
        if not asked:
            say(f"\n{arguments[0]!r} is not one of serve, test.")
        return 0 if arguments and asked else 2
    try:
        return verbs[arguments[0]](arguments[1:])
    except Stop as stop:
        say(f"\n{stop}")
        return 1
    except KeyboardInterrupt:
        say("\nStopped. Run the command again to go on.")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
