"""The executors, started at the composition root: a process for each model.

Refuses to know: what they are asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

from executor.client import ExecutorProcess
from gateway import logs
from gateway.assembly import executor_command
from gateway.house import Deployment
from gateway.models_store import fetch
from gateway.settings import Settings
from gateway.settings.shape import ToolFormat
from gateway.tools.formats import Format


def tool_format(said: ToolFormat) -> Format | None:
    return None if said is ToolFormat.AUTO else Format(said.value)


async def deploy(
    settings: Settings, stack: AsyncExitStack, log: Callable[..., None]
) -> list[Deployment]:
    """An executor process for each model, started and not waited for."""
    deployments = []
    for model in settings.models:
        found = await asyncio.to_thread(fetch, model.path, settings.models_dir)
        executor = ExecutorProcess(
            executor_command(model, found.path, settings.threads),
            settings.state.dir / "run" / model.name.replace("/", "--"),
            on_event=partial(logs.executor_told, log, model.name),
        )
        await stack.enter_async_context(executor)
        deployments.append(
            Deployment(
                name=model.name,
                aliases=model.aliases,
                executor=executor,
                numerics=model.numerics.value,
                created_s=int(found.path.stat().st_mtime),
                batching=model.batching.value,
                tool_format=tool_format(model.tool_format),
            )
        )
    return deployments
