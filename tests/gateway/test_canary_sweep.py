"""What customers say, sent through every path of a whole server, is found in nothing that it leaves.

The real line: `lockgate serve`, its executor with a tiny model, SQLite, real files.  Redis is used by nothing
yet, and an executor has no metrics of its own but what the gateway's show.  An image of the process is out of
reach of whoever reads files: `tests/test_undumped`.

Not looked for, as it stands there by design: in the database the names of users, who are billed by them and who
may read a text, the reasons that administrators gave, and what clients file a request under (`metadata`); in an
answer what belongs to who asked.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
import pytest

from policies.facts import Role
from security.dev_issuer import ISSUER, DevIssuer, open_dev_issuer
from tests.bench.server import free_port
from tests.gateway.canaries import Sweep, canary
from tests.models import write_tiny_llama

ROOT = Path(__file__).parents[2]
START = "from gateway.cli import main; main()"
READY_S = 60.0
IN_SQL = frozenset({"user", "admin", "reader", "reason", "metadata"})
MODEL = "smollm2-135m"

pytestmark = pytest.mark.slow


@dataclass
class Running:
    """A server, and what is sent to it: no answer but to its owner may hold a canary."""

    state: Path
    public: int
    admin: int
    process: subprocess.Popen[bytes]
    sweep: Sweep
    issuer: DevIssuer
    statuses: list[tuple[str, int]] = field(default_factory=list)
    in_sql: frozenset[str] = IN_SQL

    def token(self, tenant: str | None, user: str, *roles: Role, ago_s: int = 1) -> str:
        number = f"jti-{len(self.sweep.known)}-{len(self.statuses)}"
        facts: dict[str, Any] = {"tenant": tenant, "user": user, "jti": number, "roles": roles}
        return self.issuer.mint(now_s=int(time.time()) - ago_s, ttl_s=600, **facts)

    def ask(
        self,
        name: str,
        path: str,
        token: str | None,
        body: object = None,
        *,
        status: int,
        method: str | None = None,
        headers: dict[str, str] | None = None,
        admin: bool = False,
        owned: bool = False,
        echoed: tuple[str, ...] = (),
    ) -> Any:
        """`owned`: the answer is the caller's own text.  `echoed`: what this refusal may repeat."""
        given = {} if token is None else {"authorization": f"Bearer {token}"}
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body)
        answer = httpx2.request(
            method or ("GET" if body is None else "POST"),
            f"http://127.0.0.1:{self.admin if admin else self.public}{path}",
            headers={"content-type": "application/json", **given, **(headers or {})},
            content=content,
            timeout=60,
        )
        self.statuses.append((name, answer.status_code))
        assert answer.status_code == status, (name, answer.status_code, answer.text)
        seen = b"\n".join(f"{key}: {value}".encode() for key, value in answer.headers.items())
        self.sweep.look(f"headers of {name}", seen)
        if not owned:
            self.sweep.look(f"answer to {name}", answer.content, allowed=echoed)
        return answer

    def raw(self, name: str, data: bytes) -> None:
        """Bytes that no client sends."""
        with socket.create_connection(("127.0.0.1", self.public), timeout=20) as line:
            line.sendall(data)
            with suppress(OSError):
                line.shutdown(socket.SHUT_WR)
            said = b""
            with suppress(OSError):
                while part := line.recv(65536):
                    said += part
        self.sweep.look(f"answer to {name}", said)

    def left(self) -> None:
        """Everything that lies in files."""
        for path in sorted(self.state.rglob("*")):
            if path.is_file() and not path.is_symlink():
                sql = path.name.startswith("lockgate.db")
                kind = f"file {path.relative_to(self.state)}"
                self.sweep.look(kind, path.read_bytes(), allowed=self.in_sql if sql else ())
                self.sweep.look(f"name of {kind}", str(path).encode())


@contextmanager
def running(patch: str = "") -> Iterator[Running]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        model = write_tiny_llama(folder / "model", max_position_embeddings=8192)
        state, public, admin = folder / "state", free_port(), free_port()
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{patch}\n{START}"
        command = [sys.executable, "-c", code, "serve", "--state-dir", str(state)]
        command += ["--port", str(public), "--admin-port", str(admin)]
        command += ["--model", str(model), "--threads", "1"]
        log = folder / "server.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,  # the executor's too, which has it from its parent
                start_new_session=True,
            )
        try:
            _until_ready(process, public, log)
            server = Running(state, public, admin, process, Sweep(), open_dev_issuer(state))
            yield server
            server.left()  # while it runs, its write-ahead log beside it
            process.send_signal(signal.SIGTERM)
            process.wait(30)
            server.left()
            server.sweep.look("log", log.read_bytes())
        finally:
            process.kill()
            process.wait(30)


