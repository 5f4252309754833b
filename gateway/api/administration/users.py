"""People on the admin listener: called by a pseudonym from now on in all that is kept of them."""

from __future__ import annotations

import msgspec

from gateway.api.administration.cache import Reason, require_record
from gateway.api.administration.call import Call
from gateway.api.administration.operations import Id, knowing, permit
from gateway.errors import invalid
from policies import access
from tenants.directory import ChangeKind
from tenants.pseudonyms import PSEUDONYM, Person


class PseudonymiseAsk(msgspec.Struct, forbid_unknown_fields=True):
    """`issuer`: the caller's own where none is named.  `with_budgets`: those set for the person at
    this issuer are taken away."""

    tenant: Id
    user: Id
    reason: Reason
    issuer: Id | None = None
    with_budgets: bool = False


async def pseudonymise(call: Call) -> object:
    """Names go, sums stay.  What a budget still counts waits for the end of its window."""
    ask = call.decode(PseudonymiseAsk)
    permit(access.may_administer(call.who, ask.tenant))
    directory = knowing(call, ask.tenant)
    issuer = ask.issuer or call.who.issuer
    if issuer == PSEUDONYM:
        raise invalid("This name is a pseudonym already.", param="issuer")
    if ask.with_budgets:
        permit(access.may_set_budget(call.who, ask.tenant, "user"))
    require_record(call)
    house, who = call.house, Person(ask.tenant, issuer, ask.user)
    target = house.names.person(ask.tenant, issuer, ask.user)
    await call.record("user.pseudonymising", tenant=ask.tenant, target=target, reason=None)
    done = await house.retention.forget(who, actor=call.actor, budgets=ask.with_budgets)
    await directory.note(
        ChangeKind.USER_PSEUDONYMISED,
        tenant=ask.tenant,
        subject=f"user:{done.pseudonym}",
        actor=call.actor,
        reason=ask.reason,
    )
    await directory.refresh()
    await call.record("user.pseudonymised", tenant=ask.tenant, target=target, reason=None)
    left = done.standing
    return {
        "tenant": ask.tenant,
        "issuer": PSEUDONYM,
        "pseudonym": done.pseudonym,
        "renamed": done.renamed,
        "waiting": done.waiting,
        "counted_by_a_budget": done.counted,
        "in_force": {
            "keys": left.keys,
            "documents": left.documents,
            "readers": left.readers,
            "budgets": left.budgets,
        },
    }
