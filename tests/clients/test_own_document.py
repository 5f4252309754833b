"""Our own document, turned on the server by schemathesis: what fits it and what does not, seeded and bounded.

No request makes a 5xx, and every answer has a status, a kind and a shape that the document has for it.  Models and ids are
given, since by names of their own all requests would be 404.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from gateway.openapi.document import document
from gateway.openapi.operations import OPERATIONS
from tests.clients.serving import Serving, serving
from tests.gateway.inhouse import MODEL
from tests.gateway.registered_kit import register

pytestmark = pytest.mark.slow

SEEDED = settings(
    max_examples=10,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("own")) as here:
        yield here
        here.at_rest()


def told(ids: dict[str, str]) -> dict[str, Any]:
    """The document, by which only what there is is asked for."""
    known = document()
    for name, schema in known["components"]["schemas"].items():
        if name.endswith("Request") and "model" in schema.get("properties", {}):
            schema["properties"]["model"] = {"type": "string", "const": MODEL}
    for path, operations in known["paths"].items():
        for operation in operations.values():
            for parameter in operation["parameters"]:
                if parameter["name"] == "id":
                    parameter["schema"]["enum"] = [ids[path.split("/")[2]]]
    return known


@pytest.fixture(scope="module")
def operations(site: Serving) -> dict[str, Any]:
    async def named() -> dict[str, str]:
        alice, admin = site.home.caller(), site.home.caller("acme/admin")
        made = await admin.post("/v1/templates", {"text": "Hello {{name}}."})
        request = (await alice.chat("x", max_tokens=1)).headers["x-request-id"]
        stored = {"model": MODEL, "input": "x", "max_output_tokens": 1, "store": True}
        return {
            "documents": await register(alice),
            "models": MODEL,
            "requests": request,
            "responses": (await alice.post("/v1/responses", stored)).json()["id"],
            "templates": made.json()["id"],
        }

    schema: Any = schemathesis.openapi.from_dict(told(site.call(named)))
    found = (each.ok() for each in schema.get_all_operations())
    return {each.definition.raw["operationId"]: each for each in found}


@pytest.mark.parametrize("mode", (GenerationMode.POSITIVE, GenerationMode.NEGATIVE))
def test_whatever_is_sent_is_answered_as_the_document_says(
    site: Serving, operations: dict[str, Any], mode: GenerationMode
) -> None:
    root = site.base_url.removesuffix("/v1")
    headers = {"Authorization": "Bearer " + site.home.tokens["acme/alice"]}
    seen: Counter[int] = Counter()

    def run(case: Any) -> None:
        answer = case.call(base_url=root, headers=headers)
        seen[answer.status_code] += 1
        case.validate_response(answer, checks=CHECKS)

    for each in OPERATIONS:
        if not each.open:  # those take nothing that could be wrong
            SEEDED(given(case=operations[each.id].as_strategy(generation_mode=mode))(run))()
    assert seen[200 if mode is GenerationMode.POSITIVE else 400] > 50, seen
