"""`python -m executor.simulation plan --trace FILE`: how many replicas a promise needs, for people.

Exit code 0 an answer was found, 1 not even `--replicas-max` suffice, 2 what was given cannot be used.
The answer goes to standard output, progress and refusals to standard error.

Refuses to know: how a plan is made (`plan`), what a file looks like inside (`traces`, `machine_file`), what is
said (`plan_report`), torch.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import msgspec

from executor.contract import Workload
from executor.simulation.machine import A10G, CPU, Machine
from executor.simulation.machine_file import MachineError
from executor.simulation.machine_file import read as read_machine
from executor.simulation.metrics_requests import Target
from executor.simulation.plan import REPLICAS_MAX, PlanError, plan_for
from executor.simulation.plan_classes import ClassError, classed, rule_of, terms_of
from executor.simulation.plan_classes import targets as targets_of
from executor.simulation.plan_report import Asked, Assumed, Seen, document, report
from executor.simulation.quoting import SENTENCE_CHARS_MAX, printable
from executor.simulation.traces import Arrival, TraceError, read

EXIT_FOUND, EXIT_NOT_ENOUGH, EXIT_BAD_INPUT = 0, 1, 2
EXIT_INTERRUPTED, EXIT_PIPE = 130, 141
T = TypeVar("T")
_TTFT_MS: Final = 2000.0
REQUESTS_MAX: Final = 1_000_000
MACHINES: Final[Mapping[str, tuple[Machine, str]]] = {
    "a10g": (A10G, "Llama-2-7B on one A10G, step times as measured by the authors of VTC"),
    "cpu": (CPU, "a model of 135 million parameters on two CPU cores"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        asked = _asked(options)
        sized = plan_for(
            asked.seen.arrivals,
            asked.assumed.machine,
            asked.targets,
            workloads=tuple(asked.workloads),
            part=options.part,
            replicas_max=options.replicas_max,
            say=_progress(sys.stderr.isatty()),
        )
    except (_Unusable, TraceError, MachineError, ClassError, PlanError) as bad:
        return _refuse(str(bad), as_json=options.json)
    finally:
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
    if options.json:
        text = msgspec.json.format(msgspec.json.encode(document(asked, sized)), indent=2).decode()
    else:
        text = "\n".join(report(asked, sized))
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    return EXIT_NOT_ENOUGH if sized.replicas is None else EXIT_FOUND


class _Unusable(Exception):
    """What was given, and what was expected."""


def _asked(options: argparse.Namespace) -> Asked:
    """The trace comes last: it may take a minute to read, and all the rest to refuse none."""
    assumed = _machine(options.machine, options.slower, options.kv_tokens)
    workloads: tuple[Workload, ...] = ()
    if options.terms is None:
        if options.classes:
            raise _Unusable("--class has no classes to choose from; expected --terms beside it")
        ttft_ms = _TTFT_MS if options.ttft_ms is None else options.ttft_ms
        tpot_ms = math.inf if options.tpot_ms is None else options.tpot_ms
        targets = {"": Target(ttft_ms / 1000, tpot_ms / 1000)}
    else:
        if options.ttft_ms is not None or options.tpot_ms is not None:
            raise _Unusable(
                "--ttft-ms and --tpot-ms promise the same to everybody, and the classes promise otherwise; "
                "expected one of the two"
            )
        workloads = terms_of(options.terms)
        targets = targets_of(workloads)
    rule = rule_of(options.classes, workloads)
    arrivals = _opened(options.trace, _trace, "a trace file")
    left_out = max(0, len(arrivals) - options.limit_requests)
    arrivals = arrivals[: options.limit_requests]
    if workloads:
        arrivals = classed(arrivals, workloads, rule)
    else:
        arrivals = [replace(each, workload="") if each.workload else each for each in arrivals]
    seen = Seen(printable(options.trace.name), arrivals, left_out)
    return Asked(seen, assumed, targets, workloads, options.part)


def _trace(path: Path) -> list[Arrival]:
    terminal = sys.stderr.isatty()
    return read(path, say=lambda rows: _tell(f"reading: {rows:,} requests", terminal=terminal))


def _opened(path: Path, read_it: Callable[[Path], T], expected: str) -> T:
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe that nobody writes to
            raise OSError
        return read_it(path)
    except OSError as bad:
        why = (bad.strerror or "it is no regular file").lower()
        raise _Unusable(f"{path} cannot be read: {why}; expected {expected}") from None


def _machine(word: str, slower: float, kv_tokens: int | None) -> Assumed:
    """One that is built in, or else a file."""
    if word in MACHINES:
        machine, says = MACHINES[word]
    else:
        path = Path(word)
        names = ", ".join(MACHINES)
        machine = _opened(path, read_machine, f"one of {names}, or a file that describes a machine")
        says = printable(f"{machine.name}, as {path.name} has it")
    machine = machine.slower(slower)
    if kv_tokens is not None:
        machine = replace(machine, kv_blocks=max(1, kv_tokens // machine.block_tokens))
    return Assumed(machine, says, printable(word), word not in MACHINES, slower)


def _refuse(message: str, *, as_json: bool) -> int:
    """Every refusal passes here: none grows with what was given, or drives a terminal with it."""
    message = printable(message, SENTENCE_CHARS_MAX)
    if as_json:
        message = msgspec.json.encode({"error": {"message": message}}).decode()
    sys.stderr.write(message + "\n")
    return EXIT_BAD_INPUT


def _progress(terminal: bool) -> Callable[[int, float], None]:
    """A line for each number of replicas; on a terminal one line in all, with how far it is."""

    def say(replicas: int, part: float) -> None:
        if terminal:
            _tell(f"trying {replicas}: {part:.0%} of the trace", terminal=True)
        elif not part:
            _tell(f"trying {replicas}", terminal=False)

    return say


def _tell(words: str, *, terminal: bool) -> None:
    """On a terminal over what was told before."""
    sys.stderr.write(f"\r\x1b[K{words}" if terminal else f"{words}\n")
    sys.stderr.flush()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(printable(message, SENTENCE_CHARS_MAX))


def _number(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = float(text)
        if not low <= value <= high:  # and no NaN
            raise argparse.ArgumentTypeError(f"expected {low:g} to {high:g}")
        return value

    parse.__name__ = "number"
    return parse


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"expected {low:,} to {high:,}")
        return value

    parse.__name__ = "whole number"
    return parse


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m executor.simulation", allow_abbrev=False)
    plan = parser.add_subparsers(required=True, metavar="COMMAND").add_parser(
        "plan",
        allow_abbrev=False,
        usage="%(prog)s --trace FILE [options]",
        help="how many replicas a promise needs for a trace",
    )

    def add(name: str, parse: Callable[[str], object], says: str, default: object = None) -> None:
        shown = "" if default is None else " [%(default)s]"
        plan.add_argument(name, type=parse, default=default, metavar="…", help=says + shown)

    plan.add_argument(
        "--trace",
        type=Path,
        required=True,
        metavar="FILE",
        help="Mooncake JSON lines, an Azure CSV, or arrival_s,tenant,… rows; gzipped or not",
    )
    add("--machine", str, "a10g, cpu, or the file of a measured one", "a10g")
    add("--ttft-ms", _number(1, 1e7), f"promised: first token within [{_TTFT_MS:g}]")
    add("--tpot-ms", _number(0.01, 1e6), "promised: mean time of a token after the first")
    add("--terms", str, "classes and what each is promised: a JSON list")
    plan.add_argument(
        "--class",
        dest="classes",
        action="append",
        default=[],
        metavar="NAME=PART",
        help="so much of what says no class; the rest is of the first that takes turns",
    )
    add("--part", _number(0.01, 1.0), "part (of each class) that must be in time", 0.99)
    add("--slower", _number(0.001, 1000.0), "so many times slower than that machine", 1.0)
    add("--kv-tokens", _whole(16, 1 << 30), "KV memory of a replica, if not that machine's")
    add("--replicas-max", _whole(1, REPLICAS_MAX), "try no more", 64)
    add("--limit-requests", _whole(1, REQUESTS_MAX), "plan for the first of a trace", 100_000)
    plan.add_argument("--json", action="store_true", help="print one JSON document instead")
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:  # `… | head`
        sys.stderr.close()
        sys.exit(EXIT_PIPE)
