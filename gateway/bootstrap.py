"""The composition root: settings in, a running server out.  Everything is made here, once, and
handed on as arguments; nothing else in the house knows how its neighbours are built.

Order of starting: keys, logs, audit, book (recovered before anything is served), executors (they
load while the listeners already answer `/ready` with 503), listeners.  Stopping is the reverse.
"""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

from gateway import listen, logs
from gateway.app import admin_app, public_app
from gateway.assembly import (
    authenticator,
    cache_terms,
    directory_config,
    issuer_rules,
    retention_of,
)
from gateway.caching_start import enforce, open_caches
from gateway.development import (
    Development,
    development_mode,
    refuse_development_state,
)
from gateway.device_time import DeviceAccounts
from gateway.door import Door
from gateway.draining import Switch, drain
from gateway.executors_start import deploy
from gateway.forgotten import forget_deleted
from gateway.guard import front
from gateway.house import Clock, House, Prices, Timings
from gateway.housekeeping import keep_house, keep_sealed
from gateway.idempotency import Digests
from gateway.listen import Bound, Listener, Reports
from gateway.live import Live
from gateway.metrics import Metrics
from gateway.metrics_book import BookGauges
from gateway.metrics_device import DeviceGauges
from gateway.metrics_door import ConnectionGauges, DoorGauges
from gateway.metrics_registered import WarmthGauges
from gateway.promises import Promises
from gateway.recording import AuditGauges, ensure_secrets, open_audit
from gateway.refused_start import REFUSED
from gateway.registering import open_permission, registered_texts
from gateway.reload import reload, tell_deleted
from gateway.runs import open_runs
from gateway.secrets_elsewhere import hear_secrets
from gateway.service_classes import ServiceClasses
from gateway.settings import Mode, Settings, facts
from gateway.stored import open_stored
from gateway.tempo_start import follow, gauges_of, open_tempo, others_write, tell_unused
from gateway.warming import Warming
from gateway.webhooks_start import telling
from gateway.withdrawal import withdrawn
from policies.price import PriceList
from security import api_keys
from security.audit import AuditEvent
from security.keyring import Purpose, open_keyring
from security.keyring_tenants import TenantSecrets
from security.pseudonyms import Pseudonyms
from security.undumped import forbid_dumps
from tenants.book import Book
from tenants.device_book import DeviceBook
from tenants.directory import Change, Directory
from tenants.finance import Finance
from tenants.journal import Journal
from tenants.pseudonyms import tombstone
from tenants.secrets import SecretTable
from tenants.store import Store

LAST_WORDS_S = 5.0
"""For what is still being answered when the listeners close."""


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT.  The process's exit status."""
    forbid_dumps()
    try:
        with asyncio.Runner(loop_factory=listen.loop_factory()) as runner:
            runner.run(_serve(settings))
    except REFUSED as why:
        sys.stderr.write(f"lockgate: {why}\n")
        return 1
    return 0


async def _serve(settings: Settings) -> None:
    switch = Switch()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, switch.turn)
    async with opened(settings, switch.draining.is_set) as opened_house:
        house, development = opened_house
        log = house.log
        logs.watch(loop, log)
        hangups = asyncio.Event()
        loop.add_signal_handler(signal.SIGHUP, hangups.set)
        rereading = asyncio.create_task(reread(house, settings, hangups))
        draining = asyncio.create_task(drain(house, switch, settings.listen.drain_s))

        def ready(bound: Sequence[Bound]) -> None:
            for each in bound:
                log("listening", listener=each.name, host=each.host, port=each.port)
            house.metrics.registry.register(ConnectionGauges(bound))
            if development is not None:
                development.announce(bound, models=list(house.deployments))

        gc.collect()
        gc.freeze()  # the house is no garbage: full rounds come sooner, and look at requests alone
        await listen.serve(
            listeners(settings, house),
            draining=switch.draining,
            shutdown=switch.shutdown,
            drain_s=LAST_WORDS_S,
            on_ready=ready,
            mint=request_ids(),
            reports=Reports(
                refused=lambda fault: log("wire.refused", reason=fault.value),
                failed=lambda why: log("connection.failed", error=why),
            ),
        )
        await _cancelled(rereading)
        await _cancelled(draining)


