"""The document of the API is the API: its routes, its schemas, and what real answers look like."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from starlette.routing import Route

from gateway.api import refused
from gateway.app import public_app
from gateway.bootstrap import listeners
from gateway.openapi import answers, views
from gateway.openapi.document import Schemas, document, named
from gateway.openapi.operations import OPERATIONS, REFUSED, Operation
from gateway.openapi.pages import pages
from gateway.settings import load
from tests.gateway.inhouse import MODEL, Answered, Caller, Inhouse, chat_body
from tests.gateway.registered_kit import register
from tests.gateway.test_line import lived
from tests.gateway.test_messages import body
from tests.gateway.test_settings import EXAMPLE, NOW_S

DOCUMENT = document()
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
BY_ID = {each.id: each for each in OPERATIONS}


def test_every_public_route_is_in_it_and_nothing_else(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        app: Any = public_app(home.house, lambda: 1)
        served = {
            (method, re.sub(r":path", "", route.path))
            for route in app.router.routes
            if isinstance(route, Route)
            for method in (route.methods or set()) - {"HEAD"}
        }
        assert served == {(each.method, each.path) for each in OPERATIONS}

    lived(tmp_path, story)


def test_it_is_a_document_of_openapi_3_1() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    ids = [each.id for each in OPERATIONS]
    assert len(set(ids)) == len(ids)
    text = json.dumps(DOCUMENT)
    for name in re.findall(r'"#/components/schemas/([^"]+)"', text):
        assert name in SCHEMAS, name
    assert set(re.findall(r'"\$ref": "#/components/([a-zA-Z]+)/', text)) == {"headers", "schemas"}
    assert all(re.fullmatch(r"[A-Za-z]+", name) for name in SCHEMAS)  # for who makes code of it
    for name in SCHEMAS:
        validator(name)


def validator(name: str) -> Any:
    """JSON Schema as others read it, all of the document's within reach."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    return jsonschema_rs.validator_for(
        {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    )


def bodies() -> Iterator[tuple[Operation, type]]:
    for each in OPERATIONS:
        for kind in each.body:
            for one in kind if isinstance(kind, tuple) else (kind,):
                yield each, one


def test_requests_are_described_by_the_types_that_read_them() -> None:
    names = named(kind for _, kind in bodies())
    for each, kind in bodies():
        schema, bounds = SCHEMAS[names[kind]], parsed(kind)
        assert schema.get("required") == bounds.get("required"), each.id
        read, shown = bounds["properties"], schema["properties"]
        assert set(read) - set(shown) <= set(REFUSED.get(kind, ())), each.id
        for name, field in shown.items():
            if "$ref" not in json.dumps(field):  # those are named otherwise
                assert field == read[name], (each.id, name)


def parsed(kind: type) -> dict[str, Any]:
    """As the type itself says it."""
    (schema,), components = msgspec.json.schema_components([kind])
    found: dict[str, Any] = components[schema["$ref"].rpartition("/")[2]]
    return found


def test_what_is_refused_is_not_in_it() -> None:
    names = named(REFUSED)
    for kind, fields in REFUSED.items():
        assert not set(SCHEMAS[names[kind]]["properties"]) & set(fields), kind
    tables = [table for table in vars(refused).values() if isinstance(table, MappingProxyType)]
    assert {id(table) for table in tables} == {id(table) for table in REFUSED.values()}


