"""What the admin listener says of a running server: status, usage, readiness; and one budget.

Refuses to know: how the server was started, what load it bears.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from tests.bench.framing import WireError
from tests.bench.wire import Client, Endpoint

POLL_S = 0.05


class Gauges(msgspec.Struct, frozen=True):
    running: int = 0
    waiting: int = 0
    blocks_total: int = 0
    blocks_free: int = 0
    kept_blocks: int = 0  # of prompts, for who may read them again


class ExecutorStatus(msgspec.Struct, frozen=True):
    state: str = ""
    pid: int | None = None
    restarts: int = 0
    gauges: Gauges = Gauges()


class Status(msgspec.Struct, frozen=True):
    executor: ExecutorStatus
    live_requests: int
    open_holds: int
    leases: int
    tasks: int
    pid: int

    def leftovers(self, idle_tasks: int | None = None) -> dict[str, int]:
        """What an idle server should not have.  `idle_tasks`: its task count before the load."""
        gauges = self.executor.gauges
        held = gauges.blocks_total - gauges.blocks_free - gauges.kept_blocks
        found = {
            "blocks": held,
            "running": self.executor.gauges.running,
            "waiting": self.executor.gauges.waiting,
            "live_requests": self.live_requests,
            "open_holds": self.open_holds,
            "leases": self.leases,
        }
        if idle_tasks is not None:
            found["tasks"] = max(0, self.tasks - idle_tasks)
        return {name: count for name, count in found.items() if count}


class Used(msgspec.Struct, frozen=True):
    """A row of the usage report, or its total."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    nano_usd: int = 0
    tenant: str | None = None

    def since(self, before: Used) -> Used:
        return Used(
            requests=self.requests - before.requests,
            input_tokens=self.input_tokens - before.input_tokens,
            output_tokens=self.output_tokens - before.output_tokens,
            nano_usd=self.nano_usd - before.nano_usd,
            tenant=self.tenant,
        )


@dataclass(frozen=True, slots=True)
class Executed:
    """What the executor counted itself: the other side of the comparison with what was billed."""

    prompt_tokens: int
    generated_tokens: int
    steps: int
    device_s: float  # of all steps


class _Usage(msgspec.Struct, frozen=True):
    rows: list[Used]
    total: Used


@dataclass(frozen=True, slots=True)
class Admin:
    url: str
    token: str

    async def status(self) -> Status:
        return msgspec.convert(await self._get("/v1/admin/status"), Status)

    async def usage(self, tenant: str | None = None) -> Used:
        """All tenants' total, or one tenant's row; zeros where it has none yet."""
        usage = msgspec.convert(await self._get("/v1/admin/usage?by=tenant"), _Usage)
        if tenant is None:
            return usage.total
        return next((row for row in usage.rows if row.tenant == tenant), Used(tenant=tenant))

    async def executed(self) -> Executed:
        """From /metrics, where the executor's own cumulative counts are."""
        async with self._client() as client, client.request("GET", "/metrics") as reply:
            text = (await reply.read()).decode()
        return Executed(
            prompt_tokens=round(_counter(text, "prompt_tokens")),
            generated_tokens=round(_counter(text, "generation_tokens")),
            steps=round(_counter(text, "engine_steps")),
            device_s=_counter(text, "device_seconds"),
        )

    async def set_tenant_budget(self, tenant: str, nano_usd: int, *, window: str) -> None:
        ask = {
            "tenant": tenant,
            "scope": "tenant",
            "id": tenant,
            "usd": f"{nano_usd // 10**9}.{nano_usd % 10**9:09d}",
            "window": window,
            "zone": "UTC",
            "hard": True,
            "reason": "bench",
        }
        async with self._client() as client:
            status, answer = await client.post("/v1/admin/budgets", ask)
        if status >= 300:
            raise RuntimeError(f"the budget was not set: {status} {answer}")

    async def _get(self, path: str) -> object:
        async with self._client() as client:
            status, answer = await client.get(path)
        if status != 200:
            raise RuntimeError(f"GET {path} answered {status}: {answer}")
        return answer

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        client = Client(Endpoint.parse(self.url), self.token)
        try:
            yield client
        finally:
            client.close()


def _counter(exposition: str, name: str) -> float:
    """The sum over models of one counter under our own prefix; RuntimeError where it is absent."""
    found = re.findall(rf"^lockgate[_:]{name}_total{{[^}}]*}} (\S+)$", exposition, re.MULTILINE)
    if not found:
        raise RuntimeError(f"/metrics has no lockgate_{name}_total")
    return sum(float(value) for value in found)


async def is_ready(base_url: str) -> bool:
    """Of the listener, not of the API below /v1."""
    endpoint = Endpoint.parse(base_url)
    client = Client(Endpoint(endpoint.host, endpoint.port))
    try:
        async with client.request("GET", "/ready") as reply:
            await reply.read()
            return reply.status == 200
    except (OSError, WireError, TimeoutError):
        return False
    finally:
        client.close()


async def until(check: Callable[[], Awaitable[bool]], *, deadline_s: float) -> float | None:
    """Poll until `check` holds; the seconds it took, or None at the deadline."""
    started = time.perf_counter()
    while True:
        try:
            if await check():
                return time.perf_counter() - started
        except (OSError, WireError, RuntimeError):
            pass  # it may be down just now: that is what some scenarios wait out
        if time.perf_counter() - started > deadline_s:
            return None
        await asyncio.sleep(POLL_S)


async def until_idle(
    admin: Admin, *, idle_tasks: int | None = None, deadline_s: float
) -> tuple[float | None, dict[str, int]]:
    """Wait until nothing is left over: the seconds it took (None: never), and what still was."""
    left: dict[str, int] = {}

    async def idle() -> bool:
        nonlocal left
        left = (await admin.status()).leftovers(idle_tasks)
        return not left

    return await until(idle, deadline_s=deadline_s), left
