"""Development mode: two demo tenants on this machine, no identity provider, nothing to configure.

Listens on loopback only and its issuer is one that production refuses.  The plan is that of
`deploy/lockgate.example.toml`; a test holds the two together.  Source: DESIGN.md (What a user does).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from gateway.settings.faults import Fault, SettingsError
from gateway.settings.load import with_state_dir
from gateway.settings.shape import (
    Budget,
    BudgetMode,
    Limits,
    Listen,
    Mode,
    Model,
    Plan,
    Price,
    Project,
    ServiceClass,
    Settings,
    State,
    Tagged,
    Tenant,
    UserLimits,
    Webhooks,
    Window,
)
from gateway.settings.units import Address, Usd

MODEL_NAME = "smollm2-135m"
PUBLIC_PORT = 8080
PAGE_ORIGIN = "http://127.0.0.1:8090"
"""Where gateway/console/README.md has one open the example page."""


def development(
    state_dir: Path,
    *,
    port: int = PUBLIC_PORT,
    admin_port: int | None = None,
    env: Mapping[str, str] = os.environ,
) -> Settings:
    """`admin_port` None: the one after `port`.  Raises SettingsError for ports that cannot be."""
    admin_port = port + 1 if admin_port is None else admin_port
    faults = [
        Fault(option, f"is {number}", "1 to 65535, two different ports", "Choose another port.")
        for option, number in (("--port", port), ("--admin-port", admin_port))
        if not 0 < number < 65536
    ]
    if port == admin_port:
        faults.append(
            Fault("--admin-port", f"is --port, {port}", "another port", "Choose another port.")
        )
    if faults:
        raise SettingsError("development mode", faults)
    settings = Settings(
        mode=Mode.DEVELOPMENT,
        source="development mode",
        listen=Listen(
            public=Address("127.0.0.1", port),
            admin=Address("127.0.0.1", admin_port),
            hosts=("127.0.0.1", "localhost"),
            cors_origins=(PAGE_ORIGIN,),
        ),
        state=State(),
        models=(Model(name=MODEL_NAME, path=MODEL_NAME, aliases=("default",)),),
        prices=(
            Price(
                model=MODEL_NAME,
                effective=datetime(2026, 10, 1, tzinfo=UTC),
                input=200_000_000,
                cached_input=50_000_000,
                cache_write=200_000_000,
                output=600_000_000,
                batch_factor=0.5,
            ),
        ),
        issuers=(),
        classes={
            "critical": ServiceClass(reserved=0.2, ttft_ms=500, itl_ms=80),
            "interactive": ServiceClass(weight=1.0, ttft_ms=2000, itl_ms=120),
            "batch": ServiceClass(floor=0.05),
        },
        plans={"pro": _PLAN},
        tenants={
            "acme": Tenant(
                plan="pro",
                residency="eu",
                projects={
                    "search": Project(
                        budget=Budget(usd=Usd.parse("50.00"), window=Window.ROLLING_24H, hard=True)
                    )
                },
                tags={
                    "team=search": Tagged(
                        budget=Budget(usd=Usd.parse("100.00"), mode=BudgetMode.SOFT)
                    )
                },
            ),
            "globex": Tenant(plan="pro"),
        },
        webhooks=Webhooks(),
        models_dir=state_dir / "models",
    )
    return with_state_dir(settings, state_dir, env)


_PLAN = Plan(
    models=(MODEL_NAME,),
    classes=("interactive", "batch"),
    limits=Limits(
        rpm=600,
        input_tpm=200_000,
        output_tpm=100_000,
        concurrent=32,
        max_prompt_tokens=8000,
        max_output_tokens=2000,
        n=8,
        documents=1000,
        document_tokens=200_000,
    ),
    user_limits=UserLimits(rpm=60, concurrent=4),
    budget=Budget(usd=Usd.parse("500.00"), mode=BudgetMode.HARD, notify_at=(0.5, 0.8, 1.0)),
)
