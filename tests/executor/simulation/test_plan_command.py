"""`python -m executor.simulation plan`: an answer for a trace, and clear words where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from executor.simulation.__main__ import main
from executor.simulation.machine import A10G
from executor.simulation.machine_file import write
from executor.simulation.plan import REPLICAS_MAX, Miss, Sized

COUNT = 24


def mooncake(path: Path, *, prompt: int = 900) -> str:
    """Five a second; an A10G alone takes 0.2 s for each prompt and has no time left for answers."""
    rows = (
        {"timestamp": i * 200, "input_length": prompt, "output_length": 20, "hash_ids": [1, 2]}
        for i in range(COUNT)
    )
    file = path / "trace.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def azure(path: Path) -> str:
    rows = (f"2023-11-16 18:15:{i // 5:02d}.{i % 5 * 2}000000,900,20\n" for i in range(COUNT))
    file = path / "trace.csv"
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    return str(file)


def plan(*words: str) -> int:
    return main(["plan", *words])


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert plan("--json", *words) in {0, 1}
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


WORDS = ("--ttft-ms", "500")


def test_people_read_what_was_read_what_is_assumed_and_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan("--trace", mooncake(tmp_path), *WORDS) == 0
    told = capsys.readouterr()
    assert "24 requests of 1 tenant over 5 s: 21,600 prompt and 480 answer tokens" in told.out
    assert "99 % have their first token within 500 ms" in told.out
    assert "assumed, not measured: Llama-2-7B on one A10G" in told.out
    assert "--slower" in told.out
    assert told.out.endswith("2 replicas keep this promise.\n")
    assert "       2  100.0 %" in told.out
    assert told.err == "trying 1\ntrying 2\n"


def test_both_formats_and_every_run_give_one_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = document(capsys, "--trace", mooncake(tmp_path), *WORDS)
    second = document(capsys, "--trace", azure(tmp_path), *WORDS)
    assert first["replicas"] == 2
    assert first["tried"] == second["tried"]
    assert first == document(capsys, "--trace", mooncake(tmp_path), *WORDS)


def test_a_slower_machine_needs_more_and_a_first_part_of_a_trace_less(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = mooncake(tmp_path)
    assert document(capsys, "--trace", trace, *WORDS, "--slower", "0.5")["replicas"] == 1
    short = document(capsys, "--trace", trace, *WORDS, "--limit-requests", "1")
    assert short["replicas"] == 1
    assert short["trace"] == {
        "file": "trace.jsonl",
        "requests": 1,
        "left_out": 23,
        "tenants": 1,
        "seconds": 0.0,
        "prompt_tokens": 900,
        "output_tokens": 20,
    }
    plan("--trace", trace, *WORDS, "--limit-requests", "1")
    assert "23 later ones are left out" in capsys.readouterr().out


def test_a_pace_that_no_machine_has_is_never_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--trace", mooncake(tmp_path), "--tpot-ms", "5", "--replicas-max", "2")
    assert plan(*words) == 1
    told = capsys.readouterr().out
    assert "and 5 ms a token after it" in told
    assert "replicas  in time" not in told, "nothing had to be tried"
    assert told.endswith(
        "No number of replicas keeps this promise: 0.0 % of 24 requests in time where each has a replica to "
        "itself.\n"
        "          each after it: 24 need more than 5 ms; 99 % need 17.6 or less (--tpot-ms)\n"
        "          More replicas do not help: promise at least that, or to fewer (--part), or plan for a "
        "machine 3.6 times as fast (--slower).\n"
    )
    assert plan(*words, "--part", "0.5", "--slower", "0.1") == 0
    capsys.readouterr()
    found = document(capsys, *words)
    assert (found["replicas"], found["tried"]) == (None, [])
    assert isinstance(found["alone"], dict)
    assert found["alone"]["slow"] == 24


def test_every_limit_that_binds_is_told_with_what_moves_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = with_classes(tmp_path, ("now", "later"))
    promises = ({"name": "now", "ttft_ms": 100, "itl_ms": 10}, {"name": "later", "ttft_ms": 9000})
    assert plan("--trace", trace, terms(*promises)) == 1
    told = capsys.readouterr().out
    assert (
        "now    no number of replicas  (it decides)\n"
        "later  1 replica\n"
        "No number of replicas keeps what `now` is promised: 0.0 % of 12 requests in time" in told
    )
    assert "first token: 12 need more than 100 ms; 99 % need 211 or less (ttft_ms)\n" in told
    assert "each after it: 12 need more than 10 ms; 99 % need 17.6 or less (itl_ms)\n" in told
    assert "--replicas-max" not in told


def test_more_replicas_are_advised_only_where_there_may_be_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = mooncake(tmp_path)
    assert plan("--trace", trace, "--ttft-ms", "300", "--replicas-max", "1") == 1
    told = capsys.readouterr().out
    assert "Not even 1 replica can keep it.\n          Of 24 requests " in told
    assert (
        "with their first token too late.\n          Allow more (--replicas-max), promise" in told
    )


@pytest.mark.parametrize(("most", "before"), ((REPLICAS_MAX, 512), (64, 32)))
def test_where_more_do_not_help_that_is_said(
    most: int,
    before: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many as anybody may ask for, or no more in time than with half of them."""
    from executor.simulation import __main__ as command

    parts = {before: {"": 0.5 if most == REPLICAS_MAX else 0.75}, most: {"": 0.75}}
    missed = {"": Counter({Miss.REFUSED: 4, Miss.SLOW: 2})}
    sized = Sized({"": None}, parts, missed=missed)
    monkeypatch.setattr(command, "plan_for", lambda *_, **__: sized)
    assert plan("--trace", mooncake(tmp_path)) == 1
    told = capsys.readouterr().out
    assert "Of 24 requests 4 refused for a backlog, 2 too slow after it.\n" in told
    assert told.endswith("Promise less, or take a faster machine.\n")
    assert ("32 replicas miss no more: it is not for want of them." in told) == (most == 64)