def test_the_examples_are_requests_that_are_answered(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        for each in OPERATIONS:
            if each.example is None:
                continue
            told = await home.caller().post(each.path, {**each.example, "model": MODEL})
            fits(each, told)

    lived(tmp_path, story)


def fits(each: Operation, told: Answered, status: int = 200) -> None:
    """An answer is what the document says: by the types, which know no other fields, and by its schema."""
    assert told.status == status, (each.id, told.body)
    described = DOCUMENT["paths"][each.path][each.method.lower()]["responses"]
    content = described[str(status)]["content"]
    kind = told.headers["content-type"].partition(";")[0]
    assert kind in content, each.id
    assert told.headers["x-request-id"]
    if kind != "application/json":
        return
    types = each.told if status == 200 else each.errors
    value = told.json()
    found = [one for one in types if is_one(value, one)]
    assert found, (each.id, told.body)
    schema = {"components": DOCUMENT["components"], **content[kind]["schema"]}
    assert jsonschema_rs.validator_for(schema).is_valid(value), each.id


def is_one(value: object, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


async def asked(caller: Caller, id_: str, body: object = None, status: int = 200, **at: str) -> Any:
    each = BY_ID[id_]
    path = each.path.format(**at)
    told = await caller.start(each.method, path, body).end()
    fits(each, told, status)
    SEEN.add(id_)
    return None if told.headers["content-type"].startswith("text") else told.json()


SEEN: set[str] = set()


def test_real_answers_are_what_it_says(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice, admin = home.caller(), home.caller("acme/admin")
        fields: dict[str, object] = {"logprobs": True, "top_logprobs": 1, "service_tier": "auto"}
        more: Mapping[str, object]
        for more in ({}, {**fields, "n": 2}):
            made = await asked(alice, "createChatCompletion", chat_body("hello", **more))
        plain: dict[str, object] = {"model": MODEL, "prompt": "x"}
        for more in ({}, {"logprobs": 1, "max_tokens": 2, "service_tier": "flex"}):
            await asked(alice, "createCompletion", {**plain, **more})
        await asked(alice, "createResponse", {"model": MODEL, "input": "x"})
        response = {"model": MODEL, "input": "x", "store": True}
        kept = (await asked(alice, "createResponse", response))["id"]
        behind = response | {"background": True}
        made_behind = (await asked(alice, "createResponse", behind))["id"]
        await asked(alice, "cancelResponse", id=made_behind)
        await asked(alice, "cancelResponse", status=404, id="resp_none")
        for id_ in ("retrieveResponse", "listResponseInputItems", "deleteResponse"):
            await asked(alice, id_, id=kept)
            await asked(alice, id_, status=404, id="resp_none")
        for more in ({}, {"service_tier": "auto", "stop_sequences": ["l"]}):
            await asked(alice, "createMessage", body(**more))
        await asked(alice, "cancelRequest", {"idempotency_key": "none-such"})
        await asked(alice, "countMessageTokens", body())
        for more in ({}, {"return_token_strs": True}):
            await asked(alice, "tokenize", {**plain, **more})
        await asked(alice, "detokenize", {"model": MODEL, "tokens": [65]})
        for who in (alice, alice.with_headers(anthropic_version="2023-06-01")):
            await asked(who, "listModels")
            await asked(who, "retrieveModel", id=MODEL)
            await asked(who, "retrieveModel", status=404, id="absent")
        await asked(alice, "me")
        await asked(home.caller("operator"), "me")
        await asked(alice, "explainRequest", id="req_" + made["id"].removeprefix("chatcmpl-"))
        await asked(alice, "explainRequest", status=404, id="req_none")
        for open_ in ("health", "ready"):
            await asked(home.caller(None), open_)
        await asked(alice, "version")
        await texts(alice, "Document", {"text": "The rent is 7.", "title": "Rent"})
        document_ = await register(alice)
        readers = {"users": [{"subject": "bob"}]}
        await asked(alice, "setDocumentReaders", readers, id=document_)
        await asked(home.caller("acme/bob"), "retrieveDocument", id=document_)
        await texts(admin, "Template", {"text": "Hello {{name}}."})
        for each in OPERATIONS:  # nobody is known, and nothing that is no request
            if not each.open:
                path = each.path.replace("{id}", "none")
                here = await home.caller(None).start(each.method, path, {}).end()
                fits(each, here, 401)
            if each.body:
                path = each.path.replace("{id}", "none")
                here = await alice.start(each.method, path, []).end()
                assert here.status in {400, 404}
                fits(each, here, here.status)
        home.switch["draining"] = True
        fits(BY_ID["ready"], await home.caller(None).get("/ready"), 503)
        for id_ in ("createMessage", "tokenize"):
            fits(BY_ID[id_], await alice.post(BY_ID[id_].path, {}), 503)
        home.switch["draining"] = False
        assert set(BY_ID) == SEEN

    lived(tmp_path, story)


async def texts(who: Caller, name: str, new: dict[str, Any]) -> None:
    made = await asked(who, f"create{name}", new)
    await asked(who, f"list{name}s")
    await asked(who, f"retrieve{name}", id=made["id"])
    await asked(who, f"read{name}", id=made["id"])
    await asked(who, f"change{name}", {"text": "Else."}, id=made["id"])
    await asked(who, f"delete{name}", id=made["id"])
    await asked(who, f"retrieve{name}", status=404, id=made["id"])


def test_calls_and_limits_are_described_too(tmp_path: Path) -> None:
    from tests.gateway.test_messages_tools import CALLS, TOOLS, says

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        await asked(alice, "createMessage", body(tools=TOOLS, max_tokens=999))
        function = {"type": "function", "function": {"name": "weather"}}
        chat = await asked(alice, "createChatCompletion", chat_body(tools=[function]))
        assert "tool_calls" in chat["choices"][0]["message"]

    lived(tmp_path, story, echo=says(CALLS))


def test_it_can_be_read_where_it_is_served(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        for path in pages():
            told = await home.operator("acme/alice").get(path)
            assert told.status == 200
            assert "script-src 'self'" in told.headers["content-security-policy"]
            assert "unsafe" not in told.headers["content-security-policy"]
            assert (await home.caller().get(path)).error["code"] == "not_found"
        assert (await home.operator().get("/openapi.json")).json() == json.loads(
            json.dumps(DOCUMENT)
        )

    lived(tmp_path, story)


@pytest.mark.parametrize("docs", (False, True))
def test_customers_read_it_where_the_configuration_says_so(tmp_path: Path, docs: bool) -> None:
    async def story(home: Inhouse) -> None:
        settings = load(EXAMPLE, {}, now_s=NOW_S)
        listen = msgspec.structs.replace(settings.listen, docs=docs, hosts=("test",))
        asked = msgspec.structs.replace(settings, listen=listen)
        public, admin = listeners(asked, home.house)
        for path in pages():
            assert (await Caller(public.app, None).get(path)).status == (200 if docs else 404)
            assert (await Caller(admin.app, None).get(path)).status == 200

    lived(tmp_path, story)


def test_the_page_brings_nothing_from_elsewhere() -> None:
    for path, page in pages().items():
        if path != "/openapi.json":
            text = page.body.decode()
            assert not re.search(r"https?://|innerHTML|eval\(|style=|onclick=|<script>", text), path


def test_answers_know_no_other_fields() -> None:
    """What the tests above decode by would else pass over a field that the document lacks."""
    for module in (answers, views):
        for name, kind in vars(module).items():
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and name != "Response":
                known = kind.__module__ != module.__name__ or issubclass(kind, answers.Told)
                assert known, name
    assert "additionalProperties" not in SCHEMAS["ChatCompletion"]
    assert len(Schemas().components) == len(SCHEMAS)
