"""A whole house for tests: real store, audit, authenticator and front around an echo executor.

`House` in a temporary folder, no socket, no process, no model.  `Caller` drives an ASGI app as a
server would: a body, a stream that can be left, and the wait for the handler's end.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Any

from starlette.types import ASGIApp

from executor.echo import EchoExecutor
from gateway.app import admin_app, public_app
from gateway.bootstrap import hear
from gateway.caching import CacheTerms
from gateway.caching_start import enforce, open_caches
from gateway.development import development_mode
from gateway.device_time import DeviceAccounts
from gateway.door import Door
from gateway.gate import Gate
from gateway.guard import FrontBounds, front
from gateway.house import Clock, Deployment, House, Prices, Timings
from gateway.idempotency import Digests
from gateway.live import Live
from gateway.metrics import Metrics
from gateway.metrics_book import BookGauges
from gateway.metrics_device import DeviceGauges
from gateway.metrics_door import DoorGauges
from gateway.promises import Promises
from gateway.recording import ensure_secrets
from gateway.registering import open_permission, registered_texts
from gateway.runs import open_runs
from gateway.service_classes import ServiceClasses
from gateway.stored import open_stored
from gateway.withdrawal import withdrawn
from policies.classes import ServiceClass
from policies.facts import Budget, Limits, Price
from policies.price import PriceList
from policies.shedding import TERMS
from security import api_keys
from security.audit_log import AuditLog
from security.audit_signer import AuditKeys
from security.authenticate import KEY_ISSUER, Authenticator
from security.dev_issuer import open_dev_issuer
from security.jwks_source import FileReader, JwksSource
from security.keyring import Purpose, open_keyring
from security.keyring_tenants import TenantSecrets
from security.proving import Proving
from security.pseudonyms import Pseudonyms
from security.tokens import IssuerRule
from tenants.book import Book
from tenants.config import DirectoryConfig, PlanConfig, TenantConfig
from tenants.device_book import DeviceBook
from tenants.directory import Directory
from tenants.finance import Finance
from tenants.journal import Journal
from tenants.pseudonyms import tombstone
from tenants.retention import Retention
from tenants.secrets import SecretTable
from tenants.store import Store
from tenants.tempo import MemoryTempo, Tempo
from tenants.tempo.proofs import MemoryProofs, Proofs
from tenants.till.front import Front

MODEL = "echo"
PATIENT = replace(TERMS, high_ms=float("inf"), low_ms=float("inf"))
"""Nobody is turned away because this machine is slow; turns are over as ever."""
PRICE = Price("echo@0", MODEL, 0, 200_000_000, 50_000_000, 200_000_000, 600_000_000)
PLAN = PlanConfig(
    models=(MODEL,),
    classes=("interactive", "batch"),
    limits=Limits(rpm=100_000, input_tpm=10_000_000, output_tpm=10_000_000, concurrent=1000, n=8),
    budget=Budget(1_000_000_000_000),
)


CLASSES = (ServiceClass("interactive"), ServiceClass("batch", weight=None, floor=0.05))

CACHES = {name: CacheTerms(quota=0.25, ttl_s=3600) for name in ("acme", "globex")}


@dataclass
class Time:
    """Times that a test can move on, each by itself."""

    ahead_ms: int = 0
    ahead_ns: int = 0

    def monotonic_ns(self) -> int:
        return time.monotonic_ns() + self.ahead_ns

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


@dataclass
class Inhouse:
    house: House
    echo: EchoExecutor
    public: ASGIApp
    admin: ASGIApp
    tokens: dict[str, str]
    time: Time
    logged: list[dict[str, object]]
    folder: Path
    store: Store
    switch: dict[str, bool] = field(default_factory=dict)

    def caller(self, name: str | None = "acme/alice") -> Caller:
        return Caller(self.public, None if name is None else self.tokens[name])

    def operator(self, name: str = "operator") -> Caller:
        return Caller(self.admin, self.tokens[name])

    @property
    def run(self) -> Path:
        """Below which executors open their sockets."""
        return self.folder / "run"

    async def booked(self) -> None:
        """Whatever the book was given is in it: who leaves while a hold is made does not wait for its end."""
        await self.store.write(lambda _: None)

    async def at_rest(self) -> None:
        """Nothing of any request is left anywhere; what has ended in the background is being kept."""
        async with asyncio.timeout(20):
            while self.house.stored.running and not len(self.house.live):
                await asyncio.sleep(0)
        assert len(self.house.live) == 0
        assert (self.house.door.gate.at_work, self.house.door.gate.waiting) == (0, 0)
        assert len(self.house.runs) == 0
        assert not self.house.stored.running
        assert self.house.tempo.leases == 0
        await self.booked()
        assert await self.house.book.open_holds() == 0
        gauges = self.echo.gauges
        assert (gauges.running, gauges.waiting) == (0, 0)
        assert gauges.blocks_free == gauges.blocks_total

    def audited(self) -> list[dict[str, Any]]:
        """The audit log's records, in order."""
        lines: list[dict[str, Any]] = []
        for path in sorted((self.folder / "audit").glob("*.jsonl")):
            lines += [json.loads(line) for line in path.read_text().splitlines()]
        return lines


