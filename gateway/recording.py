"""The audit log as the house has it: where it lies, who hears when a directory of it falls behind, what
Prometheus reads of it, and the secrets by which tenants' people are named in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.settings import Settings
from security.audit_log import AuditLog
from security.audit_signer import AuditKeys
from security.audit_sinks import Changed, SinkState
from security.keyring import Keyring
from security.keyring_tenants import SecretGone, TenantSecrets


class AuditUnusable(Exception):
    """A folder of the audit log cannot be used.  The message says what to do."""


def audit_folders(settings: Settings) -> tuple[Path, ...]:
    """At least one; the first is where a reader looks first."""
    return settings.audit.dirs or (settings.state.dir / "audit",)


def open_audit(
    settings: Settings, keyring: Keyring, clock_ms: Callable[[], int], log: Callable[..., None]
) -> AuditLog:
    """Raises AuditLocked, AuditCorrupt, AuditUnusable.  Blocks: a directory that was behind is copied."""
    folders = audit_folders(settings)

    def report(change: Changed) -> None:
        event = "audit.sink_back" if change.reason is None else "audit.sink_lost"
        log(event, path=str(folders[change.sink]), reason=change.reason, count=change.lacks)

    try:
        return AuditLog.open(folders, keys=AuditKeys.of(keyring), clock_ms=clock_ms, report=report)
    except OSError as why:
        where = why.filename or ", ".join(map(str, folders))
        raise AuditUnusable(
            f"The audit log cannot be kept in {where}: {why.strerror or why}. Mend that, or take the "
            "folder out of [audit] dirs: then it is no part of the log any more."
        ) from why


async def ensure_secrets(secrets: TenantSecrets, tenants: Iterable[str]) -> None:
    """Each tenant has one, so that the log has names for its people.  One that was shredded stays so."""
    for tenant in tenants:
        with suppress(SecretGone):
            await secrets.ensure(tenant)


class AuditGauges(Collector):
    """Read at scrape time, by the directory's place in the configuration."""

    def __init__(self, sinks: Callable[[], tuple[SinkState, ...]]) -> None:
        self._sinks = sinks

    def collect(self) -> Iterator[GaugeMetricFamily]:
        current = GaugeMetricFamily(
            "lockgate_audit_sink_current",
            "Whether this directory has all records of the audit log.",
            labels=["sink"],
        )
        lacks = GaugeMetricFamily(
            "lockgate_audit_sink_lacks_records",
            "How many records this directory of the audit log lacks.",
            labels=["sink"],
        )
        for index, state in enumerate(self._sinks()):
            current.add_metric([str(index)], int(state.current))
            lacks.add_metric([str(index)], state.lacks)
        yield current
        yield lacks
