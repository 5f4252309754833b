"""The fairness experiments side by side: a table for each, its bars, and what holds.

Refuses to know: how an experiment works (`executor.simulation.experiments*`), where traces lie.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from executor.simulation.experiments import Contender, Experiment, Figures
from executor.simulation.experiments_locality import e10
from executor.simulation.experiments_sharing import e1, e3, e4, e5, e6, e7
from executor.simulation.experiments_waiting import e2, e8, e9, e11, e12, e13, e14
from executor.simulation.traces import read
from executor.simulation.workloads import of_trace
from tests.bench.show import columns

ARENA: Final = "vtc_arena27_10min.csv"
POLICIES: Final = ("fcfs", "vtc", "fair")
NAMES: Final = tuple(f"E{number}" for number in range(1, 15))


@dataclass(frozen=True, slots=True)
class Outcome:
    """`bars`: what was wanted, and whether it holds (None: a contender is missing)."""

    name: str
    what: str
    figures: Mapping[str, Figures]
    bars: tuple[tuple[str, bool | None], ...]
    reported: str = ""


def experiments(names: Iterable[str], traces: Path) -> list[Experiment]:
    """ValueError for a name that nobody knows; FileNotFoundError where a trace is missing."""
    makers: Mapping[str, Callable[[], Experiment]] = {
        "E1": e1,
        "E2": e2,
        "E3": e3,
        "E4": e4,
        "E5": lambda: e5(of_trace(read(traces / ARENA))),
        "E6": e6,
        "E7": e7,
        "E8": e8,
        "E9": e9,
        "E10": e10,
        "E11": e11,
        "E12": e12,
        "E13": e13,
        "E14": e14,
    }
    assert tuple(makers) == NAMES
    wanted = list(names)
    unknown = [name for name in wanted if name not in makers]
    if unknown:
        raise ValueError(f"no experiment {', '.join(unknown)}; expected some of {', '.join(NAMES)}")
    return [makers[name]() for name in wanted]


def outcome(
    experiment: Experiment,
    policies: Collection[str],
    say: Callable[[Contender], None] = lambda _: None,
) -> Outcome:
    found: dict[str, Figures] = {}
    for contender in experiment.contenders(policies):
        say(contender)
        found[contender.name] = experiment.run(contender)
    bars = tuple((bar.what, bar.verdict(found)) for bar in experiment.bars)
    return Outcome(experiment.name, experiment.what, found, bars, experiment.reported)


def lines(seen: Outcome) -> list[str]:
    """A figure a line, a contender a column."""
    names = list(seen.figures)
    figures = list(dict.fromkeys(name for each in seen.figures.values() for name in each))
    cells = [["", *names]]
    for figure in figures:
        values = (seen.figures[name].get(figure) for name in names)
        cells.append([figure.replace("_", " "), *map(_plain, values)])
    said = [f"{seen.name}  {seen.what}", *columns(cells)]
    if seen.reported:
        said.append(f"  published: {seen.reported}")
    return said + [f"  {_WORDS[holds]}: {what}" for what, holds in seen.bars]


_WORDS: Final = {True: "holds", False: "FAULT", None: "not run"}


def _plain(value: float | None) -> str:
    if value is None:
        return "-"
    if value == round(value) or abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
