from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from executor import wire
from executor.contract import (
    Abort,
    Broken,
    Cause,
    Command,
    Emitted,
    Ended,
    Gauges,
    Loading,
    Logprob,
    Message,
    Prefilling,
    Report,
    Sampling,
    Submit,
    TokenLogprobs,
    Waiting,
)
from executor.wire import WireError

SUBMIT = Submit(
    request=3,
    prompt=(1, 2, 2**31),
    max_new_tokens=5,
    stop_token_ids=(7,),
    sampling=Sampling(seed=-(2**63), logit_bias=((1, -2.5),), top_logprobs=0),
    share=(("tenant", 2.0), ("user", 1.0)),
    queue_ms_max=0,
)
REPORT = Report(
    updates=(
        Waiting(request=1, position=0),
        Prefilling(request=1, done_tokens=1, total_tokens=2),
        Emitted(
            request=1,
            tokens=(5,),
            logprobs=(TokenLogprobs(Logprob(5, -0.5), (Logprob(5, -0.5),)),),
        ),
        Ended(request=1, cause=Cause.STOP, generated=1),
    ),
    gauges=Gauges(running=1),
)


def fed(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return reader


async def commands(data: bytes) -> list[Command]:
    reader, got = fed(data), []
    while (command := await wire.read_command(reader)) is not None:
        got.append(command)
    return got


async def messages(data: bytes) -> list[Message]:
    reader, got = fed(data), []
    while (message := await wire.read_message(reader)) is not None:
        got.append(message)
    return got


def test_what_is_written_is_read() -> None:
    sent: list[Command] = [SUBMIT, Abort(request=3)]
    data = b"".join(wire.encode_command(command) for command in sent)
    assert asyncio.run(commands(data)) == sent
    told: list[Message] = [Loading(stage="weights", fraction=0.5), Broken(reason="no"), REPORT]
    data = b"".join(wire.encode_message(message) for message in told)
    assert asyncio.run(messages(data)) == told


@pytest.mark.parametrize("cut", (1, 3, 4, 5, 20))
def test_a_connection_cut_inside_a_frame_is_a_fault(cut: int) -> None:
    with pytest.raises(WireError, match="ended inside"):
        asyncio.run(commands(wire.encode_command(SUBMIT)[:cut]))


def test_an_overlong_frame_is_refused_by_its_length_alone() -> None:
    with pytest.raises(WireError, match="over the bound"):
        asyncio.run(commands((wire.COMMAND_BYTES_MAX + 1).to_bytes(4, "big")))
    with pytest.raises(WireError, match="over the bound"):
        asyncio.run(messages((wire.MESSAGE_BYTES_MAX + 1).to_bytes(4, "big")))


def test_an_overlong_command_is_not_sent() -> None:
    huge = Submit(request=1, prompt=(2**31,) * (2**22), max_new_tokens=1)
    with pytest.raises(WireError, match="over the bound"):
        wire.encode_command(huge)


@pytest.mark.parametrize(
    "value",
    (
        {"type": "shutdown", "request": 1},
        {"type": "report"},
        {"request": 1},
        {"type": "abort"},
        {"type": "abort", "request": "1"},
        {"type": "abort", "request": 1.0},
        {"type": "submit", "request": 1, "prompt": ["a"], "max_new_tokens": 1},
        [1],
        None,
    ),
)
def test_what_is_no_command_is_a_fault(value: object) -> None:
    with pytest.raises(WireError):
        wire.decode_command(msgspec.msgpack.encode(value))


def test_the_fault_does_not_quote_the_content() -> None:
    with pytest.raises(WireError) as caught:
        wire.decode_command(msgspec.msgpack.encode({"type": "canary-7d1f", "request": "canary"}))
    assert "canary" not in str(caught.value)


HEAD = b"\x83\xa4type\xa6submit\xa7request\x01"


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@example(HEAD + b"\xa6prompt\xdd\xff\xff\xff\xff")  # an array that claims four thousand million
@example(HEAD + b"\xa2xx" + b"\x91" * 100_000)  # nested deeper than any stack
@given(
    st.one_of(
        st.binary(max_size=64),
        st.tuples(st.integers(0, 120), st.integers(1, 8), st.binary(max_size=8)).map(
            lambda cut: _mangled(*cut)
        ),
    )
)
def test_malformed_bytes_do_nothing_but_a_clean_fault(body: bytes) -> None:
    for decode in (wire.decode_command, wire.decode_message):
        try:
            decode(body)
        except WireError:
            continue


def _mangled(at: int, count: int, into: bytes) -> bytes:
    body = msgspec.msgpack.encode(SUBMIT)
    return body[:at] + into + body[at + count :]
