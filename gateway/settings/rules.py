"""What fields mean together, and what is not built yet: contradictions, named one by one.

`CHECKS` look at one table of the file wherever it stands; `CROSS` compare tables and run only where
none of theirs had to be left out, so that one mistake is not reported three times.  Pure;
knows no file, no clock.  Source: DESIGN.md (What a user does), SECURITY.md P15, SCHEDULER.md.
The list of what is not supported yet is also the table in deploy/README.md, and a test compares them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from urllib.parse import parse_qs, urlsplit

from gateway.settings import rules_classes, rules_listen, rules_till
from gateway.settings.decode import Check
from gateway.settings.faults import Fault, not_yet
from gateway.settings.shape import (
    Audit,
    Budget,
    BudgetMode,
    Device,
    File,
    Issuer,
    Listen,
    Model,
    Numerics,
    Plan,
    Price,
    Retention,
    ServiceClass,
    State,
    Tenant,
    Webhooks,
)
from policies import tags
from security.outbound import url_fault

POSTGRES_OPTIONS = frozenset({"host", "sslmode"})
"""`host` for the folder of a Unix socket; `sslmode` as libpq spells it."""
SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


GUARDED_DAYS = 40
"""Longer than any budget's window that ends, and than its row is kept (`tenants.retention`)."""


def _state(state: State, path: str) -> Iterator[Fault]:
    if state.gateways > 1 and not state.redis_url:
        yield Fault(
            f"{path}.gateways",
            f"is {state.gateways}, and each would keep limits of its own",
            "1, or a redis_url that all of them share",
            "Set redis_url.",
        )
    url = state.database_url
    if url.startswith("postgres"):
        yield from _postgres(url, f"{path}.database_url")
    elif not url.startswith("sqlite:///") or url in {"sqlite:///", "sqlite:///:memory:"}:
        yield Fault(
            f"{path}.database_url",
            "names no database that keeps money",
            '"sqlite:///PATH" (three slashes: relative; four: absolute) or "postgresql://…"',
            'Set database_url = "sqlite:///var/lockgate.db".',
        )


def _postgres(url: str, path: str) -> Iterator[Fault]:
    """Shows nothing of the URL: there may be a password in it, and where it ends nobody knows who has
    not written it."""
    expected = '"postgresql://USER:PASSWORD@HOST:PORT/DATABASE"'
    escape = (
        "Write what is special in a password as %XX, such as %3F for ?, %2F for / and %40 for @."
    )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        yield Fault(path, "has a host or port that is none", expected, escape)
        return
    if parts.scheme != "postgresql":
        yield Fault(path, "has a scheme of its own", expected, "Begin it with postgresql://.")
    elif len(parts.path) < 2 or "/" in parts.path[1:]:
        yield Fault(
            path, "names no database", expected, f"End it with the database's name. {escape}"
        )
    elif port == 0 or "@" in parts.query or "#" in url:
        yield Fault(path, "cannot be read", expected, escape)
    elif set(parse_qs(parts.query, keep_blank_values=True)) - POSTGRES_OPTIONS:
        known = " and ".join(sorted(POSTGRES_OPTIONS))
        yield Fault(
            path, "has options that are not known", known, f"Leave the others out. {escape}"
        )
    elif not set(parse_qs(parts.query).get("sslmode", ())) <= set(SSL_MODES):
        yield Fault(path, "has an sslmode that is not known", ", ".join(SSL_MODES), "Name one.")


def _audit(audit: Audit, path: str) -> Iterator[Fault]:
    for index, each in enumerate(audit.dirs):
        others = audit.dirs[:index]
        if any(each.is_relative_to(other) or other.is_relative_to(each) for other in others):
            yield Fault(
                f"{path}.dirs[{index}]",
                "is, or lies in, or holds another of them",
                "folders apart from each other, best on different disks",
                "Name another folder.",
            )


def _model(model: Model, path: str) -> Iterator[Fault]:
    if model.device is Device.CUDA and model.numerics is not Numerics.FAST:
        yield not_yet(
            f"{path}.numerics",
            f'"{model.numerics}" numerics on a CUDA device',
            '"fast" there; "invariant" and "int8" on the CPU',
            'Set device = "cpu", or numerics = "fast".',
        )
    yield from rules_classes.batching(model, path)