def _until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until_s = time.monotonic() + READY_S
    while time.monotonic() < until_s:
        assert process.poll() is None, log.read_text()
        with suppress(httpx2.HTTPError):
            if httpx2.get(f"http://127.0.0.1:{port}/ready", timeout=5).status_code == 200:
                return
        time.sleep(0.1)
    raise AssertionError(f"not ready: {log.read_text()}")


def chat(text: str, **more: object) -> dict[str, object]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 4,
        **more,
    }


CHAT = "/v1/chat/completions"


def serve_everything(server: Running) -> None:
    """Each path once, a canary in each thing that a customer says."""
    say, ask = server.sweep.said, server.ask
    user = say("user")
    alice = server.token("acme", user)
    admin = server.token("acme", say("admin"), Role.TENANT_ADMIN)
    operator = server.token(None, "operator", Role.OPERATOR)
    for name, token in (("alice", alice), ("admin", admin)):
        say(
            f"token of {name}", token.rpartition(".")[2]
        )  # its claims name the user, who is looked for
    prompt = say("prompt")
    # What works.
    ask("ok", CHAT, alice, chat(prompt), status=200, owned=True)
    ask("ok again", CHAT, alice, chat(prompt), status=200, owned=True)
    ask("streamed", CHAT, alice, chat(prompt, stream=True), status=200, owned=True)
    ask("completion", "/v1/completions", alice, {"model": MODEL, "prompt": prompt, "max_tokens": 4}, status=200, owned=True)  # fmt: skip
    output = say("output")
    schema = {"type": "string", "enum": [output]}
    format_ = {"type": "json_schema", "json_schema": {"name": "said", "schema": schema}}
    told = ask("output", CHAT, alice, chat("say it", response_format=format_) | {"max_tokens": 200}, status=200, owned=True)  # fmt: skip
    assert json.loads(told.json()["choices"][0]["message"]["content"]) == output
    stopped = {"stop": [say("stop")[:30]], "user": say("end user"), "safety_identifier": say("safety")}  # fmt: skip
    ask("end user", CHAT, alice, chat("hi", **stopped, prompt_cache_key=say("cache key")), status=200, owned=True)  # fmt: skip
    ask("metadata", CHAT, alice, chat("hi", metadata={"a": say("metadata")}), status=200, owned=True)  # fmt: skip
    key = {"idempotency-key": say("idempotency", plain=True), "user-agent": say("agent", plain=True), "x-request-id": say("request id", plain=True)}  # fmt: skip
    ask("headers", CHAT, alice, chat("hi"), status=200, headers=key, owned=True)
    kept = {"idempotency-key": say("kept key", plain=True)}
    for name in ("kept", "kept, again"):  # its answer is in the database until tomorrow, sealed
        ask(name, CHAT, alice, chat(prompt, response_format=format_) | {"max_tokens": 200}, status=200, headers=kept, owned=True)  # fmt: skip
        streams = {"idempotency-key": key["idempotency-key"] + "s"}
        ask(f"streamed, {name}", CHAT, alice, chat(prompt, stream=True), status=200, headers=streams, owned=True)  # fmt: skip
    ask("reused", CHAT, alice, chat(prompt), status=422, headers=kept)
    # A key, used, mistyped and revoked.
    made = ask("key", "/v1/admin/keys", admin, {"tenant": "acme", "user": user}, status=200, admin=True, owned=True).json()  # fmt: skip
    secret = made["secret"]
    say("key", secret[-24:])
    ask("by key", CHAT, secret, chat(prompt), status=200, owned=True)
    ask(
        "mistyped key",
        CHAT,
        secret[:-1] + ("y" if secret.endswith("x") else "x"),
        chat(prompt),
        status=401,
    )
    ask("key as a name", "/v1/admin/keys", admin, {"tenant": "acme", "user": secret}, status=400, admin=True)  # fmt: skip
    reason = {"reason": say("reason")}
    ask("revoked", f"/v1/admin/keys/{made['id']}/revoke", admin, reason, status=200, admin=True)
    ask("revoked key", CHAT, secret, chat(prompt), status=401)
    # Who is turned away.
    ask("no token", CHAT, None, chat(prompt), status=401)
    ask("cut token", CHAT, alice[:-3], chat(prompt), status=401)
    expired = server.token("acme", user, ago_s=3600)
    ask("expired", CHAT, expired, chat(prompt), status=401)
    ask("no tenant", CHAT, operator, chat(prompt), status=403)
    ask("unknown tenant", CHAT, server.token("nobody", user), chat(prompt), status=403)
    ask("no role", "/v1/admin/status", alice, status=403, admin=True)
    ask("token in query", f"{CHAT}?access_token={alice}", None, chat(prompt), status=400)
    # What is wrong.  A name that is not known may be repeated to who sent it, in part.
    ask("model", CHAT, alice, chat(prompt) | {"model": say("model", plain=True)}, status=404)
    ask("broken json", CHAT, alice, json.dumps(chat(prompt)).encode()[:-2], status=400)
    ask("doubled", CHAT, alice, b'{"model":"a","model":"' + say("doubled", plain=True).encode() + b'"}', status=400)  # fmt: skip
    ask("role", CHAT, alice, {"model": MODEL, "messages": [{"role": prompt, "content": prompt}]}, status=400, echoed=("prompt",))  # fmt: skip
    ask("type", CHAT, alice, chat(prompt) | {"messages": prompt}, status=400)
    ask("surrogate", CHAT, alice, json.dumps(chat(prompt)).replace("é", "").encode()[:-20] + b'\\ud800"}]}', status=400)  # fmt: skip
    ask("too long", CHAT, alice, chat(prompt * 1200), status=400)
    ask("too large", CHAT, alice, (prompt * 400_000).encode(), status=413)
    ask("temperature", CHAT, alice, chat(prompt, temperature=9), status=400)
    ask("schema", CHAT, alice, chat(prompt, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": say("bad schema")}}}), status=400, echoed=("bad schema",))  # fmt: skip
    ask("cache_salt", CHAT, alice, chat(prompt, cache_salt=say("salt")), status=400)
    ask("path", f"/v1/{say('path', plain=True)}", alice, status=404)
    ask("host", CHAT, alice, chat(prompt), status=421, headers={"host": say("host", plain=True)})
    ask("encoded", CHAT, alice, chat(prompt), status=415, headers={"content-encoding": "gzip"})
    start = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {alice}\r\n"
    body = json.dumps(chat(prompt)).encode()
    for name, more in (
        ("bare lf", f"X-A: {canary('user')[:8]}\nX-B: c\r\n".encode()),
        ("two lengths", b"Content-Length: 5\r\nContent-Length: 6\r\n"),
        ("cl and te", b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"),
        ("bad chunk", b"Transfer-Encoding: chunked\r\n"),
    ):
        server.raw(name, start.encode() + more + b"\r\n" + body)
    server.raw("cut short", start.encode() + b"Content-Length: 100000\r\n\r\n" + body)
    _leave(server, alice, chat(prompt, stream=True) | {"max_tokens": 400})
    _registered(server, user, alice, admin)
    _operated(server, admin, operator)


def _leave(server: Running, token: str, body: object) -> None:
    """In the midst of an answer."""
    with (
        httpx2.Client(timeout=60) as client,
        client.stream(
            "POST",
            f"http://127.0.0.1:{server.public}{CHAT}",
            headers={"authorization": f"Bearer {token}"},
            json=body,
        ) as answer,
    ):
        assert answer.status_code == 200
        next(answer.iter_bytes())


def _registered(server: Running, user: str, alice: str, admin: str) -> None:
    say, ask = server.sweep.said, server.ask
    document = {"text": say("document") + " It says more. " * 20, "title": say("title")}
    bob = server.token("acme", "bob")
    shared = {"acl": {"users": [{"subject": "bob"}, {"subject": say("reader")}]}}
    id_ = ask("register", "/v1/documents", alice, document | shared, status=200, owned=True).json()["id"]  # fmt: skip
    parts = [{"type": "file", "file": {"file_id": id_}}, {"type": "text", "text": "so?"}]
    asks = chat("") | {"messages": [{"role": "user", "content": parts}]}
    for name, token in (("reads", alice), ("reads too", bob)):
        ask(name, CHAT, token, asks, status=200, owned=True)
    # Who may read is told to who may narrow it; the title is not.
    ask("listed", "/v1/admin/documents", admin, status=200, admin=True, echoed=("reader",))
    ask("content", f"/v1/documents/{id_}/content", admin, status=403)
    template = {"text": say("template") + " {{name}}"}
    tmpl = ask("template", "/v1/templates", admin, template, status=200, owned=True).json()["id"]
    named = {"id": tmpl, "variables": {"name": say("variable")}}
    ask("templated", CHAT, alice, chat("hi", prompt=named), status=200, owned=True)
    wrong = {"id": tmpl, "variables": {say("no variable", plain=True): "x"}}
    ask("no variable", CHAT, alice, chat("hi", prompt=wrong), status=400, echoed=("no variable",))
    server.left()
    ask("too long text", "/v1/documents", alice, {"text": document["text"] * 200}, status=400)
    new = {"text": say("new text")}
    ask("rewritten", f"/v1/documents/{id_}", alice, new, method="PATCH", status=200, owned=True)
    ask("narrowed", f"/v1/documents/{id_}/acl", alice, {}, method="PUT", status=200, owned=True)
    ask("no more", CHAT, bob, asks, status=404)
    ask("purged text", "/v1/admin/cache/purge", admin, {"document": id_, "reason": "r"}, status=200, admin=True)  # fmt: skip
    ask("deleted", f"/v1/documents/{id_}", alice, method="DELETE", status=200)
    ask("gone", CHAT, alice, asks, status=404)


def _operated(server: Running, admin: str, operator: str) -> None:
    """What administrators do with what customers said, and what they are shown."""
    ask = server.ask
    reason = {"reason": canary("reason")}
    purge = {"tenant": "acme", "user": canary("user"), **reason}
    ask("listed cache", "/v1/admin/cache?by=label", operator, status=200, admin=True)
    ask("purged user", "/v1/admin/cache/purge", admin, purge, status=200, admin=True)
    ask("foreign purge", "/v1/admin/cache/purge", admin, purge | {"tenant": "globex"}, status=403, admin=True)  # fmt: skip
    person = {"tenant": "acme", "user": canary("user"), "issuer": ISSUER, **reason}
    ask("pseudonymised", "/v1/admin/users/pseudonymise", admin, person, status=200, admin=True)
    ask("rotated", "/v1/admin/tenants/acme/secret/rotate", operator, reason, status=200, admin=True)
    for path in ("queue", "promises", "status", "tenants", "cache", "root-key", "budgets"):
        ask(path, f"/v1/admin/{path}", operator, status=200, admin=True)
    ask("metrics", "/metrics", operator, status=200, admin=True)
    shred = {"confirm": "acme", **reason}
    ask("shredded", "/v1/admin/tenants/acme/shred", operator, shred, status=200, admin=True)
    ask("suspended", "/v1/admin/tenants/acme/suspend", operator, reason, status=200, admin=True)
    _deleted(server, operator, shred)


def _deleted(server: Running, operator: str, body: dict[str, str]) -> None:
    """From then on the database names none of its people either."""
    ask, path = server.ask, "/v1/admin/tenants/acme"
    ask("begun", f"{path}/delete", operator, body, status=200, admin=True)
    rows = ask("exported", f"{path}/export", operator, status=200, admin=True, echoed=tuple(IN_SQL))
    digest = {"export_sha256": sha256(rows.content).hexdigest()}
    ask("gone for good", f"{path}/delete", operator, {**body, **digest}, status=200, admin=True)
    server.in_sql = frozenset({"reason"})


def test_nothing_a_customer_said_is_left_anywhere() -> None:
    with running() as server:
        serve_everything(server)
        limits = Path(f"/proc/{server.process.pid}/limits").read_text()
        assert "Max core file size        0 " in " ".join(limits.split("\n"))
    assert server.sweep.by_kind() == {}
    assert len(server.statuses) > 55


NAMED = """
from security.pseudonyms import Pseudonyms
Pseudonyms.person = lambda self, tenant, issuer, user: user
"""
UNSEALED = """
from security.seal import Seals
seal, open_ = Seals.seal, Seals.open
Seals.seal = lambda self, place, text: seal(self, place, text) + text.encode()
Seals.open = lambda self, place, record: "x"
"""
TALKATIVE = """
from security import redact
redact.describe = lambda error: {"types": [repr(error)], "at": []}
from gateway import bootstrap, strict_json
configure, decode = bootstrap.logs.configure, strict_json.decode
def configured(**how):
    log = configure(**how)
    def telling(data, kind):
        log("request", error=ValueError(bytes(data)))
        return decode(data, kind)
    strict_json.decode = telling
    return log
bootstrap.logs.configure = configured
"""
KEPT = """
from gateway import runs
runs.sealed = lambda seals, tenant, digest, kept: (bytes([1, 0, 0, 0, 1]) + kept.body, 1)
"""
BROKEN = {
    "answers are kept as they are": (KEPT, "output", "lockgate.db"),
    "people are named as they are": (NAMED, "user", "audit"),
    "texts are kept as they are": (UNSEALED, "document", "lockgate.db"),
    "the log shows what exceptions say": (TALKATIVE, "document", "log"),
}


@pytest.mark.parametrize("name", [pytest.param(each, marks=pytest.mark.long) for each in BROKEN])
def test_the_sweep_sees_a_redaction_that_is_broken(name: str) -> None:
    """Each broken by a patch of this test, put in before its server starts (DESIGN.md, 16)."""
    patch, kind, where = BROKEN[name]
    with running(patch) as server:
        with suppress(AssertionError):  # a broken server may answer otherwise
            serve_everything(server)
        assert server.statuses
    found = server.sweep.by_kind().get(kind, [])
    assert any(where in each for each in found), (server.sweep.found, server.statuses[-1])
