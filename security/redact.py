"""What a log line may say: an allow-list, applied last, to every line of every process.

Refuses to trust whoever logs.  An event is a dotted name of ours, not a sentence (a sentence could
quote a prompt); a field passes by its name and is bounded, masked where it looks like a credential
and escaped; the value of any other field is replaced by its type; an exception shows its types and
places, not its message.  Source: SECURITY.md §1 (P10), §4 (L3), §5 (LiteLLM CVE-2024-9606); ASVS
16.2.5.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Mapping, MutableMapping
from types import TracebackType
from typing import Any

from structlog.typing import Processor

TEXT_CHARS_MAX = 256
FIELDS_MAX = 48
FRAMES_MAX = 20
NAMES = frozenset(
    {
        *("event", "level", "timestamp", "logger", "process", "pid", "worker", "version", "commit"),
        *("request_id", "tenant", "project", "subject", "credential_id", "key_id", "issuer"),
        *("route", "method", "status", "code", "kind", "reason", "outcome", "stage", "cause"),
        *("model", "device", "numerics", "service_class", "finish_reason", "stream", "scope"),
        *("path", "listener", "host", "port", "signal", "attempt", "error", "fault", "fix"),
        *("count", "running", "waiting", "blocks", "preemptions", "workers", "percent"),
    }
)
_UNITS = re.compile(
    r"[a-z][a-z0-9_]{0,40}_(?:ns|us|ms|s|tokens|bytes|nano_usd|count|ratio)", re.ASCII
)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,47}", re.ASCII)
_EVENT = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*", re.ASCII)
_SECRETS = re.compile(
    r"lg_[A-Za-z0-9_-]+"  # our keys
    r"|eyJ[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)*"  # JWTs, and parts of them
    r"|(?:sk|pk|ghp|hf|xox[a-z])[-_][A-Za-z0-9_-]{8,}"  # others' keys, pasted
    r"|(?i:bearer|basic) +\S+"
    r"|-----BEGIN [A-Z ]+-----.*"
    r"|://[^/@\s]+@"  # a password in a URL
    r"|[A-Za-z0-9_+/=-]{40,}",  # any long opaque run: digests and keys of unknown kinds
    re.DOTALL,
)
_MASK = "<redacted>"
_LINE = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), allow_nan=True)


def processors() -> list[Processor]:
    """The end of a structlog chain; what comes before it may add what it likes."""
    return [redact, render]


def redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """Keep what may be said.  Never raises for a value that it was given."""
    kept: dict[str, Any] = {}
    exc_info = event.pop("exc_info", None)
    for name, value in list(event.items())[:FIELDS_MAX]:
        if name == "event":
            kept[name] = _event(value)
        elif isinstance(name, str) and _NAME.fullmatch(name):
            kept[name] = field(name, value)
        else:
            kept["unnamed"] = _type(value)
    found = _exception(exc_info)
    if found is not None:
        kept["exception"] = describe(found)
    return kept


def field(name: str, value: object) -> object:
    """One field's value as it may be logged."""
    if isinstance(value, BaseException):
        return type(value).__name__
    if name not in NAMES and not (_UNITS.fullmatch(name) and _is_number(value)):
        return _type(value)
    if value is None or _is_number(value):
        return value
    return text(value) if isinstance(value, str) else _type(value)


def text(value: str) -> str:
    """Bounded, masked, and on one line: control and other unprintable characters are escaped."""
    cut = value if len(value) <= TEXT_CHARS_MAX else value[:TEXT_CHARS_MAX] + "…"
    masked = _SECRETS.sub(_MASK, cut)
    if masked.isprintable():
        return masked
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in masked)


def describe(error: BaseException) -> dict[str, Any]:
    """Types down the chain of causes, and where it was raised.  No message and no value: either may
    quote what a caller sent."""
    kinds: list[str] = []
    at: BaseException | None = error
    while at is not None and len(kinds) < 8:
        kinds.append(type(at).__name__)
        at = at.__cause__ or at.__context__
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES_MAX:]
    return {"types": kinds, "at": [f"{_short(f.filename)}:{f.lineno} {f.name}" for f in frames]}


def render(_logger: Any, _method: str, event: Mapping[str, Any]) -> str:
    """One line of ASCII JSON."""
    return _LINE.encode(event)


def _event(value: object) -> str:
    if isinstance(value, str) and len(value) <= 64 and _EVENT.fullmatch(value):
        return value
    return "unnamed"


def _is_number(value: object) -> bool:
    return isinstance(value, (bool, int, float)) and (
        not isinstance(value, int) or abs(value) < 2**63
    )


def _type(value: object) -> str:
    return f"<{type(value).__name__}>"


def _exception(exc_info: object) -> BaseException | None:
    if isinstance(exc_info, BaseException):
        return exc_info
    if isinstance(exc_info, tuple) and len(exc_info) == 3:
        found, trace = exc_info[1], exc_info[2]
        assert trace is None or isinstance(trace, TracebackType)
        return found if isinstance(found, BaseException) else None
    return sys.exc_info()[1] if exc_info else None


def _short(path: str) -> str:
    """The last two parts: enough to find it, nothing of the machine."""
    return "/".join(path.replace("\\", "/").split("/")[-2:])
