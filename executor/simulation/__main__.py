"""`python -m executor.simulation plan --trace FILE`: how many replicas a promise needs, for people.

Exit code 0 an answer was found, 1 not even `--replicas-max` suffice, 2 what was given cannot be used.
The answer goes to standard output, progress and refusals to standard error.

Refuses to know: how a plan is made (`plan`), what a file looks like inside (`traces`), torch.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from executor.cost import Share
from executor.simulation.machine import A10G, CPU, Machine
from executor.simulation.metrics_requests import Target
from executor.simulation.plan import Sized, plan_for
from executor.simulation.traces import Arrival, TraceError, read

EXIT_FOUND, EXIT_NOT_ENOUGH, EXIT_BAD_INPUT = 0, 1, 2
EXIT_INTERRUPTED, EXIT_PIPE = 130, 141
_INDENT: Final = " " * 10
REQUESTS_MAX: Final = 1_000_000
MACHINES: Final[Mapping[str, tuple[Machine, str]]] = {
    "a10g": (A10G, "Llama-2-7B on one A10G, step times as measured by the authors of VTC"),
    "cpu": (CPU, "a model of 135 million parameters on two CPU cores"),
}


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was read.  `left_out`: requests after the first ones that were asked for."""

    name: str
    arrivals: Sequence[Arrival]
    left_out: int

    @property
    def tenants(self) -> int:
        return len({each.tenant for each in self.arrivals})

    @property
    def facts(self) -> dict[str, object]:
        seconds = self.arrivals[-1].at_s - self.arrivals[0].at_s
        return {
            "file": self.name,
            "requests": len(self.arrivals),
            "left_out": self.left_out,
            "tenants": self.tenants,
            "seconds": round(seconds, 3),
            "prompt_tokens": sum(each.prompt_tokens for each in self.arrivals),
            "output_tokens": sum(each.output_tokens for each in self.arrivals),
        }


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        arrivals = read(options.trace)
    except TraceError as bad:
        return _refuse(str(bad), as_json=options.json)
    except OSError as bad:
        why = (bad.strerror or "it is no file").lower()
        wrong = f"{options.trace} cannot be read: {why}; expected a trace file"
        return _refuse(wrong, as_json=options.json)
    seen = _Seen(
        options.trace.name,
        arrivals[: options.limit_requests],
        max(0, len(arrivals) - options.limit_requests),
    )
    machine = _machine(options.machine, options.slower, options.kv_tokens)
    target = Target(
        options.ttft_ms / 1000,
        math.inf if options.tpot_ms is None else options.tpot_ms / 1000,
    )
    try:
        sized = plan_for(
            seen.arrivals,
            machine,
            target,
            part=options.part,
            replicas_max=options.replicas_max,
            say=_progress(sys.stderr.isatty()),
        )
    except ValueError as bad:
        return _refuse(f"{bad} (--kv-tokens)", as_json=options.json)
    finally:
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
    if options.json:
        found = _document(seen, machine, options, sized)
        text = msgspec.json.format(msgspec.json.encode(found), indent=2).decode()
    else:
        text = "\n".join(_report(seen, machine, options, sized))
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    return EXIT_NOT_ENOUGH if sized.replicas is None else EXIT_FOUND


