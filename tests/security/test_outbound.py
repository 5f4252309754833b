"""Where a webhook may go: to the configured name at an address of the open internet, and on no detour."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from security.outbound import Outbound, Undelivered, url_fault


@dataclass
class Receiver:
    """A real HTTP server that says what it is told to, in order."""

    answers: list[bytes] = field(default_factory=list)
    heard: list[bytes] = field(default_factory=list)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
        length = int(lines[0].split(b":")[1]) if lines else 0
        self.heard.append(head + await reader.readexactly(length))
        answer = self.answers.pop(0) if self.answers else b"204 No Content"
        if answer:
            writer.write(b"HTTP/1.1 " + answer + b"\r\ncontent-length: 0\r\n\r\n")
            await writer.drain()
        else:
            await reader.read()  # never answers
        writer.close()


@asynccontextmanager
async def receiver(*answers: bytes) -> AsyncIterator[Receiver]:
    made = Receiver(list(answers))
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made


def resolving(*addresses: str) -> object:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    return resolve


def outbound(url: str, *addresses: str, **more: object) -> Outbound:
    return Outbound(url, resolve=resolving(*addresses), **more)  # type: ignore[arg-type]


REFUSED = (
    *("127.0.0.1", "127.8.8.8", "::1", "0.0.0.0", "::", "10.1.2.3", "172.16.0.1", "192.168.1.1"),
    *(
        "100.64.0.1",
        "169.254.169.254",
        "fe80::1",
        "fd00::1",
        "224.0.0.1",
        "ff02::1",
        "255.255.255.255",
    ),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "192.0.2.1"),
    "fe80::1%eth0",
)


@pytest.mark.parametrize("address", REFUSED)
def test_an_address_that_is_not_the_open_internets_is_refused(address: str) -> None:
    for addresses in ((address,), ("93.184.216.34", address)):
        to = outbound("https://hooks.example.com/x", *addresses)
        with pytest.raises(Undelivered, match="address_refused"):
            asyncio.run(to.post(b"{}", {}))


@pytest.mark.parametrize("address", ("10.1.2.3", "192.168.1.1", "fd00::1", "::ffff:10.0.0.1"))
def test_ones_own_network_is_allowed_by_configuration_alone(address: str) -> None:
    async def test() -> None:
        to = outbound("https://hooks.example.com/x", address, private=True)
        assert await to._address("hooks.example.com", 443, secure=True)

    asyncio.run(test())


@pytest.mark.parametrize(
    "address", ("127.0.0.1", "169.254.169.254", "fe80::1", "0.0.0.0", "224.0.0.1")
)
def test_this_machine_and_what_clouds_hide_there_is_never_ones_own_network(address: str) -> None:
    to = outbound("https://hooks.example.com/x", address, private=True)
    with pytest.raises(Undelivered, match="address_refused"):
        asyncio.run(to.post(b"{}", {}))


@pytest.mark.parametrize(
    ("url", "says"),
    (
        ("http://h/", "https"),
        ("ftp://h/", "https"),
        ("https://u:p@h/", "credentials"),
        ("https://h/#x", "fragment"),
        ("https:///x", "host"),
        ("https://h:99999/", "not a URL"),
    ),
)
def test_a_url_that_nothing_may_go_to(url: str, says: str) -> None:
    assert says in str(url_fault(url))
    with pytest.raises(ValueError, match=says):
        Outbound(url)


def test_the_connection_goes_to_the_address_that_was_judged_and_follows_nothing() -> None:
    """The name is asked once, so what it would say a second time does not matter."""

    async def test() -> None:
        async with receiver(b"200 OK", b"302 Found\r\nlocation: http://127.0.0.1:1/") as there:
            asked: list[str] = []

            async def resolve(host: str, port: int) -> Sequence[str]:
                asked.append(host)
                return ["127.0.0.1"]

            url = f"http://hooks.invalid:{there.port}/a?b=c"
            to = Outbound(url, loopback=True, resolve=resolve)
            assert await to.post(b"{}", {"webhook-id": "evt_1"}) == 200
            assert await to.post(b"{}", {}) == 302
            assert asked == ["hooks.invalid"] * 2
            first = there.heard[0].decode().lower()
            assert first.startswith("post /a?b=c http/1.1")
            assert f"host: hooks.invalid:{there.port}" in first
            assert "webhook-id: evt_1" in first
            assert len(there.heard) == 2

    asyncio.run(test())


def test_plain_http_goes_to_this_machine_only() -> None:
    to = outbound("http://h/", "93.184.216.34", loopback=True)
    with pytest.raises(Undelivered, match="address_refused"):
        asyncio.run(to.post(b"{}", {}))


def test_what_does_not_answer_or_is_not_there_is_not_delivered() -> None:
    async def test() -> None:
        async with receiver(b"") as there:
            url = f"http://127.0.0.1:{there.port}/"
            with pytest.raises(Undelivered):
                await Outbound(url, loopback=True, deadline_s=0.05).post(b"{}", {})
        with pytest.raises(Undelivered):
            await Outbound(url, loopback=True).post(b"{}", {})
        with pytest.raises(Undelivered, match="no_address"):
            await outbound("https://h/").post(b"{}", {})

    asyncio.run(test())
