"""Settings as the facts that policies decide over.  A mapping and nothing more: no defaults here."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.settings.shape import Budget, BudgetMode, Limits, Price, ServiceClass, UserLimits
from policies import classes, facts


def limits(of: Limits | UserLimits) -> facts.Limits:
    """Documents are counted where documents are kept, not in the line."""
    whole = of if isinstance(of, Limits) else None
    return facts.Limits(
        rpm=of.rpm,
        input_tpm=of.input_tpm,
        output_tpm=of.output_tpm,
        concurrent=of.concurrent,
        max_prompt_tokens=whole.max_prompt_tokens if whole else None,
        max_output_tokens=whole.max_output_tokens if whole else None,
        n=whole.n if whole else None,
    )


def budget(of: Budget) -> facts.Budget:
    return facts.Budget(
        limit_nano_usd=of.usd.nano,
        window=of.window.value,
        zone=str(of.zone),
        hard=of.kind is BudgetMode.HARD,
        shadow=of.kind is BudgetMode.SHADOW,
        notify_at=of.notify_at,
        till=of.till,
    )


def price(of: Price) -> facts.Price:
    """The id names model and date, which together are unique and never change their meaning."""
    effective_s = int(of.effective.timestamp())
    return facts.Price(
        id=f"{of.model}@{effective_s}",
        model=of.model,
        effective_s=effective_s,
        input=of.input,
        cached_input=of.cached_input,
        cache_write=of.cache_write,
        output=of.output,
        batch_factor=of.batch_factor,
    )


def service_classes(named: Mapping[str, ServiceClass]) -> dict[str, classes.ServiceClass]:
    """What the fields of a class mean together.  Nothing but a floor is backfill; a class that says
    nothing of its share takes its turn like any other, and so does a reserved one beyond its part."""
    return {
        name: classes.ServiceClass(
            name,
            weight=1.0 if of.weight is None and (of.reserved or not of.floor) else of.weight,
            reserved=of.reserved,
            floor=of.floor,
            ttft_ms=of.ttft_ms,
            itl_ms=of.itl_ms,
        )
        for name, of in named.items()
    }
