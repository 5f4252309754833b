"""Under which labels a request's blocks may be found and kept: from who supplied its tokens to what an
executor is told.

    supplied pieces ─ policies.scope.prefix ─► labels ─ decide ─► Decision ─ CacheKeys ─► Caching

What a client says of itself (`safety_identifier`, `user`, `prompt_cache_key`) narrows its own scope, by
HMAC; nothing else of a request enters.  Without a key (a tenant's secret that is not there yet, or no
longer) or by a plan without a cache the request is served, and nothing of it is kept or found.

Refuses to know: text, how blocks are kept, where documents' rights stand.
Source: SECURITY.md §2; DESIGN.md, settled 2 to 5.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from executor.contract import Caching, Executor, ModelCard, Quota, Scope
from gateway.errors import from_deny
from policies.facts import Principal
from policies.scope import prefix
from policies.scope.blocks import Step
from policies.scope.context import DIGEST_BYTES, Asked
from policies.scope.decision import Decision
from policies.scope.labels import Label, user
from policies.scope.prefix import Supplied
from policies.scope.residency import Source, made_by_traffic
from policies.verdict import Allow, Deny
from security.cache_keys import CacheKeys, narrowing
from security.keyring import KeyringError
from security.keyring_tenants import SecretGone

ABSOLUTE_IDLES: Final = 24
ABSOLUTE_MS_MAX: Final = 7 * 86_400_000
"""An entry that is read again and again ends all the same: after this many times the time it may lie
unread, and at this age at the latest.  What is registered has no such end."""
PINNED_MS_MAX: Final = 366 * 86_400_000
"""The longest that an executor counts towards a document's own end; by a later one it is revoked."""


@dataclass(frozen=True, slots=True)
class CacheTerms:
    """One tenant's, by configuration alone.  `quota`: its part of the pool.  `opportunistic`: its users
    may find what others of them left under a registered text; it is recorded."""

    quota: float = 0.0
    ttl_s: int = 0
    opportunistic: bool = False
    region: str | None = None

    @property
    def keeps(self) -> bool:
        return self.quota > 0 and self.ttl_s > 0


@dataclass(frozen=True, slots=True)
class EndUser:
    """What a client calls its own users, in its own words."""

    safety_identifier: str | None = field(default=None, repr=False)
    user: str | None = field(default=None, repr=False)
    prompt_cache_key: str | None = field(default=None, repr=False)

    @property
    def named(self) -> tuple[str | None, ...] | None:
        """By which scheduling tells them apart: who it is for, else the conversation.  None: nobody."""
        who = (self.safety_identifier, self.user)
        if who != (None, None):
            return who
        return None if self.prompt_cache_key is None else (None, None, self.prompt_cache_key)


@dataclass(frozen=True, slots=True)
class Scoping:
    """A job's part: who supplied each prompt's tokens, what else its KV depends on, and as whom its
    client's user is known here.  `expires_ns`: when the first right to a document in it lapses."""

    supplied: tuple[tuple[Supplied, ...], ...]
    context: bytes
    narrowing: bytes | None = field(default=None, repr=False)
    expires_ns: int | None = None


