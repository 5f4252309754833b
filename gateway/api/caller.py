"""What a caller may ask about themselves: who they are, what they may use, what is left.

    GET /v1/me                 GET /v1/models            GET /v1/models/{id}
    GET /v1/requests/{id}      (the owner, or an administrator of the same tenant)
    GET /version               (callers alone: what runs is no stranger's business)

Someone else's object and an absent one look the same (SECURITY.md P8).
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from gateway import lifecycle
from gateway.api.model_views import anthropic_page, anthropic_view, model_view
from gateway.api.wire import json_bytes, path_value
from gateway.errors import not_found
from gateway.house import House
from gateway.identify import identify, request_id
from gateway.refusals import told
from gateway.streaming import respond
from gateway.views import explanation_view, standing_view
from gateway.worded import speaks_anthropic
from policies import access
from policies.access import Owner
from policies.facts import Principal
from tenants.reports import Explanation


@dataclass(frozen=True, slots=True)
class Me:
    house: House

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        who = await identify(self.house, scope)
        async with told(self.house, who, request_id(scope), "/v1/me"):
            view = await standing_view(self.house, who)
        await respond(send, 200, json_bytes(view))


@dataclass(frozen=True, slots=True)
class Version:
    house: House

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await identify(self.house, scope)
        await respond(send, 200, json_bytes({"version": importlib.metadata.version("lockgate")}))


@dataclass(frozen=True, slots=True)
class Models:
    house: House

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        who = await identify(self.house, scope)
        async with told(self.house, who, request_id(scope), "/v1/models"):
            usable = lifecycle.usable_models(self.house, who)
        if speaks_anthropic(scope):
            seen = anthropic_page([anthropic_view(self.house, who, each) for each in usable])
        else:
            data = [model_view(self.house, who, each) for each in usable]
            seen = {"object": "list", "data": data}
        await respond(send, 200, json_bytes(seen))


@dataclass(frozen=True, slots=True)
class Model:
    house: House

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        who = await identify(self.house, scope)
        async with told(self.house, who, request_id(scope), "/v1/models/{id}"):
            deployment = lifecycle.usable(self.house, who, path_value(scope, "/v1/models/"))
        view = anthropic_view if speaks_anthropic(scope) else model_view
        await respond(send, 200, json_bytes(view(self.house, who, deployment)))


@dataclass(frozen=True, slots=True)
class Request:
    house: House

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        who = await identify(self.house, scope)
        async with told(self.house, who, request_id(scope), "/v1/requests/{id}"):
            found = await self._own(who, path_value(scope, "/v1/requests/"))
        operator = access.may_operate(who)
        await respond(send, 200, json_bytes(explanation_view(found, operator=operator)))

    async def _own(self, who: Principal, name: str) -> Explanation:
        found = await self.house.book.explain(name)
        if found is not None:
            dims = found.dims
            if access.may_read_request(who, Owner(dims.tenant, dims.issuer, dims.user)):
                return found
        raise not_found(
            "There is no such request, it was refused before it ran, or it is not yours."
        )