def _machine(name: str, slower: float, kv_tokens: int | None) -> Machine:
    machine = MACHINES[name][0].slower(slower)
    if kv_tokens is None:
        return machine
    return replace(machine, kv_blocks=max(1, kv_tokens // machine.block_tokens))


def _refuse(message: str, *, as_json: bool) -> int:
    if as_json:
        message = msgspec.json.encode({"error": {"message": message}}).decode()
    sys.stderr.write(message + "\n")
    return EXIT_BAD_INPUT


def _progress(terminal: bool) -> Callable[[int, float], None]:
    """A line for each number of replicas; on a terminal one line in all, with how far it is."""

    def say(replicas: int, part: float) -> None:
        if terminal:
            sys.stderr.write(f"\r\x1b[Ktrying {replicas}: {part:.0%} of the trace")
            sys.stderr.flush()
        elif not part:
            sys.stderr.write(f"trying {replicas}\n")
            sys.stderr.flush()

    return say


def _promise(options: argparse.Namespace) -> str:
    pace = "" if options.tpot_ms is None else f" and {options.tpot_ms:g} ms a token after it"
    return f"{options.part * 100:g} % have their first token within {options.ttft_ms:g} ms{pace}"


def _steps_ms(machine: Machine) -> dict[str, float]:
    """What people can measure of theirs, to compare."""
    return {
        "token_alone": machine.step_ns([Share(1, 500)]) / 1e6,
        "token_of_16": machine.step_ns([Share(1, 500)] * min(16, machine.seqs)) / 1e6,
        "prompt_of_1000": machine.step_ns([Share(1000, 0)]) / 1e6,
    }


def _report(seen: _Seen, machine: Machine, options: argparse.Namespace, sized: Sized) -> list[str]:
    facts, steps = seen.facts, _steps_ms(machine)
    who = f"{_many(len(seen.arrivals), 'request')} of {_many(seen.tenants, 'tenant')}"
    what = f"{facts['prompt_tokens']:,} prompt and {facts['output_tokens']:,} answer tokens"
    slower = "" if options.slower == 1 else f", {options.slower:g} times slower"
    room = machine.kv_blocks * machine.block_tokens
    lines = [f"Read      {who} over {facts['seconds']:,.0f} s: {what}"]
    if seen.left_out:
        left_out = f"{seen.left_out:,} later ones are left out (--limit-requests)"
        lines.append(f"{_INDENT}{left_out}; a peak among them needs more than is said here")
    lines += [
        f"Promise   {_promise(options)}",
        f"Machine   assumed, not measured: {MACHINES[options.machine][1]}{slower};",
        f"{_INDENT}a token alone: {steps['token_alone']:,.0f} ms, among 16: {steps['token_of_16']:,.0f} ms, a prompt of 1,000: {steps['prompt_of_1000']:,.0f} ms;",
        f"{_INDENT}{machine.seqs} requests at once, {room:,} tokens of KV memory, no prompt shared;",
        f"{_INDENT}a request goes to the replica that has the fewest.",
        f"{_INDENT}Yours is another: send it one request alone, divide its decode time by its tokens",
        f"{_INDENT}(`lockgate explain`), and scale with --slower and --kv-tokens.",
        "",
        "replicas  in time",
    ]
    lines += [f"{count:>8}  {_percent(part):>7}" for count, part in sorted(sized.tried.items())]
    lines.append("")
    if sized.replicas is None:
        most = max(sized.tried)
        lines.append(
            f"Not even {_many(most, 'replica')} can keep it. Allow more (--replicas-max), promise less, or take a "
            "faster machine."
        )
    else:
        keep = "keeps" if sized.replicas == 1 else "keep"
        lines.append(f"{_many(sized.replicas, 'replica')} {keep} this promise.")
    return lines


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _percent(part: float) -> str:
    """Rounded down: 98.99 % never looks like the 99 that were asked for."""
    return f"{math.floor(part * 1000) / 10:.1f} %"


def _document(
    seen: _Seen, machine: Machine, options: argparse.Namespace, sized: Sized
) -> dict[str, object]:
    return {
        "trace": seen.facts,
        "promise": {
            "part": options.part,
            "ttft_ms": options.ttft_ms,
            "tpot_ms": options.tpot_ms,
        },
        "machine": {
            "name": options.machine,
            "assumed": True,
            "slower": options.slower,
            "requests_at_once": machine.seqs,
            "kv_tokens": machine.kv_blocks * machine.block_tokens,
            "steps_ms": _steps_ms(machine),
        },
        "tried": [
            {"replicas": count, "in_time": part} for count, part in sorted(sized.tried.items())
        ],
        "replicas": sized.replicas,
    }


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
    parser = argparse.ArgumentParser(prog="python -m executor.simulation", allow_abbrev=False)
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
    plan.add_argument(
        "--machine",
        choices=tuple(MACHINES),
        default="a10g",
        help="assumed step times [%(default)s]",
    )
    add("--ttft-ms", _number(1, 1e7), "promised: first token within", 2000.0)
    add("--tpot-ms", _number(0.01, 1e6), "promised: mean time of a token after the first")
    add("--part", _number(0.01, 1.0), "part of all requests that must be in time", 0.99)
    add("--slower", _number(0.001, 1000.0), "so many times slower than that machine", 1.0)
    add("--kv-tokens", _whole(16, 1 << 30), "KV memory of a replica, if not that machine's")
    add("--replicas-max", _whole(1, 1024), "try no more", 64)
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
