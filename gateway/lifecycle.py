"""The line: one request, from who is asking to the last record of it, on one screen.

    authorize → admit (limits, rate, concurrency) → reserve (budget) → queue → prefill → decode
    → settle → audit

Read `serve` down and it is the request; read it up and it is the unwinding, whatever happened:
abort, settle, give back, audit.  Each stage is a context of its own below it.  Takes a `Principal`
and a `Job`, never an HTTP request or a token, so that batch work and the console enter by the same
door.  Decides nothing: every verdict comes from `policies`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from executor.contract import Billed, Caching, Submit
from gateway import idempotency
from gateway.answer import Answer
from gateway.case import Case, Job
from gateway.errors import from_deny, unavailable
from gateway.house import Deployment, House
from gateway.live import LiveRequest
from gateway.promises import class_of, fate_of, times_of
from gateway.refusals import audit_down
from gateway.unbroken import unbroken
from policies import access, classes, limits, tags
from policies.budget import LEAST_OUTPUT_TOKENS
from policies.facts import Ask, Principal, Standing
from policies.limits import Sized
from policies.price import for_class
from policies.verdict import Allow, Deny, Reason
from security.audit import AuditUnavailable
from tenants.asks import ClaimLost, Hold, HoldAsk
from tenants.scopes import Dimensions, budget_accounts, dimensions, scope_limits
from tenants.store import StoreUnavailable
from tenants.tempo import TempoAsk

T = TypeVar("T")


@asynccontextmanager
async def serve(house: House, who: Principal, job: Job, case: Case) -> AsyncIterator[Answer]:
    """Run `job` for `who`.  Leaving the block settles and audits, so the caller sends its last
    words after it: nothing completes whose record is not durable.  Raises ApiError."""
    async with recorded(house, case):
        grant = authorize(house, who, job)
        case.dims, case.clamped_by = grant.dims, grant.sized.clamped_by
        async with (
            admitted(house, grant, case),
            reserved(house, grant, case) as hold,
            running(house, grant, hold, case) as answer,
        ):
            yield answer


@dataclass(frozen=True, slots=True)
class Grant:
    """What was decided before anything was taken."""

    who: Principal
    job: Job
    standing: Standing
    sized: Sized
    dims: Dimensions


def authorize(house: House, who: Principal, job: Job) -> Grant:
    """May this principal ask this at all, and can it ever fit?  Reads snapshots, takes nothing."""
    standing = standing_of(house, who)
    ask = Ask(
        model=job.model,
        prompt_tokens=job.prompt_tokens_max,
        max_output_tokens=job.max_output_tokens,
        n=job.choices,
        service_class=job.service_class,
    )
    service_class = allowed(access.authorize(who, standing, ask))
    card = house.deployments[job.model].reading().card
    kv_tokens = (card.kv_blocks - card.pool_blocks) * card.block_tokens
    sized = allowed(limits.size(ask, standing.limits, card.context_tokens, kv_tokens))
    return Grant(who, job, standing, sized, dimensions(who, job.model, service_class))


def standing_of(house: House, who: Principal) -> Standing:
    standing = house.directory.standing(who)
    if isinstance(standing, Deny):
        raise from_deny(standing)
    return standing


def usable(house: House, who: Principal, model: str) -> Deployment:
    """The deployment behind a name, for those whose plan has it.  Asked before anything is read or
    counted, so that a model that is absent and one that is forbidden take the same path."""
    standing = standing_of(house, who)
    deployment = house.deployments.get(model)
    if deployment is None or deployment.name not in standing.models:
        raise from_deny(Deny(Reason.MODEL_NOT_FOUND))
    return deployment


def usable_models(house: House, who: Principal) -> list[Deployment]:
    standing = standing_of(house, who)
    named = {each.name: each for each in house.deployments.values()}
    return [named[name] for name in sorted(named) if name in standing.models]


def class_for(house: House, who: Principal, tier: str | None) -> str:
    """The class that serves who wishes for `tier`: one that they may have, else their own."""
    standing = standing_of(house, who)
    wish = classes.wished(tier, who, standing, house.classes.named)
    return access.class_of(who, standing, wish)


def allowed(verdict: Allow[T] | Deny) -> T:
    """A policy's denial becomes an exception here and nowhere deeper."""
    if isinstance(verdict, Deny):
        raise from_deny(verdict)
    return verdict.value


