"""The simulator held against the measured runs of VTC's artifact (A10G, Llama-2-7B).

The authors' requests, replayed through twins of their two schedulers on their cost profile, made slower
by one factor: what the overload runs (E1) took in all, measured ÷ simulated.  The profile was taken on
the bare model; a served step also waits for the server around it.  The other suites see nothing of that
fit.  Figures by one definition for both: service is counted as it was seen from the outside.

Refuses to know: our own schedulers.  Source: ../shared/traces/README.md; SCHEDULER.md §4.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

from executor.simulation.experiments import PUBLISHED_FCFS, PUBLISHED_VTC, Figures, play
from executor.simulation.machine import A10G, Machine
from executor.simulation.metrics import difference, differences, served
from executor.simulation.metrics_requests import (
    Record,
    asked,
    given,
    in_flight_alone,
    percentile,
    tokens_per_s,
)
from executor.simulation.work import NS, Request

RUNS: Final = "vtc_artifact_runs.csv.gz"
CONFIG: Final = "vtc_artifact_runs_config.json"
_CONTENDERS: Final = {"FCFS": PUBLISHED_FCFS, "VTC": PUBLISHED_VTC, "WVTC": PUBLISHED_VTC}
_WEIGHTS: Final = {"t0": 1.0, "t1": 2.0, "t2": 3.0, "t3": 4.0}
FITTED: Final = (("overload", "FCFS"), ("overload", "VTC"))
REPLAYED: Final = (
    *FITTED,
    ("increase", "FCFS"),
    ("increase", "VTC"),
    ("proportional", "FCFS"),
    ("proportional", "VTC"),
    ("real", "FCFS"),
    ("real", "VTC"),
    ("overload-weighted", "WVTC"),
)


@dataclass(frozen=True, slots=True)
class Measured:
    records: Sequence[Record]
    total_s: float


@dataclass(frozen=True, slots=True)
class Pair:
    suite: str
    scheduler: str
    measured: Figures
    simulated: Figures


def load(traces: Path) -> dict[tuple[str, str], Measured]:
    config = json.loads((traces / CONFIG).read_text())
    records: dict[tuple[str, str], list[Record]] = {key: [] for key in REPLAYED}
    with gzip.open(traces / RUNS, "rt") as file:
        for row in csv.DictReader(file):
            key = row["suite"], row["scheduler"]
            if key in records:
                records[key].append(_record(row))
    return {
        (suite, scheduler): Measured(each, config[f"{scheduler}/{suite}"]["total_time_s"])
        for (suite, scheduler), each in records.items()
    }


def _record(row: Mapping[str, str]) -> Record:
    arrived_s = float(row["arrival_s"])
    return Record(
        row["tenant"],
        arrived_s,
        int(row["prompt_tokens"]),
        int(row["output_tokens"]),
        arrived_s + float(row["request_latency_s"]),
        first_token_s=arrived_s + float(row["first_token_latency_s"]),
    )


def replay(measured: Measured, scheduler: str, machine: Machine) -> Measured:
    weights = _WEIGHTS if scheduler == "WVTC" else {}
    requests = [
        Request(
            round(r.arrived_s * NS),
            r.tenant,
            r.prompt_tokens,
            r.output_tokens,
            max_new_tokens=r.output_tokens,
            weight=weights.get(r.tenant, 1.0),
        )
        for r in measured.records
    ]
    run = play(_CONTENDERS[scheduler], requests, machine=machine)
    return Measured(run.records, run.end_ns / NS)


def factor(runs: Mapping[tuple[str, str], Measured]) -> float:
    """How much slower than its profile the machine was, by the suites that are fitted."""
    return fmean(runs[key].total_s / replay(runs[key], key[1], A10G).total_s for key in FITTED)


def compare(traces: Path, keys: Sequence[tuple[str, str]] = REPLAYED) -> tuple[float, list[Pair]]:
    runs = load(traces)
    slower = factor(runs)
    machine = A10G.slower(slower)
    return slower, [
        Pair(
            *key, _figures(key[0], runs[key]), _figures(key[0], replay(runs[key], key[1], machine))
        )
        for key in keys
    ]


def _figures(suite: str, run: Measured) -> Figures:
    figures = {"tokens_per_s": tokens_per_s(run.records, run.total_s)}
    return figures | dict(_OF[suite](run.records))


def _gap(records: Sequence[Record]) -> Figures:
    log = given(records)
    gaps = []
    for at_s in range(30, 361, 10):
        amounts = served(log, (0.0, float(at_s)))
        gaps.append(max(amounts.values()) - min(amounts.values()))
    return {"gap_at_330s": gaps[30], "gap_max": max(gaps)}


def _light(tenants: Sequence[str]) -> Callable[[Sequence[Record]], Figures]:
    def figures(records: Sequence[Record]) -> Figures:
        waits = [r.ttft_s for r in records if r.tenant in tenants and r.ttft_s is not None]
        return {"light_ttft_mean_s": fmean(waits), "light_ttft_p99_s": percentile(waits, 99)}

    return figures


def _weighted(records: Sequence[Record]) -> Figures:
    parts = served(given(records), (60.0, 360.0))
    whole = sum(parts.values())
    return {f"{tenant}_of_10": 10 * parts[tenant] / whole for tenant in sorted(parts)}


def _arena(records: Sequence[Record]) -> Figures:
    windows = [(28.5 * i, 28.5 * i + 60.0) for i in range(1, 20)]
    row = difference(differences(asked(records), given(records), windows))
    waits = [r.ttft_s for r in in_flight_alone(records) if r.ttft_s is not None]
    return {"diff_mean": row.mean, "diff_max": row.most, "alone_ttft_p99_s": percentile(waits, 99)}


_OF: Final[Mapping[str, Callable[[Sequence[Record]], Figures]]] = {
    "overload": _gap,
    "increase": _light(["t0"]),
    "proportional": _light(["t0", "t1"]),
    "real": _arena,
    "overload-weighted": _weighted,
}


def lines(slower: float, pairs: Sequence[Pair]) -> list[list[str]]:
    """Cells of a table."""
    cells = [["suite", "scheduler", "figure", "measured", f"simulated (x {slower:.3f})", "off"]]
    for pair in pairs:
        for name, measured in pair.measured.items():
            simulated = pair.simulated[name]
            off = f"{simulated / measured - 1:+.1%}"
            words = [name.replace("_", " "), f"{measured:.2f}", f"{simulated:.2f}", off]
            cells.append([pair.suite, pair.scheduler, *words])
    return cells