def test_a_part_that_misses_never_looks_like_the_one_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from executor.simulation import __main__ as command

    late = {"": Counter({Miss.LATE: 1})}
    monkeypatch.setattr(
        command, "plan_for", lambda *_, **__: Sized({"": None}, {64: {"": 0.98999}}, missed=late)
    )
    assert plan("--trace", mooncake(tmp_path)) == 1
    assert "      64   98.9 %" in capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], words: Sequence[str]) -> str:
    assert plan(*words) == 2
    told = capsys.readouterr()
    assert not told.out
    assert "Traceback" not in told.err
    return told.err


def test_a_bad_file_is_refused_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.csv"
    trace = ("--trace", str(file))
    assert "no such file or directory; expected a trace file" in refused(capsys, trace)
    assert "is a directory" in refused(capsys, ("--trace", str(tmp_path)))
    file.write_text("")
    assert "bad.csv, line 1: the file is empty; expected" in refused(capsys, trace)
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,hello,1\n")
    told = refused(capsys, trace)
    assert "line 2: `contexttokens` is no number of that kind; expected" in told
    assert "hello" not in told
    told = refused(capsys, (*trace, "--json"))
    assert json.loads(told)["error"]["message"].startswith("bad.csv, line 2")


def test_what_never_fits_is_told_with_the_option_that_helps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = mooncake(tmp_path, prompt=12_000)
    told = refused(capsys, ("--trace", trace))
    assert "24 of 24 requests never fit" in told
    assert "--kv-tokens" in told
    found = document(
        capsys,
        "--trace",
        trace,
        "--kv-tokens",
        "16010",
        "--limit-requests",
        "1",
        "--ttft-ms",
        "9e3",
    )
    assert found["replicas"] == 1
    assert isinstance(found["machine"], dict)
    assert found["machine"]["kv_tokens"] == 16_000


