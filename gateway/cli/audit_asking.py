"""How the audits ask: by the front door as any client, one warm connection a role, timed to the first token.

Waits where the server says so (Retry-After) and asks again; only the request that was answered is timed.
Refuses a target that is not this machine unless its operator says so, since an audit is a load; refuses
tokens on the command line, where every process of the machine can read them.
Source: SECURITY.md §3.1; API.md §5 (rate headers).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Self

import httpx2
import msgspec
import typer

from gateway.cli import client
from gateway.cli.chat import READ_TIMEOUT_S, api_refusal, error_body
from gateway.cli.show import Refusal, note
from gateway.cli.sse import Data, NotEvents, events
from security.timing_audit_plan import Role

WAIT_S_MAX: Final = 120
WAITS_MAX: Final = 100
"""Of one request: then the server is too busy for an audit."""

TokensFile = Annotated[
    Path | None,
    typer.Option(
        "--tokens",
        help="A file shaped as dev.json (base_url, admin_url, tokens by name), mode 0600 "
        "[STATE_DIR/dev.json].",
    ),
]
Attacker = Annotated[str, typer.Option(help="Who measures: a name in that file.")]
Colleague = Annotated[str, typer.Option(help="Another user of the attacker's tenant.")]
Stranger = Annotated[str, typer.Option(help="A user of another tenant.")]
Admin = Annotated[
    str, typer.Option(help="Administrator of the attacker's tenant, who registers templates.")
]
Operated = Annotated[
    bool,
    typer.Option(
        "--i-operate-this",
        help="Needed for a server that is not on this machine: an audit is a load, and costs budget.",
    ),
]


@dataclass(frozen=True, slots=True)
class Answer:
    """`per_minute`: how many requests and tokens the caller may send, where the server says it."""

    ttft_ns: int
    prompt_tokens: int
    cached_tokens: int
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


@dataclass(slots=True)
class Line:
    """One role's connection.  Use as a context manager.  `clock_ns`, `sleep`: tests put others here."""

    server: client.Server
    model: str
    clock_ns: Callable[[], int] = time.perf_counter_ns
    sleep: Callable[[float], None] = time.sleep
    _http: httpx2.Client | None = None

    def __enter__(self) -> Self:
        self._http = self.server.open(READ_TIMEOUT_S)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._http is not None
        self._http.close()

    def ask(self, text: str, more: Mapping[str, Any] | None = None) -> Answer:
        """One token for `text`.  `more`: other fields of the request, in place of ours.  Raises Refusal,
        with the status where there is one."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 1,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **(more or {}),
        }
        content = msgspec.json.encode(body)
        for _ in range(WAITS_MAX):
            answer = self._once(content)
            if isinstance(answer, Answer):
                return answer
            self.sleep(answer)
        raise too_busy()

    def _once(self, content: bytes) -> Answer | float:
        """The answer, or how many seconds to wait."""
        assert self._http is not None
        request = self._http.build_request(
            "POST",
            "/v1/chat/completions",
            content=content,
            headers={"content-type": "application/json"},
        )
        begin_ns = self.clock_ns()
        try:
            answer = self._http.send(request, stream=True)
            try:
                if answer.status_code in {429, 503} and (wait_s := _wait_s(answer)) is not None:
                    answer.read()
                    return wait_s
                if not answer.is_success:
                    raise api_refusal(answer.status_code, error_body(answer))
                return self._read(answer, begin_ns)
            finally:
                answer.close()
        except httpx2.HTTPError as error:
            raise client.unreachable(self.server.url, error, "--tokens") from None

    def _read(self, answer: httpx2.Response, begin_ns: int) -> Answer:
        first_ns: int | None = None
        usage: Mapping[str, Any] = {}
        try:
            for event in events(answer.iter_bytes()):
                if not isinstance(event, Data) or event.raw == b"[DONE]":
                    continue
                now_ns = self.clock_ns()
                chunk = msgspec.json.decode(event.raw)
                if "error" in chunk:
                    raise Refusal(f"An answer failed: {chunk['error'].get('message')}")
                if first_ns is None and any(_says(choice) for choice in chunk["choices"]):
                    first_ns = now_ns
                usage = chunk.get("usage") or usage
            details = usage.get("prompt_tokens_details") or {}
            assert first_ns is not None
            return Answer(
                ttft_ns=first_ns - begin_ns,
                prompt_tokens=int(usage["prompt_tokens"]),
                cached_tokens=int(details.get("cached_tokens") or 0),
                requests_per_minute=client.number_of(answer, "x-ratelimit-limit-requests"),
                tokens_per_minute=client.number_of(answer, "x-ratelimit-limit-tokens"),
            )
        except (NotEvents, msgspec.DecodeError, LookupError, AttributeError, AssertionError):
            raise Refusal(
                f"{self.server.url} does not answer as a model server does: no first token, or no "
                "usage. Is base_url the public listener?"
            ) from None


def too_busy() -> Refusal:
    return Refusal("The server is too busy for an audit: it asked us to wait again and again.")


def _says(choice: Mapping[str, Any]) -> bool:
    return bool(choice.get("delta", {}).get("content")) or choice.get("finish_reason") is not None


def _wait_s(answer: httpx2.Response) -> float | None:
    """None: it does not ask us to come again."""
    seconds = client.number_of(answer, "retry-after")
    return None if seconds is None else float(min(max(seconds, 1), WAIT_S_MAX))


@dataclass(frozen=True, slots=True)
class Target:
    """Whom an audit asks, and as whom."""

    url: str
    admin_url: str
    tokens: Mapping[str, str] = field(repr=False)

    def server(self, name: str) -> client.Server:
        return client.Server(self.url, self.tokens[name])


def target(
    tokens: Path | None, state_dir: Path, names: Mapping[Role, str], *, operated: bool
) -> Target:
    """Raises Refusal: for a file that others can read, for a name that is not in it, for two roles of one
    name, for a server elsewhere."""
    known = client.read_known(state_dir, "--tokens") if tokens is None else _read(tokens)
    for name in names.values():
        if name not in known.tokens:
            there = ", ".join(sorted(known.tokens)) or "none"
            raise Refusal(f"There is no token {name!r} among those given. There are: {there}.")
    if len(set(names.values())) != len(names):
        raise Refusal("Attacker, colleague and stranger must be three different people.")
    url = known.base_url.rstrip("/").removesuffix("/v1")
    if not client.is_loopback(url) and not operated:
        raise Refusal(
            f"{url} is not on this machine. An audit is a load of thousands of requests: run it only "
            "against a server that you operate, and say so with --i-operate-this."
        )
    return Target(url, known.admin_url, known.tokens)


def _read(path: Path) -> client.Known:
    from security.keyring import KeyringError, read_secret_file

    try:
        raw = read_secret_file(path, bytes_max=client.KNOWN_BYTES_MAX)
        return msgspec.json.decode(raw, type=client.Known)
    except KeyringError as error:
        raise Refusal(str(error)) from None
    except msgspec.DecodeError:
        raise Refusal(
            f'{path} is not such a file. Expected {{"base_url": …, "admin_url": …, "tokens": '
            "{name: token}}."
        ) from None


def told(done: int, total: int, begun_s: float, now_s: float) -> None:
    """A line of progress at each twentieth."""
    if done * 20 // total != (done - 1) * 20 // total:
        left_s = (now_s - begun_s) / done * (total - done)
        note(f"{done:,} of {total:,} trials; {span(left_s)} to go")


def span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
