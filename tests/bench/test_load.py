"""The load generator against a server that is right, and against each way of being wrong."""

import asyncio
from contextlib import closing, suppress
from dataclasses import replace

import pytest

from tests.bench.fake import Fake, Flaws, running
from tests.bench.framing import WireError
from tests.bench.load import Shape, ask, closed_loop, prompt
from tests.bench.runs import Load, Round, Subject, one_round, shape_of, summary
from tests.bench.wire import Client, Endpoint

pytestmark = pytest.mark.slow  # a developer's tools; the whole run has them

RIGHT = Flaws()
LOAD = Load(concurrencies=(1, 4), input_tokens=6, output_tokens=5, requests_per_stream=2)


def one(flaws: Flaws = RIGHT) -> Round:
    async def go() -> Round:
        async with running(Fake(flaws)) as site:
            subject = Subject("fake", site.base_url, site.model, "a", site.admin)
            return await one_round(subject, LOAD, await shape_of(subject, LOAD), 0)

    return asyncio.run(go())


def test_a_right_server_gives_rows_and_a_ledger_that_holds() -> None:
    seen = one()
    assert [row.concurrency for row in seen.rows] == [1, 4]
    assert [row.requests for row in seen.rows] == [2, 8]
    assert [row.output_tokens for row in seen.rows] == [10, 40]
    assert seen.errors == ()
    assert seen.verdict is not None
    assert seen.verdict.holds
    assert seen.verdict.received.output_tokens == 10 + 40 + (1 + 4) * 8  # the warm-up's too
    assert summary([seen, seen])[1].requests == 16


@pytest.mark.parametrize(
    ("flaws", "fault"),
    (
        (Flaws(overbills=1), "output_tokens"),
        (Flaws(leaks_holds=True), "open_holds left over"),
        (Flaws(stops_short=True), "short: 4 of 5 tokens"),
        (Flaws(cuts_streams=True), "WireError"),
    ),
)
def test_a_wrong_server_is_found_out(
    flaws: Flaws, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.bench.runs.IDLE_S_MAX", 0.0)
    if flaws.stops_short or flaws.cuts_streams:

        async def go() -> str | None:
            async with running(Fake(flaws)) as site:
                with closing(Client(Endpoint.parse(site.base_url), "a")) as client:
                    return (await ask(client, Shape("fake", 6, 5), "x")).error

        assert fault in (asyncio.run(go()) or "")
        return
    verdict = one(flaws).verdict
    assert verdict is not None
    assert fault in verdict.sentence()


def test_a_server_that_refuses_token_arrays_gets_words() -> None:
    seen = one(Flaws(refuses_arrays=True))
    assert seen.errors == ()
    assert seen.verdict is not None
    assert seen.verdict.holds


def test_prompts_are_the_seeds_and_no_two_runs_share_one() -> None:
    shape = Shape("m", input_tokens=8)
    assert prompt(shape, "a") == prompt(shape, "a")
    assert prompt(shape, "a") != prompt(shape, "b")
    words = prompt(replace(shape, words=True), "a")
    assert isinstance(words, str)
    assert len(words.split()) == 8


def test_streams_keep_their_connections_and_open_new_ones_for_those_the_server_closed() -> None:
    async def go(flaws: Flaws) -> tuple[int, int]:
        fake = Fake(flaws)
        opened = 0

        async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal opened
            opened += 1
            await fake.connection(reader, writer)

        server = await asyncio.start_server(counted, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = Client(Endpoint("127.0.0.1", port, "/v1"), "a")
        shape = Shape("fake", 4, 3)
        for _ in range(2):
            answers = await closed_loop(
                [client], shape, concurrency=2, requests=2, seed="s", deadline_s=30
            )
            assert all(answer.whole for answer in answers)
            if flaws.closes_idle:
                for kept in client._idle:
                    assert await kept.reader.read(1) == b""
        client.close()
        server.close()
        await fake.closed()
        return opened, len(fake.heads)

    assert asyncio.run(go(Flaws())) == (2, 4)
    assert asyncio.run(go(Flaws(closes_idle=True))) == (4, 4)


def test_a_kept_connection_that_closes_without_a_word_is_replaced_once() -> None:
    async def go(connections_that_answer: int) -> list[object]:
        ended = [asyncio.Event() for _ in range(2)]
        opened = 0

        async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal opened
            number, opened = opened, opened + 1
            await reader.readuntil(b"\r\n\r\n")
            if number < connections_that_answer:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                with suppress(asyncio.IncompleteReadError):
                    await reader.readuntil(b"\r\n\r\n")
            writer.close()
            await writer.wait_closed()
            ended[number].set()

        server = await asyncio.start_server(hasty, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            with closing(Client(Endpoint("127.0.0.1", port))) as client:
                return [await client.get("/") for _ in range(2)]
        finally:
            server.close()
            for each in ended[:opened]:
                await each.wait()

    assert asyncio.run(go(2)) == [(200, {}), (200, {})]
    with pytest.raises(WireError, match="closed before"):
        asyncio.run(go(1))


def test_the_token_is_sent_and_no_other_host_is_ever_a_target() -> None:
    async def go() -> bytes:
        fake = Fake()
        async with running(fake) as site:
            with closing(Client(Endpoint.parse(site.base_url), "a-token")) as client:
                await ask(client, Shape("fake", 4, 3), "x")
        return fake.heads[0]

    assert b"\r\nAuthorization: Bearer a-token\r\n" in asyncio.run(go())
    for url in ("http://example.com:80/v1", "https://127.0.0.1:1/v1", "http://127.0.0.1/v1"):
        with pytest.raises(ValueError, match="this machine only"):
            Endpoint.parse(url)


def test_nobody_listening_is_an_error_of_the_answer() -> None:
    client = Client(Endpoint("127.0.0.1", 1), None)
    answer = asyncio.run(ask(client, Shape("m", 4, 3), "x"))
    assert answer.status is None
    assert "ConnectionRefusedError" in (answer.error or "")