@dataclass(slots=True)
class Caches:
    """`permit`: whether somebody may read what a label names, by the policy of this moment.
    `beforehand`: what of registered text is computed at registration."""

    keys: CacheKeys
    pseudonym: Callable[[str], str] = field(repr=False)
    permit: Callable[[Principal, Label], Allow[Decision] | Deny] = field(repr=False)
    terms: Mapping[str, CacheTerms] = field(default_factory=dict)
    beforehand: prefix.Kept = prefix.computed_beforehand

    def enforce(
        self, terms: Mapping[str, CacheTerms], executors: Iterable[Executor]
    ) -> dict[str, bool]:
        """From now on.  By tenant, whose mode of sharing is another than before: is it opportunistic?"""
        changed = {
            name: name in terms and terms[name].opportunistic
            for name in sorted({*terms, *self.terms})
            if (name in terms and terms[name].opportunistic)
            != (name in self.terms and self.terms[name].opportunistic)
        }
        self.terms = terms
        for executor in executors:
            executor.set_quotas(self.quotas())
        return changed

    def quotas(self) -> tuple[Quota, ...]:
        return tuple(
            Quota(owner=self.pseudonym(name), part=each.quota)
            for name, each in self.terms.items()
            if each.keeps
        )

    def keeps(self, tenant: str) -> bool:
        return self.terms.get(tenant, CacheTerms()).keeps

    def scoping(
        self,
        tenant: str,
        card: ModelCard,
        supplied: tuple[tuple[Supplied, ...], ...],
        end_user: EndUser,
        *,
        templated: bool,
        expires_ns: int | None = None,
    ) -> Scoping | None:
        """None where nothing of it is to be kept.  `templated`: by the model's chat template."""
        terms = self.terms.get(tenant, CacheTerms())
        if not terms.keeps:
            return None
        try:
            secret = self.keys.secret_of(tenant).secret
        except (SecretGone, KeyringError):
            return None
        return Scoping(
            supplied,
            context_of(card, terms.region, templated=templated),
            narrowing(
                secret,
                safety_identifier=end_user.safety_identifier,
                user=end_user.user,
                prompt_cache_key=end_user.prompt_cache_key,
            ),
            expires_ns,
        )

    def decided(
        self,
        who: Principal,
        scoping: Scoping | None,
        now_ns: int,
        there: prefix.Kept | None = None,
    ) -> tuple[Caching, ...]:
        """One a prompt, by the rights of this moment; empty where nothing is kept.  `there`: which registered
        text is computed (None: all that may be).  Raises ApiError where a right to such text in it is gone."""
        tenant = who.tenant or ""
        terms = self.terms.get(tenant, CacheTerms())
        if scoping is None or not terms.keeps:
            return ()
        own = user(tenant, who.issuer, who.user, scoping.narrowing)
        known: dict[Label, Scope] = {}
        found: list[Caching] = []
        for supplied in scoping.supplied:
            steps = prefix.steps(
                supplied, own, _by_traffic if terms.opportunistic else there or self.beforehand
            )
            label = steps[-1].label
            verdict = self.permit(who, label)
            if isinstance(verdict, Deny):
                if label.documents or label.templates:
                    raise from_deny(verdict)
                return ()
            try:
                scopes = self._scopes(steps, known, opportunistic=terms.opportunistic)
            except (SecretGone, KeyringError):
                return ()
            found.append(self._caching(terms, tenant, verdict.value, scopes, scoping, now_ns))
        return tuple(found)

    def registered(
        self, tenant: str, decision: Decision, scoping: Scoping, now_ns: int
    ) -> Caching | None:
        """For a warm submit of the first prompt, cut to its registered beginning
        (`policies.scope.prefix.shared_until`), pinned in this tenant's part.  None where nothing of it
        may be shared, or is to be kept.  SecretGone."""
        terms = self.terms.get(tenant, CacheTerms())
        steps = prefix.registered_steps(scoping.supplied[0])
        if not steps or not terms.keeps:
            return None
        assert decision.covers(steps[-1].label, now_ns), "a warm submit without a right to its text"
        scopes = self._scopes(steps, {}, opportunistic=False)
        return self._caching(terms, tenant, decision, scopes, scoping, now_ns, pinned=True)

    def _scopes(
        self, steps: Iterable[Step], known: dict[Label, Scope], *, opportunistic: bool
    ) -> tuple[Scope, ...]:
        scopes = []
        for step in steps:
            label = step.label
            if label not in known:
                key = self.keys.scope(label)
                made = made_by_traffic(label.level, opportunistic=opportunistic)
                known[label] = Scope(
                    until=0,
                    label=key.tag,
                    key=key.key,
                    kind=label.level.name.lower(),
                    pinned=made is None,
                    disclosed=made is not Source.OPPORTUNISTIC,
                    covers=self.keys.covers(label),
                )
            scopes.append(replace(known[label], until=step.until))
        return tuple(scopes)

    def _caching(
        self,
        terms: CacheTerms,
        tenant: str,
        decision: Decision,
        scopes: tuple[Scope, ...],
        scoping: Scoping,
        now_ns: int,
        *,
        pinned: bool = False,
    ) -> Caching:
        idle_ms = terms.ttl_s * 1000
        most_ms = PINNED_MS_MAX if pinned else min(idle_ms * ABSOLUTE_IDLES, ABSOLUTE_MS_MAX)
        absolute_ms = None if pinned else most_ms
        if scoping.expires_ns is not None:
            left_ms = max(1, (scoping.expires_ns - now_ns) // 1_000_000)
            absolute_ms = left_ms if left_ms <= most_ms else absolute_ms
        return Caching(
            owner=self.pseudonym(tenant),
            context=scoping.context,
            scopes=scopes,
            snapshot=decision.snapshot,
            idle_ms=min(idle_ms, absolute_ms or idle_ms),
            absolute_ms=absolute_ms,
        )


def _by_traffic(label: Label) -> bool:
    """Where a tenant opted in its users' requests keep registered text too, but never what is public."""
    return made_by_traffic(label.level, opportunistic=True) is not None


def context_of(
    card: ModelCard,
    region: str | None,
    *,
    templated: bool,
    tools_digest: bytes | None = None,
    locale: str | None = None,
    flags: frozenset[str] = frozenset(),
) -> bytes:
    """What the gateway knows of C0.  A request has no locale and no tools yet, and no safety policy
    rewrites any: where one comes it is named here."""
    template = card.chat_template if templated else None
    return _context(
        _digest(card.tokenizer_digest, card.tokenizer_json),
        None if template is None else _digest(card.template_digest, template.encode()),
        tools_digest,
        locale,
        region,
        flags,
    )


@lru_cache(maxsize=64)
def _context(
    tokenizer_digest: bytes,
    template_digest: bytes | None,
    tools_digest: bytes | None,
    locale: str | None,
    region: str | None,
    flags: frozenset[str],
) -> bytes:
    """The same for every request to a model from one region."""
    return Asked(
        tokenizer_digest=tokenizer_digest,
        template_digest=template_digest,
        tools_digest=tools_digest,
        locale=locale,
        region=region,
        safety_policy=None,
        safety_policy_version=None,
        flags=flags,
    ).digest()


def _digest(known: str, content: bytes) -> bytes:
    """As the card says it; computed where it says none."""
    if len(known) == 2 * DIGEST_BYTES:
        return bytes.fromhex(known)
    return hashlib.sha256(content).digest()
