"""LiteLLM's proxy as a peer of the gateway, in front of `fake_upstream`, from an environment of its own.

It has no durable book and no audit log, and keys in its own store need PostgreSQL with a code generator
of its vendor's; so who calls is decided by its documented hook for custom authentication, from a table in
memory, with requests, tokens and streams a key limited and a budget for each, which it counts in memory.
That is the least that resembles our line, and flatters it: nothing it counts outlives the process.
README.md says how to install it; `peer_litellm.txt` pins it and all it needs by hash.
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.peer import Program, present
from tests.bench.server import REPOSITORY, free_port

NAME, MODEL, VERSION = "litellm", "echo", "1.108.7"
VENV = Path.home() / ".cache" / "lockgate" / "peers" / "litellm"
PIN = REPOSITORY / "tests" / "bench" / "peer_litellm.txt"
_MOST = 1_000_000_000

_AUTH = f"""\
from litellm.proxy._types import ProxyException, UserAPIKeyAuth

KEYS = frozenset({{keys!r}})


async def user_api_key_auth(request, api_key):
    if api_key not in KEYS:
        raise ProxyException("unknown key", "auth_error", "api_key", 401)
    return UserAPIKeyAuth(
        api_key=api_key,
        user_id=api_key,
        team_id="bench",
        rpm_limit={_MOST},
        tpm_limit={_MOST},
        max_parallel_requests=1024,
        max_budget={_MOST}.0,
        models=["{MODEL}"],
    )
"""


@dataclass(frozen=True, slots=True)
class Proxy:
    url: str
    keys: tuple[str, ...]
    program: Program


def installed(venv: Path) -> str | None:
    """Its version, or None where there is none."""
    try:
        present(venv / "bin" / "litellm", step="LiteLLM")
    except FileNotFoundError:
        return None
    said = subprocess.run(
        [str(venv / "bin" / "python"), "-c", _ASK_VERSION],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return said.stdout.strip() or None


_ASK_VERSION = "from importlib.metadata import version; print(version('litellm'))"


def make_proxy(venv: Path, folder: Path, upstream: str, keys: Sequence[str]) -> Proxy:
    """`upstream`: the base URL of what is behind it.  Writes its configuration into `folder`."""
    port = free_port()
    (folder / "bench_auth.py").write_text(_AUTH.format(keys=sorted(keys)), encoding="utf-8")
    config = folder / "litellm.yaml"
    config.write_text(configuration(upstream), encoding="utf-8")
    command = [str(venv / "bin" / "litellm"), "--config", str(config)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    return Proxy(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        tuple(keys),
        Program(command, folder / "litellm.log", environment()),
    )


def configuration(upstream: str) -> str:
    """Prices, so that spend is counted; no telemetry, no retries, no callbacks."""
    return f"""\
model_list:
  - model_name: {MODEL}
    litellm_params:
      model: openai/{MODEL}
      api_base: {upstream}
      api_key: none
    model_info:
      input_cost_per_token: 0.0000002
      output_cost_per_token: 0.0000006
litellm_settings:
  telemetry: false
  num_retries: 0
  drop_params: true
general_settings:
  custom_auth: bench_auth.user_api_key_auth
  master_key: sk-{secrets.token_urlsafe(32)}
"""


def environment() -> dict[str, str]:
    return {
        "LITELLM_LOG": "ERROR",
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_TELEMETRY": "False",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "NO_PROXY": "127.0.0.1",
        "DO_NOT_TRACK": "1",
        "PYTHONPATH": "",
    }
