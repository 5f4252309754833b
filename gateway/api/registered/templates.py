"""Prompt templates: text with variables that a request begins with, by `"prompt": {"id", "variables"}`.

    POST   /v1/templates                  register: a tenant's, by its administrator
    GET    /v1/templates                  the tenant's and the public ones: what is known of them
    GET    /v1/templates/{id}             the same of one
    GET    /v1/templates/{id}/content     the newest text, for who may change it
    PATCH  /v1/templates/{id}             a new version; the old ones stay, for those who name them
    DELETE /v1/templates/{id}             with all its versions

On the admin listener the same, and there an operator registers public ones.  `{{name}}` is replaced
literally by a string.  Documents of a request stand before the line of the first variable.
Source: DESIGN.md, settled 3 and 4.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.api.registered.call import (
    Call,
    Family,
    Text,
    Title,
    about_of,
    name_of,
    text_of,
    view,
)
from gateway.errors import from_deny, invalid
from gateway.registered import About
from policies import registered as rules
from policies.registered import PLACES_MAX, VARIABLES_MAX, Right
from policies.verdict import Deny, Reason
from security.audit import RegisteredEvent
from tenants.documents import Kind, Record

Variables = Annotated[list[str], Meta(max_length=VARIABLES_MAX)]


class NewTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`variables`: those in the text, in any order; left out, they are read from it."""

    text: Text
    title: Title | None = None
    variables: Variables | None = None


async def create(call: Call) -> object:
    asked = call.decode(NewTemplate)
    who, house = call.who, call.house
    if not rules.may_register_template(who, who.tenant):
        raise from_deny(Deny(Reason.FORBIDDEN))
    text, tokens = await _counted(call, asked, who.tenant)
    about = _about(asked, text, About())
    now_s = house.clock.wall_ms() // 1000
    made = Record(
        id=house.registered.mint_id(Kind.TEMPLATE),
        kind=Kind.TEMPLATE,
        tenant=who.tenant,
        issuer=who.issuer,
        owner=who.user,
        content_version=1,
        acl_version=1,
        created_at_s=now_s,
        changed_at_s=now_s,
        expires_at_s=None,
        tokens={},
    )
    record = await house.registered.create(made, text, about, tokens, call.room(who.tenant))
    await call.record(RegisteredEvent.TEMPLATE_CREATED, record)
    return template_view(call, record, about)


async def change(call: Call) -> object:
    asked = call.decode(NewTemplate)
    record = call.found(Right.CHANGE)
    text, tokens = await _counted(call, asked, record.tenant)
    about = _about(asked, text, await about_of(call, record))
    now_s = call.house.clock.wall_ms() // 1000

    def becomes(old: Record) -> Record:
        return replace(call.permitted(old, Right.CHANGE), changed_at_s=now_s)

    changed, ending = await call.house.registered.rewrite(
        record.id, text, about, tokens, call.room(record.tenant), becomes
    )
    await call.record(RegisteredEvent.TEMPLATE_CHANGED, changed, ending)
    return template_view(call, changed, about)


def template_view(call: Call, record: Record, about: About) -> dict[str, Any]:
    return {
        **view(call, record, about),
        "variables": list(about.variables),
        "versions": list(record.versions),
        "public": record.tenant is None,
    }


async def _counted(
    call: Call, asked: NewTemplate, tenant: str | None
) -> tuple[str, dict[str, int]]:
    """Before anything else is done with it: what fits no model may be long.  Raises ApiError 400."""
    text = text_of(asked.text, "text")
    return text, await call.tokens(text, tenant, "text")


def _about(asked: NewTemplate, text: str, old: About) -> About:
    """Raises ApiError 400."""
    outline = rules.outline(text)
    found = outline.variables
    if len(found) > VARIABLES_MAX:
        raise invalid(f"text: at most {VARIABLES_MAX} variables.", param="text")
    if len(outline.places) > PLACES_MAX:
        raise invalid(f"text: variables may stand in at most {PLACES_MAX} places.", param="text")
    if asked.variables is not None and set(asked.variables) != set(found):
        astray = min(set(asked.variables) ^ set(found))
        raise invalid(
            f"variables: {astray[:64]!a} is declared and not in the text, or in it and not "
            "declared. A variable is written {{name}}, of a-z, 0-9 and _.",
            param="variables",
        )
    title = old.title if asked.title is None else name_of(asked.title, "title")
    return About(title, found)


FAMILY = Family(template_view, RegisteredEvent.TEMPLATE_READ, RegisteredEvent.TEMPLATE_DELETED)
