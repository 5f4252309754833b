"""The work that runs here by an `Idempotency-Key`: begun once, read by many, ended once.

Theory of operation.  Work by a key is a task of its own, and whoever asked is its first reader.  The task claims the
key, durably, before it does anything; where the key is taken it ends with what is so, and all who wait hear that.
Else it works into a `Tape`, and when it is over its key is kept, closed or freed, durably, before its last reader
hears its last byte.  What nobody can know (a database that is gone, a gateway that died) is left to the claim's
lease, after which the book says whether anything was billed.

Which of it is decided is `policies.idempotency`'s.  Refuses to know: HTTP beyond ASGI messages, routes, who may.
Source: DESIGN.md, settled 6; MONEY.md §1 (invariant 14).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from gateway.errors import ApiError
from gateway.kept import Basis, Kept, opened, sealed
from gateway.middleware.wire import ClientGone
from gateway.tape import Tape
from policies.idempotency import Ending, Verdict, Work, ending
from security.keyring_tenants import SecretGone, TenantSecrets
from security.seal import SealBroken, Seals
from tenants.idempotency import Claim, Found, IdempotencyKeys
from tenants.store import Store, StoreUnavailable

RESULT_BYTES_MAX: Final = 2 * 2**20
"""Of one answer as it is sent; a larger one is not kept, and its key is closed."""
COUNTED_EVERY: Final = 12
"""In sweeps: once a minute."""
UNKNOWN_CODES: Final = frozenset({"book_down", "store_unavailable", "registry_down"})
"""Refusals after which nobody knows what was kept."""


@dataclass(slots=True)
class Doing:
    """What work tells of itself, and what it is told.  `claim`: of the key by which it is done.  `spent`: something was
    billed; None: nobody knows.  `cut`: its answer ended in an error.  `stopped`: somebody asked for its end by its key.
    `secret`: its answer is shown once, and kept nowhere.  `fault`: how a stream of its says that it ends here.
    `refusal`: the words of a refusal of its, by the id of the request."""

    basis: Basis = field(default_factory=Basis)
    claim: str | None = None
    spent: bool | None = False
    cut: bool = False
    stopped: bool = False
    secret: bool = False
    fault: Callable[[ApiError], bytes] | None = None
    refusal: Callable[[ApiError, str], bytes] = lambda why, _: why.json()


Do = Callable[[Tape, Doing], Awaitable[None]]


@dataclass(slots=True)
class Run:
    """`decided` once its claim is."""

    claim: Claim
    tape: Tape
    stream: bool
    decided: asyncio.Future[Found]
    doing: Doing = field(default_factory=Doing)
    task: asyncio.Task[None] | None = None

    async def heard(self) -> Found:
        """What its claim says.  StoreUnavailable."""
        return await asyncio.shield(self.decided)

    async def over(self) -> None:
        """Until its key can be asked for again."""
        assert self.task is not None
        await asyncio.wait([self.task])


class Runs:
    """One for a gateway."""

    def __init__(
        self,
        keys: IdempotencyKeys,
        seals: Seals,
        secrets: TenantSecrets,
        *,
        linger_ms: int,
        log: Callable[..., None],
    ) -> None:
        self.keys = keys
        self._seals = seals
        self._secrets = secrets
        self._linger_ms = linger_ms
        self._log = log
        self._runs: dict[str, Run] = {}
        self._sweeps = 0

    def __len__(self) -> int:
        return len(self._runs)

    def find(self, digest: str) -> Run | None:
        return self._runs.get(digest)

    def begin(self, claim: Claim, do: Do, *, stream: bool) -> Run:
        """Nothing is awaited, so that of all who come at once one begins."""
        assert claim.digest not in self._runs
        tape = Tape(bytes_max=RESULT_BYTES_MAX, linger_s=self._linger_ms / 1000)
        decided: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        run = Run(claim, tape, stream, decided, Doing(claim=claim.digest))
        self._runs[claim.digest] = run
        run.task = asyncio.create_task(self._lead(run, do))
        return run

    def read(self, tenant: str | None, digest: str, record: bytes) -> Kept | None:
        """None where nothing opens it any more."""
        try:
            return opened(self._seals, tenant, digest, record)
        except SecretGone:
            return None
        except SealBroken as why:
            self._log("idempotency.broken", error=why)
            return None

    async def aclose(self) -> None:
        """What still runs is told that nobody waits, and is waited for."""
        for run in self._runs.values():
            run.tape.abandon()
        tasks = [run.task for run in self._runs.values() if run.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    # Again and again, while the house stands.

    async def renew(self) -> None:
        await self.keys.renew(tuple(self._runs))

    async def sweep(self) -> None:
        """A slice of what is over, and whatever a crash left of a tenant whose secret was destroyed."""
        await self.keys.sweep()
        self._sweeps += 1
        if self._sweeps % COUNTED_EVERY == 0:
            await self.keys.counted()
        for tenant in self.keys.tenants():
            if self._secrets.is_shredded(tenant):
                await self.keys.forget(tenant)

    # How.

    async def _lead(self, run: Run, do: Do) -> None:
        why: Exception | None = None
        try:
            try:
                found = await self.keys.claim(run.claim)
            except Exception as failed:  # noqa: BLE001 — whoever waits hears it
                run.decided.set_exception(failed)
                run.decided.exception()  # taken note of, if nobody waits any more
                return
            run.decided.set_result(found)
            run.tape.touch()
            if found.verdict is not Verdict.RUN:
                return
            try:
                await do(run.tape, run.doing)
            except Exception as failed:  # noqa: BLE001 — its readers hear it
                why = failed
            await self._end(run, why)
        finally:
            run.decided.cancel()  # nothing, once it is decided
            del self._runs[run.claim.digest]
            run.tape.close(why)

    async def _end(self, run: Run, why: Exception | None) -> None:
        """A store that is down leaves it to the lease; the answer is told all the same, since it was paid for."""
        try:
            await self._ended(run, why)
        except StoreUnavailable as down:
            self._log("idempotency.unkept", error=down)

    async def _ended(self, run: Run, why: Exception | None) -> None:
        claim, doing = run.claim, run.doing
        work, answer = _work(run, why)
        match ending(work):
            case Ending.KEEP:
                assert answer is not None
                await self._keep(claim, Kept(*answer, doing.basis))
            case Ending.CLOSE:
                await self.keys.close(claim, _unkept(work, doing))
            case Ending.FREE:
                await self.keys.free(claim)
            case Ending.LEAVE:
                self._log("idempotency.left_to_lease", request_id=claim.request_id)

    async def _keep(self, claim: Claim, kept: Kept) -> None:
        tenant, digest = claim.tenant or None, claim.digest
        try:
            record, version = await asyncio.to_thread(sealed, self._seals, tenant, digest, kept)
        except SecretGone:
            await self.keys.close(claim, "shredded")
            return
        if self.keys.has_room(claim.tenant, len(record)):
            await self.keys.keep(claim, record, version)
        else:
            await self.keys.close(claim, "full")


async def open_runs(
    store: Store,
    owner: str,
    clock_ms: Callable[[], int],
    seals: Seals,
    secrets: TenantSecrets,
    linger_ms: int,
    log: Callable[..., None],
) -> Runs:
    """`owner` names this process, anew at each start."""
    keys = IdempotencyKeys(store, owner=owner, clock_ms=clock_ms)
    await keys.counted()
    return Runs(keys, seals, secrets, linger_ms=linger_ms, log=log)


Answer = tuple[int, tuple[tuple[bytes, bytes], ...], bytes]


def _work(run: Run, why: Exception | None) -> tuple[Work, Answer | None]:
    doing, tape = run.doing, run.tape
    spent = None if _is_unknown(why, metered=run.claim.metered) else doing.spent
    if isinstance(why, ApiError):
        headers = {"content-type": "application/json", **why.headers}
        pairs = tuple((n.encode("ascii"), v.encode("latin-1")) for n, v in headers.items())
        return Work(why.status, whole=True, spent=spent, fits=True), (
            why.status,
            pairs,
            doing.refusal(why, run.claim.request_id),
        )
    whole = why is None and tape.is_complete and not doing.cut
    answer = tape.answer()
    fits = answer is not None and not doing.secret
    return Work(tape.status or 499, whole=whole, spent=spent, fits=fits), answer


def _unkept(work: Work, doing: Doing) -> str:
    if not work.whole:
        return "cut"
    return "secret" if doing.secret else "oversize"


def _is_unknown(why: Exception | None, *, metered: bool) -> bool:
    """What nobody foresaw, in work that the book does not know, may have done anything."""
    if isinstance(why, ApiError):
        return why.code in UNKNOWN_CODES
    return why is not None and not isinstance(why, ClientGone) and not metered