def test_no_name_of_a_file_drives_a_terminal_or_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one that is no UTF-8, which Python shows as lone surrogates."""
    odd = os.fsdecode(b"b\xff\x1b[2Jad")
    words = ("--trace", str(tmp_path / odd))
    for told in (refused(capsys, words), refused(capsys, (*words, "--json"))):
        assert "b��[2Jad cannot be read: no such file" in told
    Path(mooncake(tmp_path)).rename(tmp_path / odd)
    machine = str(tmp_path / f"{odd}.json")
    write(A10G, Path(machine))
    found = document(capsys, *words, "--machine", machine)
    assert isinstance(found["trace"], dict)
    assert found["trace"]["file"] == "b��[2Jad"
    assert plan(*words, "--machine", machine) in {0, 1}
    assert "measured: A10G, as b��[2Jad.json has it" in capsys.readouterr().out
    (tmp_path / odd).write_bytes(b"\xff")
    assert "b��[2Jad, line 1: it is no UTF-8" in refused(capsys, words)
    long = refused(capsys, ("--trace", "x" * 9000))
    assert len(long) < 2010
    assert "file name too long" not in long, "cut before its reason, and so be it"


def test_what_is_no_file_is_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    pipe = str(tmp_path / "pipe")
    assert "pipe cannot be read: it is no regular file" in refused(capsys, ("--trace", pipe))
    words = ("--trace", mooncake(tmp_path), "--machine", pipe)
    assert "pipe cannot be read: it is no regular file; expected one of" in refused(capsys, words)


def test_the_trace_is_read_last_and_how_far_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executor.simulation.traces.SAID_ROWS", 10)
    assert plan("--trace", mooncake(tmp_path)) == 0
    told = capsys.readouterr().err
    assert told.startswith("reading: 10 requests\nreading: 20 requests\ntrying 1\n")
    words = ("--trace", str(tmp_path / "trace.jsonl"), terms(*CLASSES), "--class=gold=0.1")
    assert "reading" not in refused(capsys, words)


@pytest.mark.parametrize(
    ("word", "value"),
    (
        ("--part", "nan"),
        ("--part", "1.01"),
        ("--ttft-ms", "0"),
        ("--tpot-ms", "inf"),
        ("--slower", "0"),
        ("--replicas-max", "0"),
        ("--replicas-max", "1e9"),
        ("--limit-requests", "1000001"),
        ("--kv-tokens", "3"),
        ("--rep", "3"),
    ),
)
def test_every_option_has_bounds(word: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        plan("--trace", "absent", word, value)
    assert stop.value.code == 2
    assert word in capsys.readouterr().err


CLASSES: list[dict[str, object]] = [
    {"name": "critical", "reserved": 0.2, "itl_ms": 500},
    {"name": "interactive", "itl_ms": 500},
    {"name": "batch", "weight": None, "floor": 0.05},
]


def terms(*found: dict[str, object]) -> str:
    return "--terms=" + json.dumps(found)


def with_classes(path: Path, names: Sequence[str], *, prompt: int = 900) -> str:
    """As `mooncake`, the rows' classes by turns; "" says none."""
    rows = (
        {"timestamp": i * 200, "input_length": prompt, "output_length": 20}
        | ({"class": name} if (name := names[i % len(names)]) else {})
        for i in range(COUNT)
    )
    file = path / "classes.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def test_each_class_is_told_what_it_needs_and_which_decides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strict: list[dict[str, object]] = [
        {"name": "critical", "reserved": 0.2, "ttft_ms": 300, "itl_ms": 300},
        {"name": "interactive", "ttft_ms": 4000},
        CLASSES[2],
    ]
    trace = with_classes(tmp_path, ("critical", "interactive", "batch", "interactive"))
    assert plan("--trace", trace, terms(*strict)) == 0
    told = capsys.readouterr().out
    assert "99 % of each class; who is refused for a backlog is not in time" in told
    assert (
        "critical     6 requests: their first token within 300 ms and 300 ms a token after it, "
        "reserved 0.2, weight 1" in told
    )
    assert "batch        6 requests: nothing is promised, floor 0.05" in told
    heads = next(line for line in told.splitlines() if line.startswith("replicas"))
    assert heads.split() == ["replicas", "critical", "interactive"]
    assert told.endswith(
        "critical     3 replicas  (it decides)\n"
        "interactive  1 replica\n"
        "3 replicas keep every promise.\n"
    )
    found = document(capsys, "--trace", trace, terms(*strict))
    assert found["replicas"] == 3
    assert found["classes"] == [
        {
            "name": "critical",
            "requests": 6,
            "promise": {"ttft_ms": 300.0, "tpot_ms": 300.0},
            "replicas": 3,
            "decides": True,
            "alone": None,
        },
        {
            "name": "interactive",
            "requests": 12,
            "promise": {"ttft_ms": 4000.0, "tpot_ms": None},
            "replicas": 1,
            "decides": False,
            "alone": None,
        },
        {
            "name": "batch",
            "requests": 6,
            "promise": None,
            "replicas": None,
            "decides": False,
            "alone": None,
        },
    ]


def test_rows_that_say_no_class_are_given_one_by_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = with_classes(tmp_path, ("critical", "", "", ""))

    def counts(*words: str) -> dict[str, int]:
        found = document(capsys, "--trace", trace, terms(*CLASSES), "--replicas-max=1", *words)
        assert isinstance(found["classes"], list)
        return {each["name"]: each["requests"] for each in found["classes"]}

    assert counts() == {"critical": 6, "interactive": 18, "batch": 0}
    assert counts("--class=batch=1") == {"critical": 6, "interactive": 0, "batch": 18}
    mixed = counts("--class=batch=0.5", "--class=critical=0.2")
    assert mixed == counts("--class=batch=0.5", "--class=critical=0.2")
    assert sum(mixed.values()) == COUNT
    assert mixed["batch"] > 4 < mixed["interactive"]