@asynccontextmanager
async def recorded(house: House, case: Case) -> AsyncIterator[None]:
    """The outermost stage: whatever happens inside is audited before anybody hears of it."""
    try:
        house.audit.require_healthy()
    except AuditUnavailable as down:
        raise audit_down() from down
    try:
        yield
    except BaseException as why:
        case.fail(why)
        raise
    finally:
        case.close(house.clock.monotonic_ns())
        observe(house, case)
        house.log("request", **case.log_fields())
        try:
            with house.door.gate.finishing(case.request_id):
                await unbroken(house.audit.append(case.audit_event(house.names)))
        except AuditUnavailable as down:
            raise audit_down() from down


def observe(house: House, case: Case) -> None:
    """Counted, and its promises judged."""
    house.metrics.observe(case)
    promised = class_of(case, house.classes.named)
    if promised is None:
        return
    fate, times = fate_of(case), times_of(case)
    judged = classes.judge(promised, fate, times)
    house.promises.count(promised.name, case.who.tenant or "", fate, judged)
    house.metrics.classes.observe(
        promised.name,
        fate,
        judged,
        times,
        recomputed_ns=sum(each.recomputed_ns for each in case.ended.values()),
        preemptions=sum(each.preemptions for each in case.ended.values()),
    )


@asynccontextmanager
async def admitted(house: House, grant: Grant, case: Case) -> AsyncIterator[None]:
    """Tempo: rates and concurrency at every scope, all or nothing.  What the budget then refuses
    or the executor's queue then refuses is given back whole; what ran gives back the output it did not use."""
    asked = TempoAsk(
        request_id=case.request_id,
        tenant=grant.dims.tenant,
        scopes=scope_limits(grant.standing, grant.dims),
        input_tokens=grant.job.prompt_tokens,
        output_tokens=grant.sized.max_output_tokens * grant.job.choices,
    )
    verdict = await house.tempo.admit(asked)
    if isinstance(verdict, Deny):
        case.headroom = await house.tempo.headroom(asked.tenant, asked.scopes)
    case.headroom = allowed(verdict)
    try:
        yield
    finally:
        if case.hold is None or case.turned_away():
            await unbroken(house.tempo.refund(case.request_id))
        else:
            await unbroken(house.tempo.release(case.request_id, case.meters().output))