async def reread(house: House, settings: Settings, hangups: asyncio.Event) -> None:
    """On each SIGHUP, one after the other."""
    while True:
        await hangups.wait()
        hangups.clear()
        try:
            settings = await reload(house, settings, lambda: house.clock.wall_ms() // 1000)
        except Exception as why:  # noqa: BLE001 — what is in force stays, and the next one is heard
            house.log("configuration.refused", error=why)


def listeners(settings: Settings, house: House) -> list[Listener]:
    """The public and the admin listener, each behind the whole front."""
    listen_on = settings.listen
    hosts = list(listen_on.hosts)
    mint = request_ids()

    def report(request_id: str, why: Exception) -> None:
        house.log("handler.failed", request_id=request_id, error=why)

    def stalled(request_id: str) -> None:
        house.log("reader.stalled", request_id=request_id)

    return [
        Listener(
            "public",
            front(
                public_app(house, draw_seed, docs=listen_on.docs),
                hosts=hosts,
                origins=listen_on.cors_origins,
                mint=mint,
                report=report,
                stalled=stalled,
                door=house.door,
            ),
            str(listen_on.public),
            house.door,
        ),
        Listener(
            "admin",
            front(
                admin_app(house),
                hosts=[*hosts, "127.0.0.1", "localhost", "[::1]", listen_on.admin.host],
                origins=(),
                mint=mint,
                report=report,
                stalled=stalled,
            ),
            str(listen_on.admin),
        ),
    ]


@asynccontextmanager
async def opened(
    settings: Settings, draining: Callable[[], bool], timings: Timings | None = None
) -> AsyncIterator[tuple[House, Development | None]]:
    """Everything but the listeners."""
    state = settings.state.dir
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    clock = Clock(lambda: time.time_ns() // 1_000_000, time.monotonic_ns)
    refuse_development_state(settings)
    keyring = open_keyring(settings.state.root_key_file)
    log = logs.configure(development=settings.mode is Mode.DEVELOPMENT)
    development = None
    if settings.mode is Mode.DEVELOPMENT:
        development = development_mode(state, now_s=clock.wall_ms() // 1000)
    async with AsyncExitStack() as stack:
        audit = await asyncio.to_thread(open_audit, settings, keyring, clock.wall_ms, log)
        stack.push_async_callback(audit.aclose)
        roots = keyring.root_ids  # so that the log shows when one came or went
        await audit.append(
            AuditEvent(kind="gateway.started", outcome="done", target=roots[-1], count=len(roots))
        )
        store = await asyncio.to_thread(Store.open, settings.state.database_url)
        stack.push_async_callback(asyncio.to_thread, store.close)
        owner = secrets.token_hex(8)
        # A book under another root key is refused before anything in it is charged or corrected.
        secrets_of = TenantSecrets(keyring, SecretTable(store), rng=os.urandom)
        await secrets_of.load()
        tempo, epochs, till, proofs = await stack.enter_async_context(
            open_tempo(
                settings,
                clock_ms=lambda: clock.monotonic_ns() // 1_000_000,
                name=keyring.pseudonymiser(),
                log=log,
            )
        )
        book = Book(
            store,
            owner=owner,
            clock_ms=clock.wall_ms,
            journal=Journal(state / "unbooked.jsonl"),
            till=till,
        )
        prices = PriceList(tuple(facts.price(each) for each in settings.prices))
        await book.publish_prices(prices.prices)
        while await book.book_journal():
            pass
        recovered = await book.recover()
        log(
            "book.recovered",
            voided_count=len(recovered.voided),
            expired_count=len(recovered.expired),
        )
        directory = Directory(
            directory_config(settings),
            store,
            clock_s=lambda: clock.wall_ms() / 1000,
            epochs=epochs,
            tombstone=partial(tombstone, keyring.forgotten()),
        )
        await directory.load()
        tell_deleted(directory, log)
        tell_unused(directory, till, log)
        await ensure_secrets(secrets_of, directory.tenants())
        rules = issuer_rules(
            settings, development, failed=lambda reason: log("jwks.failed", reason=reason)
        )
        for _, source in rules:
            stack.push_async_callback(source.aclose)
        device_book = DeviceBook(store, owner=owner, clock_ms=clock.wall_ms)
        accounts = DeviceAccounts(device_book, log)
        stack.push_async_callback(accounts.last_words)
        deployments = await deploy(settings, stack, log)
        accounts.follow((each.name, each.executor) for each in deployments)
        classes = ServiceClasses()
        classes.enforce(
            facts.service_classes(settings.classes), (each.executor for each in deployments)
        )
        permission = await open_permission(store, directory, clock, epochs.changed)
        live = Live(partial(withdrawn, directory, permission))
        caches = open_caches(keyring, secrets_of, permission)
        registered = registered_texts(
            permission, keyring, secrets_of, caches.keys, live, deployments, log
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
            authenticator=authenticator(
                settings, rules, keyring, directory, proofs, lambda: clock.wall_ms() / 1000
            ),
            directory=directory,
            prices=Prices(prices),
            tempo=tempo,
            book=book,
            finance=Finance(store, clock_ms=clock.wall_ms),
            retention=retention_of(settings, store, keyring, clock.wall_ms),
            deployments={name: each for each in deployments for name in (each.name, *each.aliases)},
            devices=accounts,
            audit=audit,
            live=live,
            metrics=Metrics(
                gauges=lambda: {each.name: each.executor.gauges for each in deployments},
                cards=lambda: {each.name: each.executor.card for each in deployments},
                vllm_names=settings.vllm_metrics,
            ),
            caches=caches,
            registered=registered,
            classes=classes,
            promises=Promises(clock.wall_ms),
            log=log,
            pseudonym=keyring.pseudonymiser(),
            secrets=secrets_of,
            names=Pseudonyms(secrets_of.current, keyring.pseudonymiser()),
            retry_key=keyring.retry_keys(),
            digests=Digests.of(keyring),
            runs=runs,
            stored=stored,
            mint_key=lambda: api_keys.mint(os.urandom, keyring.derive(Purpose.API_KEYS)),
            draining=draining,
            door=Door(request_ids(), frozenset(settings.listen.cors_origins), log),
        )
        house.metrics.registry.register(AuditGauges(audit.sinks))
        house.metrics.registry.register(WarmthGauges(house.warmth.counts))
        house.metrics.registry.register(
            BookGauges(lambda: book.journalled, lambda: book.clock_skew_ms)
        )
        house.metrics.registry.register(DeviceGauges(house.metrics.gauges))
        house.metrics.registry.register(DoorGauges(house.door))
        for gauges in gauges_of(tempo, till):
            house.metrics.registry.register(gauges)
        stack.callback(directory.subscribe(partial(hear, house)))
        if others_write(settings):
            epochs.follow(directory.refresh)
            epochs.follow(registered.hear)
            epochs.follow(partial(hear_secrets, house))
            _begun(stack, follow(epochs, log))
        await enforce(house, cache_terms(settings))
        _begun(stack, keep_house(house, state / "run"))
        _begun(stack, house.door.keep())
        _begun(stack, accounts.keep())
        await stack.enter_async_context(telling(house, settings))
        _begun(stack, keep_sealed(house))
        _begun(stack, Warming(request_ids()).keep(house))
        yield house, development


def hear(house: House, change: Change) -> None:
    """Of every change of the directory."""
    withdraw(house, change)
    forget_deleted(house, change)


def withdraw(house: House, change: Change) -> None:
    """After any change of authority: every running request is asked whether it still has its own."""
    if struck := house.live.withdraw():
        house.log("authority.withdrawn", kind=change.kind.value, count=len(struck))


def _begun(stack: AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
    """In the background, until the stack is unwound."""
    stack.push_async_callback(_cancelled, asyncio.create_task(work))


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def request_ids() -> Callable[[], str]:
    """Unguessable, since an id is enough to be told that a request is not yours."""
    return lambda: f"req_{secrets.token_hex(12)}"


def draw_seed() -> int:
    """A seed for a client that named none, within int64."""
    return secrets.randbits(62)
