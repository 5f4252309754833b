"""Tenants made of ServeGen's clients: rates, gaps, lengths and volumes are those that were asked for."""

from __future__ import annotations

import gzip
import math
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from statistics import fmean, pstdev

import pytest

from executor.simulation.clients import (
    Client,
    Law,
    Lengths,
    Pace,
    Source,
    arrivals,
    load,
    resample,
    tokens,
)
from executor.simulation.traces import Arrival, TraceError

TRACES = Path(__file__).resolve().parents[4] / "shared" / "traces"
CURVE = (10.0, 10.0, 20.0, 20.0, 80.0, 80.0, 160.0, 160.0, 160.0, 320.0)
LENGTHS = (Lengths(0.0, CURVE, CURVE),)


def steady(law: Law, shape: float, per_s: float = 1.0) -> Client:
    return Client("c", tuple(Pace(600.0 * i, per_s, law, shape) for i in range(144)), LENGTHS)


@pytest.mark.parametrize(
    ("level", "length"),
    (
        (0.0, 10),
        (0.01, 10),
        (0.05, 10),
        (0.25, 20),
        (0.375, 40),
        (0.5, 80),
        (0.995, 226),
        (1.0, 320),
    ),
)
def test_lengths_run_through_their_quantiles(level: float, length: int) -> None:
    """Half way from 20 to 80 is 40; from 160 to 320, 226 = 160·√2."""
    assert tokens(CURVE, level) == length


def test_no_length_is_below_one() -> None:
    assert [tokens((0.0,) * 9 + (4.0,), level) for level in (0.0, 0.5, 0.99, 1.0)] == [1, 1, 1, 4]


def draws(law: Law, shape: float, what: str) -> list[float]:
    rng, pace = Random(3), Pace(0.0, 1.0, law, shape)
    return [getattr(pace, what)(rng) for _ in range(8_000)]


@pytest.mark.parametrize(
    ("law", "shape", "cv"),
    (
        (Law.GAMMA, 1.0, 1.0),
        (Law.GAMMA, 0.25, 2.0),
        (Law.WEIBULL, 1.0, 1.0),
        (Law.WEIBULL, 0.5, 5**0.5),
    ),
)
def test_gaps_have_mean_one_and_their_law_s_spread(law: Law, shape: float, cv: float) -> None:
    """Gamma: CV = 1/√k.  Weibull ½: Γ(5)/Γ(3)² − 1 = 24/4 − 1 = 5.  What is left of a gap that a
    moment fell into: (1 + CV²)/2 on average."""
    gaps = draws(law, shape, "gap")
    assert fmean(gaps) == pytest.approx(1.0, rel=0.06)
    assert pstdev(gaps) == pytest.approx(cv, rel=0.1)
    assert fmean(draws(law, shape, "rest")) == pytest.approx((1 + cv * cv) / 2, rel=0.2)


