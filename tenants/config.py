"""What configuration says of plans and tenants, once decoded.  Field for field as in
lockgate.example.toml; what the line does not use yet (cache) is not here.

Refuses to know: TOML, defaults of the file format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from policies.facts import Budget, Limits

NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """`limits` and `budget` are the tenant's; `user_limits` each user's; `key_limits` each key's
    where the key has none of its own.  `documents`: how many registered texts the tenant may have, and
    `document_tokens` in all of them."""

    models: tuple[str, ...]
    classes: tuple[str, ...] = ("interactive",)
    weight: float = 1.0
    limits: Limits = NO_LIMITS
    user_limits: Limits = NO_LIMITS
    key_limits: Limits = NO_LIMITS
    budget: Budget | None = None
    documents: int | None = None
    document_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectConfig:
    limits: Limits = NO_LIMITS
    budget: Budget | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantConfig:
    """`tags`: budgets by tag, spelt `name=value`."""

    plan: str
    residency: str | None = None
    projects: Mapping[str, ProjectConfig] = field(default_factory=dict)
    tags: Mapping[str, Budget] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryConfig:
    """ValueError, all faults at once, where a tenant names a plan that is not there."""

    plans: Mapping[str, PlanConfig]
    tenants: Mapping[str, TenantConfig]

    def __post_init__(self) -> None:
        faults = [
            f"tenant {name!r} names plan {tenant.plan!r}; there are {sorted(self.plans)}"
            for name, tenant in self.tenants.items()
            if tenant.plan not in self.plans
        ]
        if faults:
            raise ValueError("; ".join(faults))
