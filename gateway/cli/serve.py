"""`lockgate serve`: settings from a file or development mode, then the house.

Decides nothing but which settings; `gateway.bootstrap.run` does the rest.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gateway.cli.options import VAR
from gateway.cli.show import Refusal, note
from gateway.settings import (
    Mode,
    Settings,
    SettingsError,
    development,
    load,
    with_model,
    with_state_dir,
)
from gateway.settings.development import PUBLIC_PORT
from gateway.settings.load import ENV_CONFIG, ENV_STATE_DIR
from gateway.settings.units import Address

Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", envvar=ENV_CONFIG, help="A configuration file: production."),
]


class MetricsCompat(StrEnum):
    VLLM = "vllm"


def serve(
    config: Config = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The public port [8080].")
    ] = None,
    admin_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="The admin listener's port [one above the public]."),
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(envvar=ENV_STATE_DIR, help="Where to keep everything it writes [var]."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Serve this directory (safetensors), .gguf file or hub id instead."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="CPU threads of the model [all cores].")
    ] = None,
    served_model_name: Annotated[
        str | None, typer.Option(help="One more name that the model answers to.")
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(min=16, max=10_000_000, help="Tokens of its context, prompt and answer."),
    ] = None,
    metrics_compat: Annotated[
        MetricsCompat | None,
        typer.Option(help="Another server's metric names beside our own, for its dashboards."),
    ] = None,
) -> None:
    """Serve models: by --config, or else in development mode (two demo tenants, this machine only)."""
    try:
        settings = choose(config, port, admin_port, state_dir)
        settings = with_model(settings, model, served_model_name, max_model_len)
    except SettingsError as error:
        raise Refusal(str(error)) from None
    settings = msgspec.structs.replace(
        settings, threads=threads, vllm_metrics=metrics_compat is not None
    )
    for sentence in settings.notices:
        note(f"note: {sentence}")
    for address, option in (
        (settings.listen.public, "--port"),
        (settings.listen.admin, "--admin-port"),
    ):
        require_free(address, option)
    from gateway.bootstrap import run

    raise typer.Exit(run(settings))


def choose(
    config: Path | None,
    port: int | None,
    admin_port: int | None,
    state_dir: Path | None,
) -> Settings:
    if config is None:
        settings = development(state_dir or VAR, port=port or PUBLIC_PORT, admin_port=admin_port)
    else:
        settings = load(config, os.environ, now_s=int(time.time()))
        if state_dir is not None:
            settings = with_state_dir(settings, state_dir, os.environ)
        settings = _with_ports(settings, port, admin_port)
    assert settings.mode is (Mode.DEVELOPMENT if config is None else Mode.PRODUCTION)
    return settings


def _with_ports(settings: Settings, port: int | None, admin_port: int | None) -> Settings:
    listen = settings.listen
    public = Address(listen.public.host, port or listen.public.port)
    admin = Address(listen.admin.host, admin_port or listen.admin.port)
    if public.port == admin.port:
        raise Refusal(
            f"Port {public.port} would be both listeners'. Give --admin-port another one."
        )
    return msgspec.structs.replace(
        settings, listen=msgspec.structs.replace(listen, public=public, admin=admin)
    )


def require_free(address: Address, option: str) -> None:
    """Say early and clearly what binding would say late.  The listener itself is still the judge."""
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Refusal(
                f"Port {address.port} is in use, perhaps by another Lockgate. Choose another with {option}."
            ) from None
        if error.errno == errno.EACCES:
            raise Refusal(
                f"This account may not listen on port {address.port}. Choose one above 1023 with {option}."
            ) from None
        raise Refusal(f"{address} cannot be listened on: {error.strerror}.") from None
