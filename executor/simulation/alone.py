"""What a request takes on a replica of its own: no number of replicas gives it more.

A prompt there is computed in the largest chunks that a step may have, and nothing waits for anything.  So
both times are lower bounds of what a replay gives; a tenth below it at most where the scheduler cuts
smaller chunks, unless a step takes longer than that would have it whatever is in it.  What misses its promise by them is not saved by more replicas, but by more time, memory or speed.

Refuses to know: schedulers, arrivals, how many replicas there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf
from typing import Final

from executor.cost import Share
from executor.simulation.machine import Machine
from executor.simulation.metrics_requests import Target
from executor.simulation.traces import Arrival
from executor.simulation.work import NS

_SLACK_S: Final = 1e-6  # a replay rounds to nanoseconds
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Alone:
    """The requests of one class of which too few keep its promise even so.  `in_time`: the part that does.
    `too_long` never fit, `late` have their first token too late, `slow` too much time between the others
    (some are both).  `ttft_s`, `tpot_s`: what would have to be promised at least; infinite where too few
    fit."""

    requests: int
    in_time: float
    too_long: int
    late: int
    slow: int
    ttft_s: float
    tpot_s: float


def beyond(
    arrivals: Sequence[Arrival], machine: Machine, targets: Mapping[str, Target], part: float
) -> Mapping[str, Alone]:
    """By class: of those that no number of replicas keeps."""
    found = {}
    for name, target in targets.items():
        of_class = [each for each in arrivals if each.workload == name]
        alone = _alone(of_class, machine, target, part)
        if alone.in_time < part:
            found[name] = alone
    return found


def _alone(arrivals: Sequence[Arrival], machine: Machine, target: Target, part: float) -> Alone:
    room = machine.room_tokens
    fitting = [each for each in arrivals if each.tokens <= room]
    by_prompt = {
        prompt: _first_token_s(machine, prompt)
        for prompt in {each.prompt_tokens for each in fitting}
    }
    first = [by_prompt[each.prompt_tokens] for each in fitting]
    pace = [_pace_s(machine, each.prompt_tokens, each.output_tokens) for each in fitting]
    late = [each > target.ttft_s + _SLACK_S for each in first]
    slow = [each > target.tpot_s + _SLACK_S for each in pace]
    missed = sum(a or b for a, b in zip(late, slow, strict=True))
    return Alone(
        requests=len(arrivals),
        in_time=(len(fitting) - missed) / len(arrivals),
        too_long=len(arrivals) - len(fitting),
        late=sum(late),
        slow=sum(slow),
        ttft_s=at_least(first, part, len(arrivals)),
        tpot_s=at_least(pace, part, len(arrivals)),
    )


def at_least(values: Sequence[float], part: float, count: int) -> float:
    """The least that `part` of `count` do not pass, the values of the others being infinite."""
    rank = max(1, ceil(part * count - _ROUNDING))
    return sorted(values)[rank - 1] if rank <= len(values) else inf


def _first_token_s(machine: Machine, prompt_tokens: int) -> float:
    """The shortest chunk first: then the others read least of what is before them."""
    chunk = machine.limits().step_tokens_max
    ends = range(prompt_tokens, 0, -chunk)
    steps = ([Share(end - start, start)] for end, start in pairwise([*ends, 0]))
    return sum(map(machine.step_ns, steps)) / NS


def _pace_s(machine: Machine, prompt_tokens: int, output_tokens: int) -> float:
    """The mean of steps of one row, whose context grows by a token in each."""
    if output_tokens < 2:
        return 0.0
    context = prompt_tokens + output_tokens / 2
    return (machine.fixed_ns + machine.sequence_ns + machine.kv_token_ns * context) / NS
