"""ServeGen's measured clients, resampled into as many tenants as a study wants, lazily.

A tenant is a measured client at another volume: its day (rate in 10-minute windows, absent ones are
silence), the shape of its gaps in each window (Gamma or Weibull), its prompt and output lengths (by
their quantiles, by the hour of the day).  Volumes fall by Zipf's law over the tenants' ranks.

- A gap is drawn with mean 1 and the row's shape, then walked through the rates, so that a window
  yields what its rate says whatever the shape.  The row's scale is not used: where the fit's mean and
  the measured rate disagree (by more than 1 % in two rows of five), the rate is the measurement.
- Each tenant's first gap is what is left of one that began earlier (the length-biased law): without
  that, 5,000 tenants would all begin to burst at second 0.
- Between two quantiles lengths are interpolated geometrically, since their tails are long: a quarter
  of the curves would otherwise have a mean more than 7 % above the measured one; so it is 3 %.  Prompt
  and output are drawn independently: the published quantiles do not say how they hang together.

Refuses to know: schedulers, clocks.  Source: ServeGen (Xiang et al., 2025), alibaba/ServeGen;
../shared/traces/README.md for the two files.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Final, TypeVar

from executor.simulation.traces import BOUNDS, Arrival, TraceError, lines

T = TypeVar("T")

DAY_S: Final = 86_400.0
WINDOW_S: Final = 600.0
TENANTS_MAX: Final = 100_000
_QUANTILES: Final = ("p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "max")
_LEVELS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
_SHAPES: Final = (0.01, 1000.0)


class Law(Enum):
    GAMMA = "Gamma"
    WEIBULL = "Weibull"


@dataclass(frozen=True, slots=True)
class Pace:
    """How requests came in the `WINDOW_S` from `from_s` (a second of the day)."""

    from_s: float
    per_s: float
    law: Law
    shape: float

    def gap(self, rng: Random) -> float:
        """In units of the mean gap."""
        if self.law is Law.GAMMA:
            return rng.gammavariate(self.shape, 1 / self.shape)
        return rng.weibullvariate(1 / math.gamma(1 + 1 / self.shape), self.shape)

    def rest(self, rng: Random) -> float:
        """What is left, at a moment of no importance, of the gap that it fell into: long gaps catch
        more moments, so their law is x·f(x), and the moment lies anywhere in it."""
        if self.law is Law.GAMMA:
            caught = rng.gammavariate(self.shape + 1, 1 / self.shape)
        else:
            inner = rng.gammavariate(1 + 1 / self.shape, 1.0) ** (1 / self.shape)
            caught = inner / math.gamma(1 + 1 / self.shape)
        return rng.random() * caught


@dataclass(frozen=True, slots=True)
class Lengths:
    """Quantiles of the tokens of requests from `from_s` (a second of the day) on, at `_LEVELS`."""

    from_s: float
    prompt: tuple[float, ...]
    output: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Client:
    name: str
    paces: tuple[Pace, ...]
    lengths: tuple[Lengths, ...]

    @property
    def per_s(self) -> float:
        """Mean rate over its whole day."""
        return math.fsum(pace.per_s for pace in self.paces) * WINDOW_S / DAY_S

    def lengths_at(self, at_s: float) -> Lengths:
        """Before the day's first entry, the last one (of the day before) holds."""
        starts = [lengths.from_s for lengths in self.lengths]
        return self.lengths[bisect_right(starts, at_s % DAY_S) - 1]


@dataclass(frozen=True, slots=True)
class Source:
    """A tenant: a client's ways, `factor` times its volume, and a seed of its own, so that one
    tenant more changes nobody else's requests."""

    tenant: str
    client: Client
    factor: float
    seed: int


def load(windows: Path, quantiles: Path, model: str, windows_min: int = 36) -> tuple[Client, ...]:
    """The clients of `model` of which both files know something, by name.  One that sent in fewer
    than `windows_min` of the day's 144 windows is left out: scaled to a tenant's volume it would send
    a whole day's work in minutes.  TraceError; OSError."""
    half: dict[tuple[str, float], dict[str, tuple[float, ...]]] = {}
    for name, from_s, field, curve in _rows(quantiles, model, _curve):
        half.setdefault((name, from_s), {})[field] = curve
    lengths: dict[str, list[Lengths]] = {}
    for (name, from_s), fields in half.items():
        if {"input_tokens", "output_tokens"} <= fields.keys():
            found = Lengths(from_s, fields["input_tokens"], fields["output_tokens"])
            lengths.setdefault(name, []).append(found)
    paces: dict[str, list[Pace]] = {}
    for name, pace in _rows(windows, model, _pace):
        paces.setdefault(name, []).append(pace)
    clients = tuple(
        Client(
            name,
            tuple(sorted(paces[name], key=lambda pace: pace.from_s)),
            tuple(sorted(lengths[name], key=lambda entry: entry.from_s)),
        )
        for name in sorted(paces.keys() & lengths.keys())
        if len(paces[name]) >= windows_min
    )
    if not clients:
        raise TraceError(
            windows.name, 1, f"no client of {model!r} is left", "a model of both files"
        )
    return clients


