"""A plan's answer: sentences for people, a document for programs.

Refuses to know: how it was found, where it is printed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from executor.contract import Workload
from executor.cost import Share
from executor.simulation.alone import Alone
from executor.simulation.machine import Machine
from executor.simulation.metrics_requests import Target
from executor.simulation.plan import REPLICAS_MAX, Miss, Sized
from executor.simulation.traces import Arrival

_INDENT: Final = " " * 10


@dataclass(frozen=True, slots=True)
class Seen:
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


@dataclass(frozen=True, slots=True)
class Assumed:
    """`machine` as it is planned for, `slower` than what `says` describes.  `measured`: it comes from a
    file, and not from what is built in."""

    machine: Machine
    says: str
    name: str
    measured: bool
    slower: float

    @property
    def steps_ms(self) -> dict[str, float]:
        """What people can measure of theirs, to compare."""
        machine = self.machine
        return {
            "token_alone": machine.step_ns([Share(1, 500)]) / 1e6,
            "token_of_16": machine.step_ns([Share(1, 500)] * min(16, machine.seqs)) / 1e6,
            "prompt_of_1000": machine.step_ns([Share(1000, 0)]) / 1e6,
        }


@dataclass(frozen=True, slots=True)
class Asked:
    """`targets` by class, of a request with none "".  `workloads`: none where one promise holds for all."""

    seen: Seen
    assumed: Assumed
    targets: Mapping[str, Target]
    workloads: Sequence[Workload]
    part: float


def report(asked: Asked, sized: Sized) -> list[str]:
    seen, steps, machine = asked.seen, asked.assumed.steps_ms, asked.assumed.machine
    facts = seen.facts
    who = f"{_many(len(seen.arrivals), 'request')} of {_many(seen.tenants, 'tenant')}"
    what = f"{facts['prompt_tokens']:,} prompt and {facts['output_tokens']:,} answer tokens"
    room = machine.room_tokens
    lines = [f"Read      {who} over {facts['seconds']:,.0f} s: {what}"]
    if seen.left_out:
        left_out = f"{seen.left_out:,} later ones are left out (--limit-requests)"
        lines.append(f"{_INDENT}{left_out}; a peak among them needs more than is said here")
    if sized.too_long:
        lines.append(
            f"{_INDENT}{_many(sized.too_long, 'request')} of more than {room:,} tokens: no replica can hold "
            "that (--kv-tokens), so it is not in time"
        )
    lines += [
        *_promises(asked),
        f"Machine   {_whence(asked.assumed)};",
        f"{_INDENT}a token alone: {steps['token_alone']:,.0f} ms, among 16: {steps['token_of_16']:,.0f} ms, a prompt of 1,000: {steps['prompt_of_1000']:,.0f} ms;",
        f"{_INDENT}{machine.seqs} requests at once, {room:,} tokens of KV memory, no prompt shared;",
        f"{_INDENT}a request goes to the replica that has the fewest.",
    ]
    if not asked.assumed.measured:
        lines += [
            f"{_INDENT}Yours is another: send it one request alone, divide its decode time by its tokens",
            f"{_INDENT}(`lockgate explain`), and scale with --slower and --kv-tokens.",
        ]
    table = [*_tried(sized), ""] if sized.tried else []
    return [*lines, "", *table, *_answer(asked, sized)]


def _whence(assumed: Assumed) -> str:
    slower = "" if assumed.slower == 1 else f", all of it {assumed.slower:g} times as long"
    return f"{'measured' if assumed.measured else 'assumed, not measured'}: {assumed.says}{slower}"


def _promises(asked: Asked) -> list[str]:
    if not asked.workloads:
        return [f"Promise   {asked.part * 100:g} % have {_promise(asked.targets[''])}"]
    counts = Counter(each.workload for each in asked.seen.arrivals)
    lines = [
        f"Promise   {asked.part * 100:g} % of each class; who is refused for a backlog is not in time"
    ]
    width = max(len(each.name) for each in asked.workloads)
    for each in asked.workloads:
        target = asked.targets.get(each.name)
        says = "nothing is promised" if target is None else _promise(target)
        lines.append(
            f"{_INDENT}{each.name:<{width}}  {_many(counts[each.name], 'request')}: {says}{_share(each)}"
        )
    return lines


def _promise(target: Target) -> str:
    first = f"their first token within {target.ttft_s * 1000:g} ms"
    pace = f"{target.tpot_s * 1000:g} ms a token after it"
    if not math.isfinite(target.tpot_s):
        return first
    return f"{first} and {pace}" if math.isfinite(target.ttft_s) else pace


def _share(each: Workload) -> str:
    told = (("reserved", each.reserved), ("weight", each.weight), ("floor", each.floor))
    return "".join(f", {name} {value:g}" for name, value in told if value)


def _tried(sized: Sized) -> list[str]:
    """A column a class; one promise for all has one."""
    names = list(sized.needs)
    heads = ["in time"] if names == [""] else names
    widths = [max(7, len(head)) for head in heads]
    lines = ["  ".join(["replicas", *(f"{h:>{w}}" for h, w in zip(heads, widths, strict=True))])]
    for count, parts in sorted(sized.tried.items()):
        cells = (f"{_percent(parts[n]):>{w}}" for n, w in zip(names, widths, strict=True))
        lines.append("  ".join([f"{count:>8}", *cells]))
    return lines


def _answer(asked: Asked, sized: Sized) -> list[str]:
    lines = []
    if list(sized.needs) != [""]:
        width = max(map(len, sized.needs))
        some = len(sized.binding) < len(sized.needs)
        for name, needs in sized.needs.items():
            says = _more_than(sized, name) if needs is None else _many(needs, "replica")
            binds = "  (it decides)" if some and name in sized.binding else ""
            lines.append(f"{name:<{width}}  {says}{binds}")
    for name, alone in sized.beyond.items():
        lines += _beyond(asked, name, alone)
    if sized.missed:
        lines += _not_found(asked, sized)
    if sized.replicas is not None:
        keep = "keeps" if sized.replicas == 1 else "keep"
        what = "this promise" if len(sized.needs) == 1 else "every promise"
        lines.append(f"{_many(sized.replicas, 'replica')} {keep} {what}.")
    return lines


def _more_than(sized: Sized, name: str) -> str:
    if name in sized.beyond:
        return "no number of replicas"
    return f"more than {_many(max(sized.tried), 'replica')}"


def _beyond(asked: Asked, name: str, alone: Alone) -> list[str]:
    """Which limit binds a request that has a replica to itself, and what moves it."""
    target = asked.targets[name]
    ttft, tpot = ("ttft_ms", "itl_ms") if asked.workloads else ("--ttft-ms", "--tpot-ms")
    whose = f"what `{name}` is promised" if name else "this promise"
    in_time = f"{_percent(alone.in_time)} of {_many(alone.requests, 'request')} in time"
    lines = [f"No number of replicas keeps {whose}: {in_time} where each has a replica to itself."]
    if alone.too_long:
        room = f"{asked.assumed.machine.room_tokens:,} tokens"
        lines.append(f"{_INDENT}KV memory: {room} are too few for {alone.too_long:,} (--kv-tokens)")
    times = 1.0
    for count, what, promised_s, least_s, option in (
        (alone.late, "first token", target.ttft_s, alone.ttft_s, ttft),
        (alone.slow, "each after it", target.tpot_s, alone.tpot_s, tpot),
    ):
        if count:
            lines.append(
                f"{_INDENT}{what}: {count:,} need more than {_ms(promised_s)} ms; {asked.part * 100:g} % need "
                f"{_ms(least_s)} or less ({option})"
            )
            times = max(times, least_s / promised_s)
    faster = f"a machine {math.ceil(times * 10) / 10:,.1f} times as fast (--slower)"
    lines.append(
        f"{_INDENT}More replicas do not help: promise at least that, or to fewer (--part), or plan for {faster}."
    )
    return lines


def _not_found(asked: Asked, sized: Sized) -> list[str]:
    """What most replicas missed, and whether more could help."""
    most = max(sized.tried)
    before = max((count for count in sized.tried if count < most), default=0)
    lines = [f"Not even {_many(most, 'replica')} can keep it."]
    counts = Counter(each.workload for each in asked.seen.arrivals)
    for name, missed in sized.missed.items():
        said = ", ".join(f"{missed[kind]:,} {what}" for kind, what in _MISSED if missed[kind])
        whose = f"{name}: of" if name else "Of"
        lines.append(f"{_INDENT}{whose} {_many(counts[name], 'request')} {said}.")
    alike = all(
        before and sized.tried[before][name] >= sized.tried[most][name] for name in sized.missed
    )
    if alike:
        lines.append(
            f"{_INDENT}{_many(before, 'replica')} miss no more: it is not for want of them."
        )
    more = "" if alike or most >= REPLICAS_MAX else "Allow more (--replicas-max), promise"
    lines.append(f"{_INDENT}{more or 'Promise'} less, or take a faster machine.")
    return lines


_MISSED: Final = (
    (Miss.REFUSED, "refused for a backlog"),
    (Miss.LATE, "with their first token too late"),
    (Miss.SLOW, "too slow after it"),
)


def _ms(seconds: float) -> str:
    """Rounded up: so much suffices."""
    ms = math.ceil(round(seconds * 1e4, 3)) / 10
    return f"{math.ceil(ms):,}" if ms >= 100 else f"{ms:.1f}".removesuffix(".0")


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _percent(part: float) -> str:
    """Rounded down: 98.99 % never looks like the 99 that were asked for."""
    return f"{math.floor(part * 1000) / 10:.1f} %"


def document(asked: Asked, sized: Sized) -> dict[str, object]:
    assumed = asked.assumed
    machine = assumed.machine
    found: dict[str, object] = {
        "trace": asked.seen.facts,
        "promise": {"part": asked.part},
        "machine": {
            "name": assumed.name,
            "assumed": not assumed.measured,
            "slower": assumed.slower,
            "requests_at_once": machine.seqs,
            "kv_tokens": machine.room_tokens,
            "steps_ms": assumed.steps_ms,
        },
        "replicas": sized.replicas,
        "too_long": sized.too_long,
    }
    tried = sorted(sized.tried.items())
    if not asked.workloads:
        found["promise"] = {"part": asked.part, **_target(asked.targets[""])}
        found["tried"] = [{"replicas": count, "in_time": parts[""]} for count, parts in tried]
        return found | _alone(sized, "")
    counts = Counter(each.workload for each in asked.seen.arrivals)
    found["tried"] = [{"replicas": count, "in_time": parts} for count, parts in tried]
    found["classes"] = [
        {
            "name": each.name,
            "requests": counts[each.name],
            "promise": _target(asked.targets[each.name]) if each.name in asked.targets else None,
            "replicas": sized.needs.get(each.name),
            "decides": each.name in sized.binding,
            **_alone(sized, each.name),
        }
        for each in asked.workloads
    ]
    return found


def _alone(sized: Sized, name: str) -> dict[str, object]:
    """Of a promise that no number of replicas keeps."""
    alone = sized.beyond.get(name)
    if alone is None:
        return {"alone": None}
    least = {"ttft_ms": alone.ttft_s * 1000, "tpot_ms": alone.tpot_s * 1000}
    counts = {"too_long": alone.too_long, "late": alone.late, "slow": alone.slow}
    return {"alone": {"in_time": alone.in_time, **counts, "at_least": least}}


def _target(target: Target) -> dict[str, float | None]:
    return {
        name: value * 1000 if math.isfinite(value) else None
        for name, value in (("ttft_ms", target.ttft_s), ("tpot_ms", target.tpot_s))
    }
