"""What one request is (`Job`), and what became of it so far (`Case`).

The case is the only mutable thing on the line: each stage writes what it alone knows, the audit
record, the usage record, the log line and the metrics are read off it at the end.  Holds counts,
times and reasons; never text, never token ids of an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from executor.contract import Caching, Ended, Grammar, Pace, Sampling, Submit
from gateway.caching import Scoping
from gateway.errors import ApiError
from gateway.metering import TURNED_AWAY, Part, billed, our_fault
from gateway.middleware.wire import ClientGone
from policies.facts import Meters, Principal
from policies.limits import Bound
from policies.price import Charge
from policies.scope.labels import Label
from security.audit import AuditEvent
from security.pseudonyms import Pseudonyms
from tenants.asks import Hold
from tenants.scopes import Dimensions
from tenants.tempo import Headroom
from tenants.usage import UsageRecord


@dataclass(frozen=True, slots=True)
class Job:
    """A request ready to run: tokens, not text.  `n` choices for each prompt, each sampled by its
    own of `samplings`; choices are numbered `prompt × n + choice`.  `scoping` None: nothing of it is kept.
    `end_user`: the pseudonym of the client's own user, where it named one."""

    route: str
    model: str  # the deployment's own name, aliases resolved
    prompts: tuple[tuple[int, ...], ...]
    samplings: tuple[Sampling, ...]
    max_output_tokens: int | None
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    grammar: Grammar | None = None
    service_class: str | None = None
    reads: Label | None = None  # the registered texts in it
    retry_key: bytes | None = None
    claim: str | None = None  # of the idempotency key by which it runs
    scoping: Scoping | None = None
    end_user: str | None = None
    warm: bool = False  # computes registered text beforehand, and says nothing
    metadata: Mapping[str, str] = field(default_factory=dict)  # for reports

    @property
    def n(self) -> int:
        return len(self.samplings)

    @property
    def choices(self) -> int:
        return self.n * len(self.prompts)

    @property
    def prompt_tokens(self) -> int:
        """Each prompt once, however many choices it has: that is what is billed."""
        return sum(len(prompt) for prompt in self.prompts)

    @property
    def prompt_tokens_max(self) -> int:
        return max(len(prompt) for prompt in self.prompts)

    def submits(self, max_new_tokens: int, cachings: tuple[Caching, ...] = ()) -> Iterator[Submit]:
        """`cachings`: one a prompt, or none."""
        for index in range(self.choices):
            yield Submit(
                request=0,  # the executor's client mints it
                prompt=self.prompts[index // self.n],
                max_new_tokens=max_new_tokens,
                min_tokens=self.min_tokens,
                stop_token_ids=self.stop_token_ids,
                sampling=self.samplings[index % self.n],
                grammar=self.grammar,
                part=index > 0,
                warm=self.warm,
                retry_key=None if index else self.retry_key,
                caching=cachings[index // self.n] if cachings else None,
            )


@dataclass(slots=True)
class Case:
    """One request's file.  Times are monotonic nanoseconds; None means not reached."""

    request_id: str
    who: Principal
    job: Job
    received_wall_ms: int
    received_ns: int
    trace_id: str | None = None  # of the caller's own trace: for the log
    admitted_ns: int | None = None
    left_ns: int | None = None  # when nobody listened any more
    closed_ns: int | None = None
    headroom: Headroom | None = None
    dims: Dimensions | None = None
    clamped_by: Bound | None = None  # what set the length of the output, where not the client
    hold: Hold | None = None
    ended: dict[int, Ended] = field(default_factory=dict)
    paces: dict[int, Pace] = field(default_factory=dict)
    device_start: str | None = None
    output_caps: dict[int, int] = field(default_factory=dict)
    finish_reasons: dict[int, str] = field(default_factory=dict)
    stopped_by: dict[int, int] = field(default_factory=dict)  # which of the stop strings
    delivered_tokens: int = 0
    first_token_ns: int | None = None
    charge: Charge | None = None
    settled: bool = False
    error: ApiError | None = None
    outcome: str = "completed"
    _metered: tuple[object, Meters] | None = field(default=None, repr=False)

    def fail(self, why: BaseException) -> None:
        """The first reason stands; what unwinding adds is only an echo.  Who leaves once the work is
        over and its record is being written changes no outcome."""
        if self.outcome != "completed":
            return
        if isinstance(why, ApiError):
            self.error = why
            self.outcome = "refused" if self.hold is None else "failed"
        elif isinstance(why, asyncio.CancelledError | GeneratorExit | ClientGone):
            self.outcome = "cancelled" if self.closed_ns is None else self.outcome
        else:
            self.outcome = "crashed"

    def close(self, now_ns: int) -> None:
        if self.closed_ns is None:
            self.closed_ns = now_ns

    def cap_output(self, index: int, tokens: int) -> None:
        """A stop string was found in the `tokens`-th token of this choice.  What the executor
        generated in the meantime is our overhead, so usage does not depend on timing."""
        self.output_caps[index] = tokens

    def turned_away(self) -> bool:
        """It cost nothing, rates included.  Not so where a choice made room while another was heard."""
        refused = any(each.cause in TURNED_AWAY for each in self.ended.values())
        return refused and not self.delivered_tokens

    def touched_device(self) -> bool:
        return any(each.prefilled or each.generated for each in self.ended.values())

    def meters(self) -> Meters:
        """What is billed.  What a fault of ours cut off is priced zero, whichever of the choices met it.
        Eight records of a request ask for it, so it is counted once for each state that it comes to."""
        caps = tuple(self.output_caps.items())
        state = (self.outcome == "crashed", self.delivered_tokens > 0, len(self.ended), caps)
        if self._metered is None or self._metered[0] != state:
            self._metered = state, self._counted()
        return self._metered[1]

    def _counted(self) -> Meters:
        if self.outcome == "crashed":
            return Meters()
        parts = (
            Part(
                prompt=(prompt := index // self.job.n),
                prompt_tokens=len(self.job.prompts[prompt]),
                prefilled=each.prefilled,
                cached=each.cached,
                output=self.billed_output(index),
                cause=each.cause,
            )
            for index, each in self.ended.items()
        )
        return billed(parts, delivered=self.delivered_tokens > 0, warm=self.job.warm)

    def at_our_cost(self) -> bool:
        causes = (each.cause for each in self.ended.values())
        return self.outcome == "crashed" or our_fault(causes, delivered=self.delivered_tokens > 0)

    def device_ns(self) -> tuple[int, int]:
        """The caller's, and overhead: what is priced zero by our fault, or voided, is no customer's cost."""
        spent_ns = sum(each.device_ns for each in self.ended.values())
        if self.at_our_cost() or not self.touched_device():
            return 0, spent_ns
        return spent_ns, 0

    def billed_output(self, index: int) -> int:
        generated = self.ended[index].generated
        return min(generated, self.output_caps.get(index, generated))

    def limited_by_budget(self, index: int) -> bool:
        """It stopped at a reservation that the budget had cut short."""
        return (
            self.hold is not None
            and self.hold.limited
            and self.finish_reasons.get(index) == "length"
            and self.ended[index].generated >= self.hold.output_tokens
        )

    def limit(self, index: int) -> str | None:
        """What ended a choice that ended `length`: `token_budget`, `context` (no room was left) or `max_tokens`."""
        if self.finish_reasons.get(index) != "length":
            return None
        if self.limited_by_budget(index):
            return "token_budget"
        roomless = self.clamped_by in {Bound.CONTEXT, Bound.KV_MEMORY}
        return "context" if roomless else "max_tokens"

    @property
    def reason(self) -> str | None:
        return self.error.reason if self.error is not None else None

    @property
    def finish_reason(self) -> str | None:
        return self.finish_reasons.get(0)

    def span_ns(self, stage: str) -> int:
        """The longest of the choices': they run side by side."""
        return max((getattr(each, f"{stage}_ns") for each in self.ended.values()), default=0)

    def slowest(self) -> Pace:
        """Of the choices' paces, as the tokens came; none where no choice had two tokens."""
        return max(
            (each for each in self.paces.values() if each.tokens > 1),
            key=lambda each: each.span_ns / (each.tokens - 1),
            default=Pace(),
        )

    def admitted_after_ns(self) -> int:
        return 0 if self.admitted_ns is None else self.admitted_ns - self.received_ns

    def spent(self) -> bool | None:
        """Whether anything is billed for it; None: that is left to the hold's lease."""
        if self.hold is None or self.settled:
            return self.charge is not None and self.charge.total_nano_usd > 0
        return None

    def usage_record(self) -> UsageRecord:
        assert self.dims is not None
        meters = self.meters()
        device_ns, faulted_ns = self.device_ns()
        return UsageRecord(
            request_id=self.request_id,
            dims=self.dims,
            route=self.job.route,
            received_at_ms=self.received_wall_ms,
            outcome=self.outcome,
            reason=self.reason,
            finish_reason=self.finish_reason,
            prompt_tokens=meters.input + meters.cached_input,
            output_tokens=meters.output,
            generated_tokens=sum(each.generated for each in self.ended.values()),
            delivered_tokens=self.delivered_tokens,
            admitted_ns=self.admitted_after_ns(),
            queued_ns=self.span_ns("queued"),
            prefill_ns=self.span_ns("prefill"),
            decode_ns=self.span_ns("decode"),
            total_ns=(self.closed_ns or self.received_ns) - self.received_ns,
            device_ns=device_ns,
            faulted_ns=faulted_ns,
            device_start=self.device_start,
            recomputed_ns=sum(each.recomputed_ns for each in self.ended.values()),
            preemptions=sum(each.preemptions for each in self.ended.values()),
        )

    def audit_event(self, names: Pseudonyms) -> AuditEvent:
        meters = self.meters()
        kind = "request." + self.outcome
        if self.outcome == "refused" and self.error is not None:
            kind = self.error.record_kind
        return AuditEvent(
            kind=kind,
            request_id=self.request_id,
            tenant=self.who.tenant,
            subject=names.person(self.who.tenant, self.who.issuer, self.who.user),
            credential_id=self.who.credential.id,
            route=self.job.route,
            model=self.job.model,
            outcome=self.outcome,
            reason=self.reason,
            status=self.error.status if self.error is not None else None,
            input_tokens=meters.input + meters.cached_input,
            cached_tokens=meters.cached_input,
            output_tokens=meters.output,
            nano_usd=self.charge.total_nano_usd if self.charge is not None else 0,
        )

    def log_fields(self) -> dict[str, object]:
        meters = self.meters()
        return {
            "request_id": self.request_id,
            "trace_id": self.trace_id,
            "tenant": self.who.tenant,
            "route": self.job.route,
            "model": self.job.model,
            "service_class": self.job.service_class,
            "outcome": self.outcome,
            "reason": self.reason,
            "input_tokens": meters.input + meters.cached_input,
            "output_tokens": meters.output,
            "total_ms": ((self.closed_ns or self.received_ns) - self.received_ns) // 1_000_000,
        }
