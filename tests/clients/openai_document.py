"""Turn OpenAI's own document of its API on a server of ours: whatever fits it must not be a 5xx.

    python -m tests.clients.openai_document FILE|URL [--url URL --token TOKEN --model NAME] [--examples N]

Without a URL the server is one of ours on loopback around an echo.  The document is nobody's here and nowhere kept.
Its 4xx are almost none, so what is checked is that we have an answer.  `chat` and the other two that generate.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.request
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode

from tests.clients.serving import serving
from tests.gateway.inhouse import MODEL

OPERATIONS: Final = ("createChatCompletion", "createCompletion", "createResponse")
FETCH_S_MAX: Final = 30


def read(place: str) -> dict[str, Any]:
    """The document, JSON, from a file or by http."""
    if place.startswith(("http://", "https://")):
        with urllib.request.urlopen(place, timeout=FETCH_S_MAX) as answer:
            return dict(json.load(answer))
    return dict(json.loads(Path(place).read_text("utf-8")))


def fuzz(document: dict[str, Any], url: str, token: str, model: str, examples: int) -> Counter[int]:
    """How often each status was answered.  Seeded; raises where one is a 5xx."""
    schema: Any = schemathesis.openapi.from_dict(document)
    seen: Counter[int] = Counter()
    bounded = settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )

    def run(case: Any) -> None:
        if isinstance(case.body, dict):
            case.body = {**case.body, "model": model}
        answer = case.call(base_url=url, headers={"Authorization": f"Bearer {token}"})
        seen[answer.status_code] += 1
        case.validate_response(answer, checks=[not_a_server_error])

    for name in OPERATIONS:
        operation = schema.find_operation_by_id(name)
        strategy = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
        bounded(given(case=strategy)(run))()
    return seen


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clients.openai_document")
    parser.add_argument("document")
    parser.add_argument("--url")
    parser.add_argument("--token")
    parser.add_argument("--model")
    parser.add_argument("--examples", type=int, default=100)
    said = parser.parse_args(arguments)
    with ExitStack() as stack:
        url, token, model = said.url, said.token, said.model
        if url is None:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            site = stack.enter_context(serving(folder))
            url, token, model = site.base_url, site.home.tokens["acme/alice"], MODEL
        seen = fuzz(read(said.document), url, token, model, said.examples)
    print(", ".join(f"{status}: {count}" for status, count in sorted(seen.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