@functools.cache
def empty_state() -> dict[str, bytes]:
    """The files of a house in which nothing has happened: keys, issuer, a database with its tables.
    Made once; making them anew for each of hundreds of houses would be most of the tests' time."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        keyring = open_keyring(folder / "root.key")
        open_dev_issuer(folder)
        store = Store.open(f"sqlite:///{folder}/lockgate.db")

        async def give_secrets() -> None:
            secrets = TenantSecrets(keyring, SecretTable(store), rng=os.urandom)
            await ensure_secrets(secrets, CACHES)

        with ThreadPoolExecutor(1) as aside:  # a loop runs here already
            aside.submit(asyncio.run, give_secrets()).result()
        store.close()
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def furnish(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in empty_state().items():
        path = folder / name
        if not path.exists():
            path.touch(mode=0o600)
            path.write_bytes(data)


@asynccontextmanager
async def inhouse(
    folder: Path,
    *,
    plan: PlanConfig = PLAN,
    echo: EchoExecutor | None = None,
    timings: Timings | None = None,
    bounds: FrontBounds | None = None,
    prices: tuple[Price, ...] = (PRICE,),
    classes: tuple[ServiceClass, ...] = CLASSES,
    caches: Mapping[str, CacheTerms] = CACHES,
    tempo: Tempo | None = None,
    till: Front | None = None,
    database_url: str | None = None,
    cors_origins: Sequence[str] = (),
    issuer: IssuerRule | None = None,
    urls: tuple[str, ...] = (),
    proofs: Proofs | None = None,
) -> AsyncIterator[Inhouse]:

    furnish(folder)
    clock_time = Time()
    clock = Clock(clock_time.wall_ms, clock_time.monotonic_ns)
    keyring = open_keyring(folder / "root.key")
    development = development_mode(folder, now_s=clock.wall_ms() // 1000)
    echo = echo or EchoExecutor()
    service_classes = ServiceClasses()
    service_classes.enforce({each.name: each for each in classes}, [echo])
    logged: list[dict[str, object]] = []
    switch = {"draining": False}
    async with AsyncExitStack() as stack:
        audit = AuditLog.open(
            [folder / "audit"], keys=AuditKeys.of(keyring), clock_ms=clock.wall_ms
        )
        stack.push_async_callback(audit.aclose)
        store = Store.open(database_url or f"sqlite:///{folder}/lockgate.db")
        stack.push_async_callback(asyncio.to_thread, store.close)
        owner = f"test-{token_hex(4)}"
        book = Book(
            store,
            owner=owner,
            clock_ms=clock.wall_ms,
            journal=Journal(folder / "unbooked.jsonl"),
            till=till,
        )
        await book.publish_prices(prices)
        await book.recover()
        directory = Directory(
            DirectoryConfig(
                plans={"pro": plan},
                tenants={"acme": TenantConfig(plan="pro"), "globex": TenantConfig(plan="pro")},
            ),
            store,
            clock_s=lambda: clock.wall_ms() / 1000,
            tombstone=partial(tombstone, keyring.forgotten()),
        )
        await directory.load()
        secrets_of = TenantSecrets(keyring, SecretTable(store), rng=os.urandom)
        await secrets_of.load()
        await ensure_secrets(secrets_of, directory.tenants())
        pepper = keyring.derive(Purpose.API_KEYS)
        source = JwksSource(FileReader(development.jwks_path), clock=time.monotonic)
        permission = await open_permission(store, directory, clock)
        live = Live(partial(withdrawn, directory, permission))
        log = lambda event, **fields: logged.append({"event": event, **fields})  # noqa: E731 — given twice
        found = open_caches(keyring, secrets_of, permission)
        deployment = Deployment(MODEL, (), echo, "invariant", 0)
        accounts = DeviceAccounts(DeviceBook(store, owner=owner, clock_ms=clock.wall_ms), log)
        accounts.follow([(MODEL, echo)])
        registered = registered_texts(
            permission, keyring, secrets_of, found.keys, live, [deployment], log
        )
        stack.callback(registered.close)
        times = timings or Timings()
        seals = registered.seals
        runs = await open_runs(store, owner, clock.wall_ms, seals, secrets_of, times.linger_ms, log)
        stack.push_async_callback(runs.aclose)
        stored = await open_stored(store, owner, clock.wall_ms, seals, secrets_of, log)
        stack.push_async_callback(stored.aclose)
        house = House(
            clock=clock,
            timings=times,
            authenticator=Authenticator(
                [(issuer or development.rule, source)],
                keys=directory,
                revocations=directory,
                pepper=pepper,
                clock_s=lambda: clock.wall_ms() / 1000,
                proving=Proving(
                    spent=MemoryProofs(lambda: clock.monotonic_ns() // 1_000_000, 95_000)
                    if proofs is None
                    else proofs,
                    digest=keyring.proofs(),
                    urls=urls,
                ),
            ),
            directory=directory,
            prices=Prices(PriceList(prices)),
            tempo=tempo or MemoryTempo(lambda: time.monotonic_ns() // 1_000_000),
            book=book,
            finance=Finance(store, clock_ms=clock.wall_ms),
            retention=Retention(store, keyring.forgotten(), clock.wall_ms, os.urandom, KEY_ISSUER),
            deployments={MODEL: deployment},
            devices=accounts,
            audit=audit,
            caches=found,
            classes=service_classes,
            promises=Promises(clock.wall_ms),
            live=live,
            registered=registered,
            metrics=Metrics(
                gauges=lambda: {MODEL: echo.gauges},
                cards=lambda: {MODEL: echo.card},
                vllm_names=True,
            ),
            log=log,
            pseudonym=keyring.pseudonymiser(),
            secrets=secrets_of,
            names=Pseudonyms(secrets_of.current, keyring.pseudonymiser()),
            retry_key=keyring.retry_keys(),
            digests=Digests.of(keyring),
            runs=runs,
            stored=stored,
            mint_key=lambda: api_keys.mint(os.urandom, pepper),
            draining=lambda: switch["draining"],
            door=Door(gate=Gate(lambda: time.monotonic() * 1000, PATIENT)),
        )
        house.metrics.registry.register(DeviceGauges(house.metrics.gauges))
        house.metrics.registry.register(DoorGauges(house.door))
        book = house.book
        house.metrics.registry.register(
            BookGauges(lambda: book.journalled, lambda: book.clock_skew_ms)
        )
        stack.callback(directory.subscribe(partial(hear, house)))
        await enforce(house, caches)
        seeds, ids = count(1), count(1)

        def behind_front(
            app: ASGIApp, origins: Sequence[str] = (), door: Door | None = None
        ) -> ASGIApp:
            return front(
                app,
                hosts=["test"],
                origins=origins,
                mint=lambda: f"req_{next(ids):024x}",
                report=lambda request_id, why: logged.append({"event": "failed", "error": why}),
                stalled=lambda request_id: logged.append({"event": "stalled"}),
                bounds=bounds,
                door=door,
            )

        yield Inhouse(
            house,
            echo,
            behind_front(public_app(house, lambda: next(seeds)), cors_origins, house.door),
            behind_front(admin_app(house)),
            development.tokens,
            clock_time,
            logged,
            folder,
            store,
            switch,
        )


@dataclass(frozen=True)
class Answered:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        assert self.status >= 400, self.body
        error = self.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return dict(error)

    def events(self) -> list[Any]:
        """The data events of a stream; "[DONE]" as that text."""
        return [
            data if data == "[DONE]" else json.loads(data)
            for block in self.body.decode().split("\n\n")
            if block.startswith("data: ")
            for data in (block.removeprefix("data: "),)
        ]

    def comments(self) -> list[str]:
        return [line for line in self.body.decode().split("\n\n") if line.startswith(":")]


@dataclass
class Exchange:
    """A request in flight.  `leave` is the client's going away."""

    task: asyncio.Task[None]
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    complete: bool = False

    def leave(self) -> None:
        self.gone.set()

    async def until(self, seen: Callable[[Exchange], bool]) -> None:
        async with asyncio.timeout(60):
            while not seen(self):
                assert not self.task.done(), "the handler ended first"
                self.changed.clear()
                await self.changed.wait()

    async def end(self) -> Answered:
        async with asyncio.timeout(60):
            await self.task
        return Answered(self.status, self.headers, b"".join(self.parts))