def test_without_terms_a_class_in_the_trace_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = document(capsys, "--trace", with_classes(tmp_path, ("critical",)), *WORDS)
    assert first["tried"] == document(capsys, "--trace", mooncake(tmp_path), *WORDS)["tried"]


@pytest.mark.parametrize(
    ("words", "why"),
    (
        (("--terms=x",), "the classes cannot be read"),
        (("--terms=[]",), "of length >= 1"),
        ((terms({"name": "a", "weight": 0}),), "> 0"),
        ((terms({"name": "a", "share": 1}),), "unknown field 'share' - at `$"),
        ((terms({"name": "a", "\x07" + "x" * 99: 1}),), r"field '\x07" + "x" * 63 + "'…"),
        ((terms({"name": "\x1b[2J"}),), "matching regex"),
        ((terms({"name": "a"}, {"name": "a"}),), "a class stands twice"),
        ((terms({"name": "a", "reserved": 0.6}, {"name": "b", "reserved": 0.6}),), "more than 1"),
        ((terms(*CLASSES), "--ttft-ms=5"), "expected one of the two"),
        (("--class=a=1",), "expected --terms beside it"),
        ((terms(*CLASSES), "--class=batch"), "'batch' is no part of a class; expected NAME=PART"),
        ((terms(*CLASSES), "--class=\x1b=0.1"), r"'\x1b' is no class of the configuration"),
        ((terms(*CLASSES), "--class=" + "x" * 99 + "=0.1"), "'" + "x" * 64 + "'… is no class"),
        ((terms(*CLASSES), "--class=batch=nan"), "expected NAME=PART"),
        (
            (terms(*CLASSES), "--class=gold=0.1"),
            "'gold' is no class of the configuration; expected some of critical, interactive, batch",
        ),
        ((terms(*CLASSES), "--class=batch=0.1", "--class=batch=0.1"), "given twice"),
        ((terms(*CLASSES), "--class=batch=0.9", "--class=critical=0.9"), "come to 1.8"),
        ((terms(CLASSES[2], {"name": "secret"}),), "is promised anything"),
        (
            (terms(CLASSES[0], CLASSES[2]),),
            "some requests say no class and none takes what is left",
        ),
        ((terms({"name": "b", "ttft_ms": 9}),), "6 of 24 requests say a class"),
    ),
)
def test_classes_that_cannot_be_planned_for_are_refused(
    words: Sequence[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "critical" if "critical" in "".join(words) else ""
    name = "gold-secret" if "ttft_ms" in words[0] else name
    told = refused(capsys, ("--trace", with_classes(tmp_path, (name, "", "", "")), *words))
    assert why in told
    assert "secret" not in told
    assert told.removesuffix("\n").isprintable()


def test_a_machine_that_was_measured_is_planned_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.json"
    write(replace(A10G.slower(0.5), name="our A10G"), file)
    words = ("--trace", mooncake(tmp_path), *WORDS, "--machine", str(file))
    assert plan(*words) == 0
    told = capsys.readouterr().out
    assert "Machine   measured: our A10G, as mine.json has it;" in told
    assert "Yours is another" not in told
    assert told.endswith("1 replica keeps this promise.\n")
    found = document(capsys, *words, "--slower", "2")
    assert found["replicas"] == 2
    assert isinstance(found["machine"], dict)
    assert not found["machine"]["assumed"]


def test_a_machine_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = ("--trace", mooncake(tmp_path))
    told = refused(capsys, (*trace, "--machine", "tpu"))
    assert "tpu cannot be read: no such file or directory; expected one of a10g, cpu, or" in told
    (tmp_path / "m.json").write_text("{}")
    told = refused(capsys, (*trace, "--machine", str(tmp_path / "m.json")))
    assert "m.json describes no machine: Object missing required field" in told


def test_no_tensor_library_is_needed(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'numpy', 'triton', 'gguf', 'safetensors', 'llguidance'):\n"
        "    sys.modules[name] = None\n"
        "from executor.simulation.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    words = ("plan", "--trace", mooncake(tmp_path), "--limit-requests", "2")
    ran = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "1 replica keeps this promise." in ran.stdout