@asynccontextmanager
async def reserved(house: House, grant: Grant, case: Case) -> AsyncIterator[Hold]:
    """The book: the worst case held durably at every ancestor before anything runs; settled on
    what was really used, or voided if nothing was."""
    job, sized = grant.job, grant.sized
    most = sized.max_output_tokens
    listed = allowed(house.prices.at(job.model, house.clock.wall_ms() // 1000))
    ask = HoldAsk(
        request_id=case.request_id,
        dims=grant.dims,
        budgets=budget_accounts(grant.standing, grant.dims),
        price=for_class(listed, grant.dims.service_class),
        prompt_tokens=job.prompt_tokens,
        output_tokens=most,
        output_tokens_least=most if sized.explicit else min(LEAST_OUTPUT_TOKENS, most),
        n=job.choices,
        claim=job.claim,
        tags=tags.of_request(grant.who, job.metadata),
    )
    house.door.gate.leave(case.request_id)  # more may come while the disk works
    try:
        hold = case.hold = allowed(await house.book.hold(ask))
    except ClaimLost as lost:
        raise idempotency.running() from lost
    except StoreUnavailable as down:
        raise unavailable("The budget could not be checked. Try again.", code="book_down") from down
    case.admitted_ns = house.clock.monotonic_ns()
    for scope in hold.shadowed:
        house.metrics.shadow_refused.labels(scope).inc()
        house.log("budget.would_refuse", request_id=case.request_id, scope=scope)
    try:
        yield hold
    except BaseException as why:
        case.fail(why)
        raise
    finally:
        with house.door.gate.finishing(case.request_id):
            await unbroken(settle(house, case))


async def settle(house: House, case: Case) -> None:
    """Once per hold.  While the store is away the book keeps what was used in its journal; only where
    that fails too the hold is left to its lease, and the caller hears an error, not a lie."""
    meters = case.meters()
    case.close(house.clock.monotonic_ns())
    usage = case.usage_record()
    try:
        if case.touched_device():
            case.charge = (await house.book.settle(case.request_id, meters, usage)).charge
        else:
            await house.book.void(case.request_id, usage)
        case.settled = True
    except StoreUnavailable as down:
        raise unavailable("The use could not be booked. Try again.", code="book_down") from down


@asynccontextmanager
async def running(house: House, grant: Grant, hold: Hold, case: Case) -> AsyncIterator[Answer]:
    """The executor: queue, prefill, decode.  It stops at what was reserved; leaving aborts."""
    job = grant.job
    principal = principal_of(house, grant)
    with house.end_users.present(principal, job.end_user) as share:
        submits = submits_of(house, grant, hold, share)
        answer = Answer(house.deployments[job.model].executor, submits, n=job.n)
        request = LiveRequest(case.request_id, grant.who, answer.interrupt, reads=job.reads)
        try:
            with house.live.entered(request, expires_in_ms=expires_in_ms(house, grant.who)):
                async with answer:
                    try:
                        yield answer
                    finally:  # before the abort is confirmed: what comes now, nobody waits for
                        case.left_ns = house.clock.monotonic_ns()
        finally:
            case.ended = dict(answer.ended)
            case.paces = dict(answer.paces)
            case.device_start = answer.start or None


def principal_of(house: House, grant: Grant) -> str:
    dims = grant.dims
    return house.pseudonym(f"{dims.tenant}\0{dims.issuer}\0{dims.user}")


def submits_of(house: House, grant: Grant, hold: Hold, share: tuple[str, float]) -> list[Submit]:
    """What the executor is to run: up to what was reserved, on whose share, under which labels by the
    rights of this moment."""
    dims = grant.dims
    tenant = house.pseudonym(dims.tenant)
    cachings = cachings_of(house, grant)
    return [
        msgspec.structs.replace(
            each,
            max_new_tokens=min(each.max_new_tokens, hold.output_tokens),
            min_tokens=min(each.min_tokens, hold.output_tokens),
            workload=dims.service_class or "",
            share=((tenant, grant.standing.weight), share),
            queue_ms_max=house.timings.queue_ms_max,
            billed=Billed(hold.request_id, index // grant.job.n),
        )
        for index, each in enumerate(grant.job.submits(grant.sized.max_output_tokens, cachings))
    ]


def cachings_of(house: House, grant: Grant) -> tuple[Caching, ...]:
    job, now_ns = grant.job, house.clock.monotonic_ns()
    if not job.warm:
        there = house.warmth.kept(job.model)
        return house.caches.decided(grant.who, job.scoping, now_ns, there)
    assert job.reads is not None
    assert job.scoping is not None
    decision = allowed(house.registered.permission.to_read(grant.who, job.reads))
    pinned = house.caches.registered(grant.dims.tenant, decision, job.scoping, now_ns)
    if pinned is None:  # the plan has lost its cache meanwhile
        raise from_deny(Deny(Reason.FORBIDDEN))
    return (pinned,)


def expires_in_ms(house: House, who: Principal) -> int | None:
    """Until a token's authority over a running stream lapses, grace included."""
    if who.credential.expires_at_s is None:
        return None
    left_ms = who.credential.expires_at_s * 1000 - house.clock.wall_ms()
    return max(0, left_ms) + house.timings.expiry_grace_ms