@dataclass(frozen=True)
class Caller:
    """One client.  `credential` None sends none."""

    app: ASGIApp
    credential: str | None
    more: tuple[tuple[bytes, bytes], ...] = ()

    def with_headers(self, **headers: str) -> Caller:
        pairs = tuple((k.replace("_", "-").encode(), v.encode()) for k, v in headers.items())
        return replace(self, more=pairs)

    def start(self, method: str, path: str, body: object = None, query: str = "") -> Exchange:
        raw = body if isinstance(body, bytes) else b"" if body is None else _dump(body)
        headers = [(b"host", b"test"), *self.more]
        if self.credential is not None:
            headers.append((b"authorization", b"Bearer " + self.credential.encode()))
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("test", 80),
        }
        sent = False
        exchange: Exchange

        async def receive() -> Mapping[str, Any]:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": raw, "more_body": False}
            await exchange.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Mapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                exchange.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            else:
                exchange.parts.append(message.get("body", b""))
                exchange.complete = not message.get("more_body", False)
            exchange.changed.set()

        async def run() -> None:
            await asyncio.sleep(0)  # until `exchange` exists
            await self.app(scope, receive, send)  # type: ignore[arg-type]

        exchange = Exchange(asyncio.create_task(run()))
        return exchange

    async def get(self, path: str, query: str = "") -> Answered:
        return await self.start("GET", path, query=query).end()

    async def post(self, path: str, body: object) -> Answered:
        return await self.start("POST", path, body).end()

    async def chat(self, content: str = "hello", **fields: object) -> Answered:
        return await self.post(CHAT, chat_body(content, **fields))


CHAT = "/v1/chat/completions"


def chat_body(content: str = "hello", **fields: object) -> dict[str, object]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}


def _dump(body: object) -> bytes:
    return json.dumps(body).encode()