def _price(price: Price, path: str) -> Iterator[Fault]:
    if price.effective.microsecond:
        yield Fault(f"{path}.effective", "has a fraction of a second", "whole seconds", "Round it.")


def _issuer(issuer: Issuer, path: str) -> Iterator[Fault]:
    if len(set(issuer.algorithms)) != len(issuer.algorithms):
        yield Fault(f"{path}.algorithms", "names one twice", "each once", "Remove the second.")


def _plan(plan: Plan, path: str) -> Iterator[Fault]:
    for field, names in (("models", plan.models), ("classes", plan.classes)):
        for name in _twice(names):
            yield Fault(f"{path}.{field}", f"names {name} twice", "each once", "Remove one.")
    if plan.limits.max_output_tokens is not None and plan.limits.output_tpm is not None:
        yield from _burst(plan.limits.max_output_tokens, plan.limits.output_tpm, "output", path)
    if plan.limits.max_prompt_tokens is not None and plan.limits.input_tpm is not None:
        yield from _burst(plan.limits.max_prompt_tokens, plan.limits.input_tpm, "prompt", path)


def _burst(most: int, per_minute: int, kind: str, path: str) -> Iterator[Fault]:
    if most > per_minute:
        rate = "output_tpm" if kind == "output" else "input_tpm"
        yield Fault(
            f"{path}.limits.max_{kind}_tokens",
            f"allows {most:,} tokens in one request, and {rate} only {per_minute:,} a minute",
            f"at most {rate}, or such a request could never run",
            f"Lower max_{kind}_tokens or raise {rate}.",
        )


def _budget(budget: Budget, path: str) -> Iterator[Fault]:
    if budget.hard is not None and budget.hard != (budget.kind is BudgetMode.HARD):
        yield Fault(
            f"{path}.hard",
            "contradicts mode",
            "one of the two",
            f'Leave mode = "{budget.mode}" alone.',
        )
    if list(budget.notify_at) != sorted(set(budget.notify_at)):
        yield Fault(f"{path}.notify_at", "is not rising", "fractions in rising order", "Sort them.")
    yield from rules_till.till(budget, path)


def _tenant(tenant: Tenant, path: str) -> Iterator[Fault]:
    for text in tenant.tags:
        try:
            tags.parse(text)
        except ValueError as why:
            yield Fault(
                f"{path}.tags.{text[:80]!r}",
                "is no tag",
                str(why),
                'Write it as [tenants.NAME.tags."team=search"].',
            )


def _webhooks(webhooks: Webhooks, path: str) -> Iterator[Fault]:
    if not webhooks.url:
        return
    if fault := url_fault(webhooks.url):
        yield Fault(
            f"{path}.url",
            fault,
            "an https URL such as https://hooks.example.com/lockgate",
            "What is sent is signed, not secret: TLS keeps it so.",
        )
    if webhooks.secret_file is None:
        yield Fault(
            f"{path}.secret_file",
            "is missing, and nobody could tell our events from another's",
            "the path of a file with whsec_ and base64 of 24 to 64 random bytes",
            "Make one and give the same to the receiver.",
        )


def _retention(retention: Retention, path: str) -> Iterator[Fault]:
    for name in ("user_ids_days", "notices_days"):
        if 0 < getattr(retention, name) < GUARDED_DAYS:
            yield Fault(
                f"{path}.{name}",
                f"is {getattr(retention, name)}, and a month's budgets still count what was then",
                f"0 (for ever) or at least {GUARDED_DAYS}",
                f"Set {GUARDED_DAYS} or more.",
            )


CHECKS: Mapping[type, Check] = MappingProxyType(
    {
        Listen: rules_listen.listen,
        State: _state,
        Audit: _audit,
        Model: _model,
        Price: _price,
        Issuer: _issuer,
        ServiceClass: rules_classes.service_class,
        Plan: _plan,
        Budget: _budget,
        Tenant: _tenant,
        Webhooks: _webhooks,
        Retention: _retention,
    }
)