def _pace(row: Mapping[str, str]) -> tuple[str, Pace]:
    pace = Pace(
        float(row["window_start_s"]),
        float(row["req_per_s"]),
        Law(row["iat_dist"]),
        float(row["shape"]),
    )
    if not (0 < pace.per_s < math.inf and _SHAPES[0] <= pace.shape <= _SHAPES[1]):
        raise ValueError
    if not 0 <= pace.from_s <= DAY_S - WINDOW_S:
        raise ValueError
    return row["client"], pace


def _curve(row: Mapping[str, str]) -> tuple[str, float, str, tuple[float, ...]]:
    from_s, values = float(row["window_start_s"]), tuple(float(row[name]) for name in _QUANTILES)
    if not 0 <= from_s < DAY_S or not values[0] >= 0 or not values[-1] < math.inf:
        raise ValueError
    if not all(low <= high for low, high in pairwise(values)):
        raise ValueError
    return row["client"], from_s, row["field"], values


def _rows(path: Path, model: str, parse: Callable[[Mapping[str, str]], T]) -> Iterator[T]:
    header: list[str] = []
    with path.open("rb") as raw:
        for line, text in lines(raw, path.name, BOUNDS):
            cells = text.split(",")
            row = dict(zip(header, cells, strict=False))
            if not header:
                header = cells
            elif row.get("model", model) == model:
                try:
                    yield parse(row)
                except (KeyError, ValueError):
                    raise TraceError(
                        path.name,
                        line,
                        "a column is missing or a number out of range",
                        "ServeGen's columns: a window of one day, a rate above 0, Gamma or Weibull "
                        f"with a shape of {_SHAPES[0]} to {_SHAPES[1]:.0f}, quantiles that rise",
                    ) from None


def resample(
    clients: Sequence[Client], tenants: int, per_s: float, rng: Random, exponent: float = 1.0
) -> tuple[Source, ...]:
    """`tenants` of them, together `per_s` requests a second on average over a day; the volume of
    rank r falls as r^−exponent.  Whose ways a rank gets is drawn, each client as likely."""
    assert 1 <= tenants <= TENANTS_MAX
    assert per_s > 0
    weights = [rank**-exponent for rank in range(1, tenants + 1)]
    whole = math.fsum(weights)
    found = []
    for rank, weight in enumerate(weights):
        client = rng.choice(clients)
        factor = per_s * weight / whole / client.per_s
        found.append(Source(f"t{rank:05}", client, factor, rng.getrandbits(64)))
    return tuple(found)


def arrivals(sources: Sequence[Source], until_s: float, day_s: float = 0.0) -> Iterator[Arrival]:
    """All requests before `until_s`, in order of time, drawn as they are asked for.  Second 0 of the
    run is second `day_s` of the day; a day follows on itself."""
    return heapq.merge(
        *(_walk(source, until_s, day_s) for source in sources), key=lambda arrival: arrival.at_s
    )


def _walk(source: Source, until_s: float, day_s: float) -> Iterator[Arrival]:
    rng = Random(source.seed)  # noqa: S311  # a simulation, not a secret
    need: float | None = None
    for pace, from_s, to_s in _windows(source.client, day_s):
        per_s = pace.per_s * source.factor
        at_s = from_s
        need = pace.rest(rng) if need is None else need
        while need < per_s * (to_s - at_s):
            at_s += need / per_s
            if at_s >= until_s:
                return
            lengths = source.client.lengths_at(day_s + at_s)
            prompt = tokens(lengths.prompt, rng.random())
            output = tokens(lengths.output, rng.random())
            yield Arrival(at_s, source.tenant, prompt, output)
            need = pace.gap(rng)
        need -= per_s * (to_s - at_s)
        if to_s >= until_s:
            return


def _windows(client: Client, day_s: float) -> Iterator[tuple[Pace, float, float]]:
    """The client's windows from second `day_s` of the day on, for ever, in seconds of the run."""
    assert client.paces
    start_s = -day_s
    while True:
        for pace in client.paces:
            from_s = start_s + pace.from_s
            if from_s + WINDOW_S > 0:
                yield pace, max(0.0, from_s), from_s + WINDOW_S
        start_s += DAY_S


def tokens(quantiles: Sequence[float], level: float) -> int:
    """The length at `level` (0 to 1) of a distribution given at p1 … p99 and its maximum: at least
    1; below p1, p1."""
    upper = bisect_left(_LEVELS, level)
    high = quantiles[upper]
    if upper == 0 or high <= 0:
        return max(1, round(high))
    low = max(quantiles[upper - 1], 0.5)  # a geometric mean with 0 would be 0
    part = (level - _LEVELS[upper - 1]) / (_LEVELS[upper] - _LEVELS[upper - 1])
    return max(1, round(low * math.pow(high / low, part)))