def test_a_window_yields_what_its_rate_says() -> None:
    """Silence, then 1/s, then 3/s, the next day again; at double volume twice as many."""
    paces = (Pace(600.0, 1.0, Law.GAMMA, 4.0), Pace(1200.0, 3.0, Law.WEIBULL, 2.0))
    client = Client("c", paces, LENGTHS)
    for factor in (1.0, 2.0):
        times = [a.at_s for a in arrivals([Source("t", client, factor, 9)], 2 * 86_400.0)]
        count = Counter(int(at // 600) for at in times)
        assert set(count) == {1, 2, 145, 146}
        for window, expected in ((1, 600), (2, 1800), (145, 600), (146, 1800)):
            assert count[window] == pytest.approx(expected * factor, rel=0.08)


def test_a_gap_longer_than_a_window_goes_on_in_the_next() -> None:
    """One request in 2,000 s, windows of 600 s, twenty days: 864."""
    client = steady(Law.GAMMA, 4.0, 0.0005)
    requests = list(arrivals([Source("t", client, 1.0, 5)], 20 * 86_400.0))
    assert len(requests) == pytest.approx(864, rel=0.08)


def test_the_day_may_begin_in_its_middle() -> None:
    client = Client("c", (Pace(600.0, 1.0, Law.GAMMA, 4.0),), LENGTHS)
    times = [a.at_s for a in arrivals([Source("t", client, 1.0, 9)], 86_400.0, day_s=900.0)]
    assert max(at for at in times if at < 1000) < 300.0
    assert min(at for at in times if at > 1000) >= 86_400.0 - 300.0


def test_nobody_bursts_because_a_run_begins() -> None:
    """400 bursty tenants of 0.02/s: 80 requests in each 10 s, the first 10 s among them."""
    client = steady(Law.GAMMA, 0.2, 0.02)
    sources = [Source(f"t{i}", client, 1.0, i) for i in range(400)]
    count = Counter(int(a.at_s // 10) for a in arrivals(sources, 200.0))
    assert count[0] == pytest.approx(80, abs=40)
    assert fmean(count[i] for i in range(20)) == pytest.approx(80, rel=0.15)


def test_lengths_follow_the_hour() -> None:
    small, large = (10.0,) * 10, (1000.0,) * 10
    client = Client(
        "c",
        steady(Law.GAMMA, 1.0).paces,
        (Lengths(21_600.0, small, large), Lengths(43_200.0, large, small)),
    )
    for day_s, expected in ((0.0, (1000, 10)), (30_000.0, (10, 1000)), (50_000.0, (1000, 10))):
        first = next(arrivals([Source("t", client, 1.0, 1)], 100.0, day_s))
        assert (first.prompt_tokens, first.output_tokens) == expected


def test_volumes_are_zipf_s_and_add_up() -> None:
    uneven = Client(
        "u", (Pace(0.0, 9.0, Law.GAMMA, 1.0), Pace(600.0, 1.0, Law.GAMMA, 1.0)), LENGTHS
    )
    clients = [uneven, steady(Law.WEIBULL, 0.7, 0.01)]
    sources = resample(clients, 4, 25.0, Random(2))
    assert {source.client.name for source in sources} == {"u", "c"}
    rates = [source.factor * source.client.per_s for source in sources]
    assert rates == pytest.approx([12.0, 6.0, 4.0, 3.0])
    assert len({source.tenant for source in sources}) == len({s.seed for s in sources}) == 4
    even = resample(clients, 4, 8.0, Random(2), exponent=0.0)
    assert [s.factor * s.client.per_s for s in even] == pytest.approx([2.0] * 4)


def test_the_same_seed_says_the_same_and_comes_in_order() -> None:
    clients = [steady(Law.GAMMA, 0.5), steady(Law.WEIBULL, 0.5, 2.0)]

    def run(seed: int) -> list[Arrival]:
        return list(arrivals(resample(clients, 50, 40.0, Random(seed)), 20.0))

    once = run(1)
    assert once == run(1) != run(2)
    assert len(once) == pytest.approx(800, rel=0.5)
    assert all(a.at_s <= b.at_s for a, b in pairwise(once))
    assert all(0 <= a.at_s < 20.0 and a.prompt_tokens >= 10 for a in once)


def test_another_tenant_changes_nobody_else() -> None:
    sources = resample([steady(Law.GAMMA, 0.5)], 3, 3.0, Random(1))
    three = [a for a in arrivals(sources, 50.0) if a.tenant != "t00002"]
    assert three == list(arrivals(sources[:2], 50.0))


def test_requests_are_drawn_only_when_asked_for() -> None:
    """A year of 10⁹ requests: the first ten come at once."""
    sources = resample([steady(Law.GAMMA, 1.0)], 10, 1000.0, Random(1))
    assert len(list(islice(arrivals(sources, math.inf), 10))) == 10


WINDOWS = "model,client,window_start_s,req_per_s,iat_cv,iat_dist,shape,scale\n"
QUANTILES = "model,client,window_start_s,field,mean,p1,p5,p10,p25,p50,p75,p90,p95,p99,max\n"
CELLS = "9,1,2,3,4,5,6,7,8,9,10"


def files(folder: Path, windows: str, quantiles: str) -> tuple[Path, Path]:
    paths = folder / "windows.csv.gz", folder / "quantiles.csv.gz"
    for path, text in zip(paths, (windows, quantiles), strict=True):
        path.write_bytes(gzip.compress(text.encode()))
    return paths


def test_load_takes_whom_both_files_know(tmp_path: Path) -> None:
    """a is whole; b has no output lengths, c no windows, d one window only; e is another model's."""
    windows = "".join(
        f"{m},{c},{start},2.0,1,Weibull,0.5,1\r\n"
        for m, c, starts in (
            ("m", "a", (600, 0)),
            ("m", "b", (0, 600)),
            ("m", "d", (0,)),
            ("n", "e", (0, 600)),
        )
        for start in starts
    )
    quantiles = "".join(
        f"{m},{c},0,{field},{CELLS}\r\n"
        for m, c in (("m", "a"), ("m", "b"), ("m", "c"), ("m", "d"), ("n", "e"))
        for field in (("input_tokens",) if c == "b" else ("input_tokens", "output_tokens"))
    )
    paths = files(tmp_path, WINDOWS + windows, QUANTILES + quantiles)
    (client,) = load(*paths, "m", windows_min=2)
    assert (client.name, [pace.from_s for pace in client.paces]) == ("a", [0.0, 600.0])
    assert client.per_s == pytest.approx(2.0 * 2 / 144)
    assert client.lengths[0].output == tuple(range(1, 11))
    with pytest.raises(TraceError, match="no client of 'o' is left"):
        load(*paths, "o")


@pytest.mark.parametrize(
    "row",
    (
        "m,a,0,0,1,Gamma,1,1",
        "m,a,0,1,1,Gamma,nan,1",
        "m,a,0,1,1,Pareto,1,1",
        "m,a,86400,1,1,Gamma,1,1",
        "m,a",
    ),
)
def test_a_window_that_cannot_be_is_refused(tmp_path: Path, row: str) -> None:
    with pytest.raises(TraceError, match=r"windows.csv.gz, line 2: .* ServeGen's columns"):
        load(*files(tmp_path, WINDOWS + row, QUANTILES), "m")


@pytest.mark.parametrize(
    "cells",
    (CELLS[::-1], "9,-1,2,3,4,5,6,7,8,9,10", "9,1,2,3,nan,5,6,7,8,9,10", CELLS + "e999", "9"),
)
def test_quantiles_that_cannot_be_are_refused(tmp_path: Path, cells: str) -> None:
    with pytest.raises(TraceError, match=r"quantiles.csv.gz, line 2"):
        load(*files(tmp_path, WINDOWS, QUANTILES + f"m,a,0,input_tokens,{cells}"), "m")


@pytest.mark.slow
def test_five_thousand_tenants_of_the_published_clients() -> None:
    """Over six hours of a day the rate is the one asked for, times what that part of it holds."""
    if not TRACES.is_dir():
        pytest.skip("ServeGen's clients are not beside this checkout (../shared/traces)")
    names = ("servegen_day0_client_windows.csv.gz", "servegen_day0_token_quantiles.csv.gz")
    clients = load(TRACES / names[0], TRACES / names[1], "m-large")
    assert len(clients) == 48
    sources = resample(clients, 5000, 5.0, Random(4))
    assert math.fsum(s.factor * s.client.per_s for s in sources) == pytest.approx(5.0)
    expected = math.fsum(
        s.factor * pace.per_s * 600
        for s in sources
        for pace in s.client.paces
        if pace.from_s < 21_600
    )
    rows = list(arrivals(sources, 21_600.0))
    assert len(rows) == pytest.approx(expected, rel=0.05)
    assert len({a.tenant for a in rows}) > 2000