def _some_issuer(file: File) -> Iterator[Fault]:
    if not file.issuers:
        yield Fault(
            "issuers",
            "names no issuer",
            "at least one with issuer, audience and algorithms",
            "Production accepts nobody it cannot verify; start without --config to try Lockgate.",
        )


def _unique(file: File) -> Iterator[Fault]:
    names = [name for model in file.models for name in (model.name, *model.aliases)]
    for name in _twice(names):
        yield Fault("models", f"{name} names two", "a name or alias once", "Rename one.")
    for url in _twice(issuer.issuer for issuer in file.issuers):
        yield Fault("issuers", f"{url} stands twice", "each issuer once", "Merge the two.")


def _one_price(file: File) -> Iterator[Fault]:
    rows = (f"{price.model} from {price.effective.isoformat()}" for price in file.prices)
    for row in _twice(rows):
        yield Fault("prices", f"{row} stands twice", "one price at a time", "Remove one.")


def _priced(file: File) -> Iterator[Fault]:
    priced = {price.model for price in file.prices}
    for index, model in enumerate(file.models):
        if model.name not in priced:
            yield Fault(
                f"models[{index}].name",
                f"{model.name} has no price",
                f'a [[prices]] table with model = "{model.name}"',
                "An unpriced model is never served; a price may be 0.",
            )


def _plans_models(file: File) -> Iterator[Fault]:
    names = {model.name for model in file.models}
    aliases = {alias: model.name for model in file.models for alias in model.aliases}
    for key, plan in file.plans.items():
        for index, name in enumerate(plan.models):
            if name not in names:
                fix = (
                    f"It is an alias; write {aliases[name]}."
                    if name in aliases
                    else "Add the model or remove it from the plan."
                )
                yield Fault(
                    f"plans.{key}.models[{index}]",
                    f"{name} is not in [[models]]",
                    "one of " + ", ".join(sorted(names)),
                    fix,
                )


def _plans_classes(file: File) -> Iterator[Fault]:
    for key, plan in file.plans.items():
        for index, name in enumerate(plan.classes):
            at = f"plans.{key}.classes[{index}]"
            if name not in file.classes:
                expected = (
                    "one of " + ", ".join(sorted(file.classes)) if file.classes else "a class"
                )
                yield Fault(at, f"{name} is not in [classes]", expected, f"Add [classes.{name}].")


def _tenants(file: File) -> Iterator[Fault]:
    for name, tenant in file.tenants.items():
        if tenant.plan not in file.plans:
            expected = "one of " + ", ".join(sorted(file.plans)) if file.plans else "a plan"
            yield Fault(
                f"tenants.{name}.plan",
                f"{tenant.plan} is not in [plans]",
                expected,
                f"Add [plans.{tenant.plan}] or correct the name.",
            )


CROSS: tuple[tuple[tuple[str, ...], Callable[[File], Iterator[Fault]]], ...] = (
    (("issuers",), _some_issuer),
    (("listen", "issuers"), rules_listen.proven),
    (("models", "issuers"), _unique),
    (("prices",), _one_price),
    (("models", "prices"), _priced),
    (("models", "plans"), _plans_models),
    (("classes", "plans"), _plans_classes),
    (("classes",), rules_classes.shares),
    (("models", "classes"), rules_classes.waits),
    (("plans", "tenants"), _tenants),
    (("state", "plans", "tenants"), rules_till.shared),
)


def cross(file: File, incomplete: frozenset[str]) -> list[Fault]:
    return [fault for needs, rule in CROSS if not incomplete & set(needs) for fault in rule(file)]


def notices(file: File) -> tuple[str, ...]:
    """What is accepted and changes nothing yet, one sentence each."""
    said: list[str] = []
    used = {name for plan in file.plans.values() for name in plan.classes}
    said.extend(
        f"classes.{name}: {item.reserved:g} of the machine is kept free for it, and no plan names it."
        for name, item in file.classes.items()
        if item.reserved and name not in used
    )
    if file.state.redis_url.clear:
        said.append(f"state.redis_url: {file.state.redis_url} is not encrypted; rediss:// is.")
    models = {model.name for model in file.models}
    said.extend(
        f"prices: {name} is priced but not in [[models]]."
        for name in sorted({price.model for price in file.prices} - models)
    )
    return tuple(said)


def _twice(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
