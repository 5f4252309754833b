"""Trace files as their owners really have them: three formats, and everything that can be wrong."""

from __future__ import annotations

import gzip
import io
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from executor.simulation.traces import Arrival, Bounds, TraceError, read, stream, write

TRACES = Path(__file__).resolve().parents[4] / "shared" / "traces"
OURS = "arrival_s,tenant,prompt_tokens,output_tokens\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


Put = Callable[[str | bytes], Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    def file(content: str | bytes) -> Path:
        path = tmp_path / "some.trace"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return file


def test_ours(put: Put) -> None:
    path = put(OURS + "0.0,acme,13,199\n2.5e-1,globex,36,137\n")
    expected = [Arrival(0.0, "acme", 13, 199), Arrival(0.25, "globex", 36, 137)]
    assert list(stream(path)) == expected
    assert read(path) == expected


def test_azure_counts_from_its_first_row(put: Put) -> None:
    path = put(AZURE + "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n")
    assert read(path) == [Arrival(0.0, "all", 4808, 10), Arrival(0.052, "all", 3180, 8)]


def test_a_zone_in_a_date_counts(put: Put) -> None:
    path = put(AZURE + "2024-05-10 01:00:00+01:00,7,8\n2024-05-10 00:00:02.5+00:00,7,8\n")
    assert [row.at_s for row in stream(path, everybody="house")] == [0.0, 2.5]


MOONCAKE = (
    '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n'
    '{"timestamp": 27482, "input_length": 7, "output_length": 8}\n'
)


@pytest.mark.parametrize("pack", (str.encode, lambda text: gzip.compress(text.encode())))
def test_mooncake_plain_and_packed(put: Put, pack: Callable[[str], bytes]) -> None:
    expected = [Arrival(0.0, "all", 600, 5, (0, 1)), Arrival(27.482, "all", 7, 8)]
    assert read(put(pack(MOONCAKE))) == expected


def test_an_epoch_in_milliseconds_is_a_date(put: Put) -> None:
    row = '{"timestamp": %d, "input_length": 1, "output_length": 1}\n'
    path = put(row % 1_700_000_000_500 + row % 1_700_000_001_750)
    assert [at.at_s for at in stream(path)] == [0.0, 1.25]


@pytest.mark.parametrize(
    "content",
    (
        "\ufeff" + OURS + "0,a,1,2\n1,b,3,4\n",
        (OURS + "0,a,1,2\n1,b,3,4\n").replace("\n", "\r\n"),
        "\n\n" + OURS + "\n0,a,1,2\n   \n1,b,3,4",
        OURS + '0,"a",1,2\n1,"b","3",4\n',
        "note,OUTPUT_TOKENS,Tenant,prompt_tokens, arrival_s\nx,2,a,1,0\ny,4,b,3,1\n",
        OURS + " 0.0 , a , 1.0 ,2.00\n1.000,b,3,4.0\n",
    ),
    ids=("bom", "crlf", "blank lines, no last end", "quotes", "columns by name", "pandas"),
)
def test_harmless_differences(put: Put, content: str) -> None:
    assert read(put(content)) == [Arrival(0.0, "a", 1, 2), Arrival(1.0, "b", 3, 4)]


def test_out_of_order_is_sorted_by_read_and_refused_by_stream(put: Put) -> None:
    path = put(OURS + "3,a,1,1\n1,b,2,2\n3,c,3,3\n1,d,4,4\n")
    assert [row.tenant for row in read(path)] == ["b", "d", "a", "c"]
    with pytest.raises(TraceError, match=r"some.trace, line 3: .* rows sorted by time") as refused:
        list(stream(path))
    assert refused.value.line == 3


def test_dates_out_of_order_never_go_below_zero(put: Put) -> None:
    path = put(AZURE + "2023-11-16 18:00:10,2,2\n2023-11-16 18:00:07.5,1,1\n")
    assert read(path) == [Arrival(0.0, "all", 1, 1), Arrival(2.5, "all", 2, 2)]


HUGE = "9" * 5000
BAD: Mapping[str, tuple[str | bytes, int, str]] = {
    "nothing": (b"", 1, "empty"),
    "blank": (b"\n \n\n", 3, "empty"),
    "header only": (OURS, 1, "nothing below"),
    "other columns": ("when,who\n1,2\n", 1, "no trace"),
    "words": ("once upon a time\n", 1, "no trace"),
    "twice": ("tenant,tenant,arrival_s\n", 1, "twice"),
    "few cells": (OURS + "0,a,1,1\n0,a,1\n", 3, "3 cells"),
    "many cells": (OURS + "0,a,1,1,1\n", 2, "5 cells"),
    "open quote": (OURS + '0,"a,1,1\n0,b,1,1\n', 2, "told apart"),
    "negative time": (OURS + "-1,a,1,1\n", 2, "negative"),
    "nan": (OURS + "nan,a,1,1\n", 2, "arrival_s"),
    "infinite": (OURS + "inf,a,1,1\n", 2, "arrival_s"),
    "overflow": (OURS + "1e99,a,1,1\n", 2, "past"),
    "underscore": (OURS + "1_0,a,1,1\n", 2, "arrival_s"),
    "other digits": (OURS + "1,a,٣,1\n", 2, "prompt_tokens"),
    "negative tokens": (OURS + "0,a,-5,1\n", 2, "below 1"),
    "no tokens": (OURS + "0,a,1,0\n", 2, "below 1"),
    "half a token": (OURS + "0,a,1.5,1\n", 2, "prompt_tokens"),
    "empty cell": (OURS + "0,a,,1\n", 2, "empty"),
    "huge": (OURS + f"0,a,{HUGE},1\n", 2, "prompt_tokens"),
    "too many tokens": (OURS + "0,a,10000001,1\n", 2, "past 10000000"),
    "no tenant": (OURS + "0,,1,1\n", 2, "tenant"),
    "bell": (OURS + "0,a\x07,1,1\n", 2, "tenant"),
    "long tenant": (OURS + f"0,{'a' * 129},1,1\n", 2, "tenant"),
    "no utf-8": (OURS.encode() + b"0,\xff,1,1\n", 2, "UTF-8"),
    "utf-16": (OURS.encode("utf-16"), 1, "UTF-8"),
    "no date": (AZURE + "yesterday,1,1\n", 2, "no date"),
    "no json": (MOONCAKE + "{]\n", 3, "no JSON"),
    "csv in json": (MOONCAKE + "0,a,1,1\n", 3, "object"),
    "json nan": ('{"timestamp": NaN, "input_length": 1, "output_length": 1}', 1, "no JSON"),
    "json huge": (f'{{"timestamp": {HUGE}, "input_length": 1, "output_length": 1}}', 1, "expected"),
    "json text": ('{"timestamp": 0, "input_length": "1", "output_length": 1}', 1, "input_length"),
    "json bool": ('{"timestamp": 0, "input_length": true, "output_length": 1}', 1, "input_length"),
    "json lacks": ('{"timestamp": 0, "input_length": 1}', 1, "output_length"),
    "json minus": ('{"timestamp": -1, "input_length": 1, "output_length": 1}', 1, "negative"),
    "deep": ('{"x":' + "[" * 100_000, 1, "no JSON"),
    "hash": (MOONCAKE.replace("[0, 1]", "[0, -1]"), 1, "hash_ids"),
    "cut gzip": (gzip.compress(MOONCAKE.encode())[:20], 1, "gzip"),
    "false gzip": (b"\x1f\x8bhello", 1, "gzip"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_is_refused_with_its_place(put: Put, case: str) -> None:
    content, line, wrong = BAD[case]
    with pytest.raises(TraceError) as refused:
        read(put(content))
    message = str(refused.value)
    assert message.startswith(f"some.trace, line {line}: ")
    assert wrong in message
    assert "; expected " in message
    assert len(message) < 400


def test_a_refusal_does_not_repeat_the_file(put: Put) -> None:
    for content in (OURS + "0,a,my secret,1\n", AZURE + "my secret,1,1\n", "my secret\n"):
        with pytest.raises(TraceError) as refused:
            read(put(content))
        assert "secret" not in str(refused.value)


def test_bounds(put: Put) -> None:
    path = put(OURS + "0,a,1,1\n" * 5)
    assert len(read(path, Bounds(rows=5))) == 5
    for bounds, wrong in (
        (Bounds(rows=4), "line 6: the trace goes on; expected at most 4 rows"),
        (Bounds(file_bytes=60), "line 3: the file is too large; expected at most 60 bytes"),
        (Bounds(line_bytes=20), "line 1: the line is too long; expected at most 20 bytes"),
    ):
        with pytest.raises(TraceError, match=wrong):
            list(stream(path, bounds))


def test_a_bomb_is_given_up_early(put: Put) -> None:
    """10 MB of zeroes in 10 kB, one line: nothing past the bound is ever unpacked."""
    with pytest.raises(TraceError, match="the line is too long"):
        read(put(gzip.compress(b"\0" * 10_000_000)), Bounds(line_bytes=1000))
    bomb = gzip.compress(OURS.encode() + b"\n" * 1_000_000)
    with pytest.raises(TraceError, match="the file is too large"):
        read(put(bomb), Bounds(file_bytes=10_000))


def test_what_is_written_is_read(put: Put) -> None:
    rng = random.Random(5)
    arrivals = [
        Arrival(
            at / 1000,
            rng.choice("abc"),
            rng.randint(1, 10**7),
            rng.randint(1, 9),
            tuple(rng.getrandbits(64) for _ in range(rng.randint(0, 3))),
        )
        for at in sorted(rng.choices(range(10**6), k=50))
    ]
    named, plain = io.BytesIO(), io.BytesIO()
    assert write(arrivals, named, tenants=True) == 50
    assert read(put(named.getvalue())) == arrivals
    write(arrivals[:1], plain)
    assert b"tenant" not in plain.getvalue()
    assert plain.getvalue().startswith(b'{"timestamp":')


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_file_is_read_or_refused_and_nothing_else(put: Put, seed: int) -> None:
    """Bytes changed, cut out or doubled, in every format: TraceError, or rows within their bounds."""
    rng = random.Random(seed)
    ours = OURS + '0.0,acme,13,199\n2.5e-1,"glo,bex",36,137\n'
    azure = AZURE + "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"
    whole = [text.encode() for text in (ours, azure, MOONCAKE)]
    for start in (*whole, gzip.compress(whole[2])):
        for _ in range(10):
            data = bytearray(start)
            for _ in range(rng.randint(1, 3)):
                at = rng.randrange(len(data))
                data[at : at + rng.randint(0, 2)] = rng.choice(
                    (b"", rng.randbytes(1), rng.choice((b"-", b",", b'"', b"9", b"e", b"\n", b"[")))
                )
            try:
                rows = read(put(bytes(data)))
            except TraceError:
                continue
            assert all(row.at_s >= 0 and 1 <= row.prompt_tokens <= 10**7 for row in rows)


ROWS = {
    "vtc_arena27_10min.csv": (1500, 27),
    "servegen_mlarge_1h_8rps_sampled.csv": (28_806, 49),
    "azure2023_code.csv": (8819, 1),
    "azure2023_conv.csv": (19_366, 1),
    "mooncake_fast25_conversation.jsonl.gz": (12_031, 1),
    "mooncake_fast25_synthetic.jsonl.gz": (3993, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_the_published_traces(name: str) -> None:
    if not TRACES.is_dir():
        pytest.skip("the published traces are not beside this checkout (../shared/traces)")
    rows = read(TRACES / name)
    assert (len(rows), len({row.tenant for row in rows})) == ROWS[name]
    assert rows == list(stream(TRACES / name))
    assert rows[0].at_s == 0.0
