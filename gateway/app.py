"""The two applications, route by route: the public one and the administrators'.

What is not in these two tables does not exist.  What changes or computes something stands behind `Once`.
Administration, metrics and their errors are on the
admin listener alone (DESIGN.md, settled question 11; SECURITY.md W15).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api import cancelling, counting
from gateway.api.administration import (
    budgets,
    cache,
    exports,
    finance,
    operations,
    organization,
    secrets,
    tenant_deletion,
    users,
)
from gateway.api.administration import call as admin_call
from gateway.api.caller import Me, Model, Models, Request, Version
from gateway.api.chat import CHAT
from gateway.api.completions import COMPLETIONS
from gateway.api.doorway import Doorway
from gateway.api.endpoint import Endpoint
from gateway.api.generate import Family, Generate
from gateway.api.health import Health, Ready
from gateway.api.messages.family import MESSAGES
from gateway.api.once import Once
from gateway.api.problems import Problems
from gateway.api.registered import call as registered_call
from gateway.api.registered import documents, templates
from gateway.api.responses import calls
from gateway.api.responses.calls import ReadResponse, StoredRoute
from gateway.api.responses.create import CreateResponse
from gateway.api.responses.making import RESPONSES
from gateway.errors import ApiError, not_found
from gateway.house import House
from gateway.openapi.pages import pages
from tenants.documents import Kind

GENERATING = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
"""The endpoints that ask a model."""


def public_app(house: House, draw_seed: Callable[[], int], *, docs: bool = False) -> ASGIApp:
    """What customers reach.  `docs`: the documentation too."""
    doorway = Doorway()

    cancel = cancelling.Cancel(house, tuple(family.route for family in GENERATING))

    def generate(family: Family) -> Route:
        endpoint: Endpoint = Generate(house, family, draw_seed)
        if family is RESPONSES:
            endpoint = CreateResponse(house, draw_seed)
        return _post(family.route, Once(house, endpoint, doorway))

    return Rooms(
        [
            _get("/health", Health()),
            _get("/ready", Ready(house)),
            _get("/version", Version(house)),
            *map(generate, GENERATING),
            *(_post(each.route, Once(house, each, doorway)) for each in counting.endpoints(house)),
            _post(cancelling.ROUTE, Once(house, cancel, doorway)),
            *stored(house, doorway),
            _get("/v1/models", Models(house)),
            _get("/v1/models/{id:path}", Model(house)),
            _get("/v1/me", Me(house)),
            _get("/v1/requests/{id}", Request(house)),
            *registered(house, "/v1", doorway),
            *(documentation() if docs else ()),
        ]
    )


def stored(house: House, doorway: Doorway) -> list[Route]:
    """Responses after they were made."""
    path, items, cancel = calls.PREFIX + "{id}", "/input_items", "/cancel"
    removing = StoredRoute(house, calls.remove, rated=False)
    ending = StoredRoute(house, calls.cancel, cancel, rated=False)
    return [
        _get(path, ReadResponse(house)),
        Route(path, Once(house, removing, doorway), methods=["DELETE"]),
        _post(path + cancel, Once(house, ending, doorway)),
        _get(path + items, StoredRoute(house, calls.input_items, items)),
    ]


def admin_app(house: House) -> ASGIApp:
    """What operators and tenant administrators reach."""
    doorway = Doorway()

    def route(handler: admin_call.Handler, prefix: str = "", suffix: str = "") -> admin_call.Route:
        return admin_call.Route(house, handler, prefix, suffix)

    def asked(handler: admin_call.Handler) -> admin_call.Route:
        return admin_call.Route(house, handler, asked=True)

    def change(
        handler: admin_call.Handler, prefix: str = "", suffix: str = "", *, secret: bool = False
    ) -> Once:
        endpoint = admin_call.Route(house, handler, prefix, suffix, secret=secret)
        return Once(house, endpoint, doorway)

    keys, tenants, months = "/v1/admin/keys/", "/v1/admin/tenants/", "/v1/admin/periods/"
    return Problems(
        Rooms(
            [
                _get("/health", Health()),
                _get("/ready", Ready(house)),
                _get("/metrics", route(operations.metrics)),
                _get("/load", route(operations.load)),
                _get("/v1/admin/status", route(operations.status)),
                _get("/v1/admin/queue", asked(operations.queue)),
                _get("/v1/admin/promises", asked(operations.promises)),
                _get("/v1/admin/keys", asked(operations.list_keys)),
                _post("/v1/admin/keys", change(operations.create_key, secret=True)),
                _post(
                    keys + "{id}/rotate",
                    change(operations.rotate_key, keys, "/rotate", secret=True),
                ),
                _post(keys + "{id}/revoke", change(operations.revoke_key, keys, "/revoke")),
                _post("/v1/admin/tokens/revoke", change(operations.revoke_token)),
                _get("/v1/admin/tenants", route(operations.tenants)),
                _post(tenants + "{id}/suspend", change(operations.suspend, tenants, "/suspend")),
                _post(tenants + "{id}/resume", change(operations.resume, tenants, "/resume")),
                _post("/v1/admin/users/pseudonymise", change(users.pseudonymise)),
                _get("/v1/admin/budgets", asked(budgets.budgets)),
                _post("/v1/admin/budgets", change(budgets.set_budget)),
                _post("/v1/admin/budgets/top-up", change(budgets.top_up)),
                _post("/v1/admin/budgets/credit", change(budgets.credit)),
                _post("/v1/admin/budgets/refund", change(budgets.refund)),
                _get("/v1/admin/budgets/adjustments", asked(budgets.adjustments)),
                _get("/v1/admin/usage", asked(finance.usage)),
                _get("/v1/admin/usage/device", asked(finance.device_time)),
                _get("/v1/admin/usage/export", asked(exports.export)),
                _get("/v1/admin/usage/export/manifest", asked(exports.manifest)),
                _get("/v1/admin/usage/reconcile", asked(finance.reconcile)),
                _get("/v1/organization/costs", asked(organization.costs)),
                _get("/v1/organization/usage/completions", asked(organization.completions)),
                _get("/v1/admin/periods", route(finance.listed_periods)),
                _post(months + "{id}/close", change(finance.close, months, "/close")),
                _get(months + "{id}/verify", route(finance.verify, months, "/verify")),
                _get("/v1/admin/requests/{id}", route(operations.request, "/v1/admin/requests/")),
                _get("/v1/admin/check", asked(operations.check)),
                _get("/v1/admin/cache", asked(cache.listed)),
                _post("/v1/admin/cache/purge", change(cache.purged)),
                _get(tenants + "{id}/export", route(tenant_deletion.export, tenants, "/export")),
                _post(tenants + "{id}/delete", change(tenant_deletion.delete, tenants, "/delete")),
                _get(tenants + "{id}/secret", route(secrets.secret, tenants, "/secret")),
                *(
                    _post(f"{tenants}{{id}}{ends}", change(handler, tenants, ends))
                    for ends, handler in (
                        ("/secret/rotate", secrets.rotate),
                        ("/secret/retire", secrets.retire),
                        ("/shred", secrets.shred),
                    )
                ),
                _get("/v1/admin/root-key", route(secrets.roots)),
                _post("/v1/admin/root-key/rewrap", change(secrets.rewrap)),
                _post("/v1/admin/root-key/release", change(secrets.release)),
                *registered(house, "/v1/admin", doorway),
                *documentation(),
            ]
        )
    )


def documentation() -> list[Route]:
    return [_get(path, page) for path, page in pages().items()]


def registered(house: House, under: str, doorway: Doorway) -> list[Route]:
    """Documents and templates, which both listeners have."""

    def routes(kind: Kind, family: ModuleType) -> list[Route]:
        base = f"{under}/{kind.value}s"

        def at(method: str, handler: registered_call.Handler, suffix: str | None = None) -> Route:
            prefix, ends = ("", "") if suffix is None else (base + "/", suffix)
            # Whoever has used up their rate can still take a right away.
            rated = method != "DELETE"
            endpoint = registered_call.Route(house, kind, handler, prefix, ends, rated=rated)
            path = base if suffix is None else f"{base}/{{id}}{suffix}"
            changes = method != "GET"
            return Route(
                path, Once(house, endpoint, doorway) if changes else endpoint, methods=[method]
            )

        alike: registered_call.Family = family.FAMILY
        found = [at("GET", alike.every), at("POST", family.create)]
        found += [at("GET", alike.one, ""), at("PATCH", family.change, "")]
        found += [at("DELETE", alike.remove, ""), at("GET", alike.content, "/content")]
        if kind is Kind.DOCUMENT:
            found.append(at("PUT", family.set_acl, "/acl"))
        return found

    return routes(Kind.DOCUMENT, documents) + routes(Kind.TEMPLATE, templates)


@dataclass(frozen=True, slots=True, init=False)
class Rooms:
    """Starlette's router, with refusals in our own words."""

    router: Router

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        object.__setattr__(self, "router", Router(routes, redirect_slashes=False))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            # With an "app" in its scope the router raises instead of answering in plain text.
            await self.router({**scope, "app": self}, receive, send)
        except HTTPException as why:
            if why.status_code == 405:
                raise ApiError(
                    405,
                    "invalid_request_error",
                    "method_not_allowed",
                    f"{scope['method']} is not possible here.",
                    headers=dict(why.headers or {}),
                ) from why
            raise not_found() from why


def _get(path: str, endpoint: ASGIApp) -> Route:
    return Route(path, endpoint, methods=["GET"])


def _post(path: str, endpoint: ASGIApp) -> Route:
    return Route(path, endpoint, methods=["POST"])
