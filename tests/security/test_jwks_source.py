"""J18 and its kin: a key set that cannot be had, comes too late, too large, or from elsewhere.

The unit tests drive `JwksSource` with a reader and a clock of their own; the last part fetches from
a server on loopback that misbehaves.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from security.failures import AuthUnavailable
from security.jwks import SET_BYTES_MAX
from security.jwks_source import (
    CannotRead,
    FileReader,
    JwksSource,
    UrlReader,
    open_source,
    url_fault,
)
from tests.security.helpers import Clock, run
from tests.security.kit import ec_jwk, ed_jwk, key_set


@dataclass
class Scripted:
    """A reader that answers what it is told, and counts."""

    answer: bytes | Exception = b""
    background: bool = True
    reads: int = 0
    gate: asyncio.Event | None = None
    started: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self) -> bytes:
        self.reads += 1
        self.started.set()
        if self.gate is not None:
            await self.gate.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def source(reader: Scripted, clock: Clock, max_stale_s: float = 3600) -> JwksSource:
    return JwksSource(reader, clock=clock, max_stale_s=max_stale_s, refresh_s=300, retry_s=10)


async def settle(keys: JwksSource) -> None:
    """Let a background attempt end."""
    if keys._attempt is not None:
        await asyncio.wait([keys._attempt])


def test_read_once_then_kept() -> None:
    async def work() -> None:
        reader, clock = Scripted(key_set()), Clock()
        keys = source(reader, clock)
        for _ in range(5):
            assert await keys.key("ec", "ES256") is not None
        assert reader.reads == 1

    run(work())


def test_a_thousand_invented_names_cause_one_read_in_retry_s() -> None:
    async def work() -> None:
        reader, clock = Scripted(key_set()), Clock()
        keys = source(reader, clock)
        for i in range(1000):
            assert await keys.key(f"invented-{i}", "ES256") is None
        assert reader.reads == 1
        clock.now_s += 10
        await asyncio.gather(*(keys.key(f"more-{i}", "ES256") for i in range(100)))
        assert reader.reads == 2

    run(work())


def test_all_who_wait_share_one_attempt_and_a_cancelled_one_spoils_nothing() -> None:
    async def work() -> None:
        reader, clock = Scripted(key_set(), gate=asyncio.Event()), Clock()
        keys = source(reader, clock)
        waiting = [asyncio.create_task(keys.key("ec", "ES256")) for _ in range(20)]
        await reader.started.wait()
        waiting[0].cancel()
        assert reader.gate is not None
        reader.gate.set()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert all(key is not None and not isinstance(key, BaseException) for key in found[1:])
        assert reader.reads == 1

    run(work())


def test_a_new_key_is_found_when_it_is_first_asked_for() -> None:
    async def work() -> None:
        reader, clock = Scripted(key_set(ec_jwk())), Clock()
        keys = source(reader, clock)
        await keys.key("ec", "ES256")
        reader.answer = key_set(ec_jwk(), ed_jwk())
        clock.now_s += 11
        assert await keys.key("ed", "EdDSA") is not None

    run(work())


def test_a_set_past_refresh_serves_while_it_is_read_again_and_a_removed_key_goes() -> None:
    async def work() -> None:
        reader, clock = Scripted(key_set(ec_jwk(), ed_jwk())), Clock()
        keys = source(reader, clock)
        await keys.key("ec", "ES256")
        reader.answer = key_set(ed_jwk())
        clock.now_s += 301
        assert await keys.key("ec", "ES256") is not None
        await settle(keys)
        assert await keys.key("ec", "ES256") is None
        assert reader.reads == 2

    run(work())


def test_j18_down_keeps_the_last_good_set_until_max_stale_then_nobody_passes() -> None:
    async def work() -> None:
        told: list[str] = []
        reader, clock = Scripted(key_set()), Clock()
        keys = JwksSource(reader, clock=clock, max_stale_s=3600, on_failure=told.append)
        assert await keys.warm()
        reader.answer = CannotRead("down")
        clock.now_s += 3599
        assert await keys.key("ec", "ES256") is not None
        await settle(keys)
        assert told == ["down"]
        clock.now_s += 1
        with pytest.raises(AuthUnavailable):
            await keys.key("ec", "ES256")
        reader.answer = key_set()
        clock.now_s += 10
        assert await keys.key("ec", "ES256") is not None

    run(work())


def test_staleness_counts_from_the_start_of_the_read() -> None:
    async def work() -> None:
        reader, clock = Scripted(key_set(), gate=asyncio.Event()), Clock()
        keys = source(reader, clock, max_stale_s=60)
        first = asyncio.create_task(keys.warm())
        await reader.started.wait()
        clock.now_s += 60
        assert reader.gate is not None
        reader.gate.set()
        await first
        reader.answer = CannotRead("down")
        with pytest.raises(AuthUnavailable):
            await keys.key("ec", "ES256")

    run(work())


@pytest.mark.parametrize("bad", (b"", b"{}", key_set(ec_jwk(d="AQAB")), CannotRead("down")))
def test_j18_no_set_at_all(bad: bytes | Exception) -> None:
    async def work() -> None:
        reader, clock = Scripted(bad), Clock()
        keys = source(reader, clock)
        assert not await keys.warm()
        for _ in range(10):
            with pytest.raises(AuthUnavailable):
                await keys.key("ec", "ES256")
        assert reader.reads == 1  # not hammered either
        clock.now_s += 1
        with pytest.raises(AuthUnavailable):
            await keys.key("ec", "ES256")
        assert reader.reads == 2

    run(work())


def test_an_unknown_name_while_the_issuer_is_down_is_not_known_to_be_wrong() -> None:
    async def work() -> None:
        reader, clock = Scripted(key_set()), Clock()
        keys = source(reader, clock)
        await keys.warm()
        reader.answer = CannotRead("down")
        clock.now_s += 11
        with pytest.raises(AuthUnavailable):
            await keys.key("new", "ES256")
        assert await keys.key("ec", "ES256") is not None

    run(work())


def test_our_own_mistake_in_a_reader_fails_closed_and_is_told() -> None:
    async def work() -> None:
        told: list[str] = []
        reader = Scripted(ZeroDivisionError())
        keys = JwksSource(reader, clock=Clock(), on_failure=told.append)
        with pytest.raises(AuthUnavailable):
            await keys.key("ec", "ES256")
        await settle(keys)
        assert told == ["reading keys failed: ZeroDivisionError"]

    run(work())


def test_closing_gives_up_an_attempt_under_way() -> None:
    async def work() -> None:
        reader = Scripted(key_set(), gate=asyncio.Event())
        keys = source(reader, Clock())
        await keys.aclose()
        waiting = asyncio.create_task(keys.key("ec", "ES256"))
        await reader.started.wait()
        await keys.aclose()
        with pytest.raises(AuthUnavailable):
            await waiting

    run(work())


# --- files


def test_a_file_is_read_again_when_it_changes_whatever_its_time_stamp(tmp_path: Path) -> None:
    async def work() -> None:
        path, clock = tmp_path / "jwks.json", Clock()
        path.write_bytes(key_set(ec_jwk(), ed_jwk()))
        keys = open_source(str(path), max_stale_s=60, clock=clock)
        assert await keys.key("ec", "ES256") is not None
        path.write_bytes(key_set(ed_jwk()))
        clock.now_s += 1
        assert await keys.key("ec", "ES256") is None  # at once, not after one more answer
        path.write_bytes(b"half a fi")
        clock.now_s += 1
        assert await keys.key("ed", "EdDSA") is not None
        clock.now_s += 1
        assert await keys.key("ed", "EdDSA") is not None
        clock.now_s += 60  # a bad file that stays does not confirm the good one
        with pytest.raises(AuthUnavailable):
            await keys.key("ed", "EdDSA")
        path.unlink()
        clock.now_s += 1
        with pytest.raises(AuthUnavailable):
            await keys.key("ed", "EdDSA")

    run(work())


def test_a_file_is_looked_at_each_second_however_it_was_wired(tmp_path: Path) -> None:
    async def work() -> None:
        path, clock = tmp_path / "jwks.json", Clock()
        path.write_bytes(key_set(ec_jwk(), ed_jwk()))
        keys = JwksSource(FileReader(path), clock=clock)
        await keys.warm()
        path.write_bytes(key_set(ed_jwk()))
        clock.now_s += 1
        assert await keys.key("ec", "ES256") is None

    run(work())


def test_a_file_message_names_the_file(tmp_path: Path) -> None:
    async def work() -> None:
        with pytest.raises(CannotRead, match="absent"):
            await FileReader(tmp_path / "absent").read()

    run(work())


# --- addresses


@pytest.mark.parametrize(
    "url", ("https://idp.test/jwks", "https://10.0.0.1:8443/x", "http://127.0.0.1:80/j", "http://[::1]/", "http://localhost:9/j")
)  # fmt: skip
def test_addresses_that_may_serve(url: str) -> None:
    assert url_fault(url) is None


@pytest.mark.parametrize(
    "url",
    (
        *(
            "http://idp.test/",
            "http://10.0.0.1/",
            "http://169.254.169.254/latest",
            "http://0.0.0.0/",
        ),
        *("file:///etc/passwd", "ftp://idp.test/", "https://", "https:///x", "gopher://127.0.0.1/"),
        *("https://user:secret@idp.test/", "https://user@idp.test/", "https://idp.test/#f"),
        *("http://127.0.0.1.evil.test/", "http://localhost.evil.test/", "https://idp.test:x/"),
        *("https://[::1", "http://2130706433/", "unix://127.0.0.1/"),
    ),
)
def test_addresses_that_may_not(url: str) -> None:
    assert url_fault(url) is not None
    with pytest.raises(ValueError, match="jwks"):
        open_source(url, max_stale_s=60, clock=Clock())


def test_https_verifies_certificates_and_ignores_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent")
    reader = UrlReader("https://idp.test/jwks")
    assert reader.tls.check_hostname
    assert reader.tls.verify_mode.name == "CERT_REQUIRED"


# --- a server that misbehaves


@dataclass
class Server:
    url: str
    requests: list[bytes]


@asynccontextmanager
async def served(*pieces: bytes, hang: bool = False) -> AsyncIterator[Server]:
    """Send `pieces` raw; `hang` leaves the connection open after them."""
    requests: list[bytes] = []
    over = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            if hang:
                await over.wait()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield Server(f"http://{host}:{port}/jwks", requests)
    finally:
        over.set()
        server.close()
        await server.wait_closed()


def ok(body: bytes, extra: bytes = b"") -> bytes:
    length = b"content-length: %d\r\n" % len(body)
    return b"HTTP/1.1 200 OK\r\n" + length + extra + b"connection: close\r\n\r\n" + body


def fetched(
    *pieces: bytes, hang: bool = False, deadline_s: float = 3.0
) -> tuple[bytes, list[bytes]]:
    async def work() -> tuple[bytes, list[bytes]]:
        async with served(*pieces, hang=hang) as server:
            return await UrlReader(server.url, deadline_s).read(), server.requests

    return run(work())


def test_a_fetch() -> None:
    body, requests = fetched(ok(key_set()))
    assert body == key_set()
    head = requests[0].lower()
    assert b"accept-encoding: identity" in head
    assert b"cookie" not in head
    assert b"authorization" not in head


def test_j18_a_redirect_inward_is_not_followed() -> None:
    async def work() -> None:
        async with served(ok(key_set())) as inward:
            to = inward.url.encode()
            head = b"HTTP/1.1 302 Found\r\nlocation: " + to + b"\r\ncontent-length: 0\r\n\r\n"
            async with served(head) as server:
                with pytest.raises(CannotRead, match="302"):
                    await UrlReader(server.url).read()
            assert inward.requests == []

    run(work())


@pytest.mark.parametrize(
    "pieces",
    (
        (
            b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/inward\r\ncontent-length: 0\r\n\r\n",
        ),
        (b"HTTP/1.1 307 T\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n",),
        (b"HTTP/1.1 204 No Content\r\n\r\n",),
        (b"HTTP/1.1 206 Partial\r\ncontent-length: 2\r\n\r\n{}",),
        (b"HTTP/1.1 500 X\r\ncontent-length: 2\r\n\r\n{}",),
        (b"nonsense\r\n\r\n",),
        (b"",),
        (ok(gzip.compress(key_set()), b"content-encoding: gzip\r\n"),),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{}",),  # cut short
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10485760\r\n\r\n", *[b"x" * 65536] * 8),
        (b"HTTP/1.1 200 OK\r\n\r\n", *[b"x" * 65536] * 8),  # no length at all
    ),
)
def test_j18_answers_that_are_not_taken(pieces: tuple[bytes, ...]) -> None:
    with pytest.raises(CannotRead):
        fetched(*pieces)


def test_j18_the_bound_is_on_bytes_received() -> None:
    assert len(fetched(ok(b" " * SET_BYTES_MAX))[0]) == SET_BYTES_MAX
    with pytest.raises(CannotRead, match="more than"):
        fetched(ok(b" " * (SET_BYTES_MAX + 1)))


@pytest.mark.parametrize(
    "pieces", ((), (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{",), (b"HTTP/1.1 200 OK\r\n",))
)
def test_j18_slow_at_any_point_meets_the_deadline(pieces: tuple[bytes, ...]) -> None:
    with pytest.raises(CannotRead, match="Timeout"):
        fetched(*pieces, hang=True, deadline_s=0.05)


def test_j18_nobody_there() -> None:
    async def work() -> None:
        async with served() as server:
            url = server.url
        with pytest.raises(CannotRead, match="ConnectError"):
            await UrlReader(url).read()

    run(work())


def test_no_proxy_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    assert fetched(ok(key_set()))[0] == key_set()
