"""The OpenAPI 3.1 document: the table of operations, and schemas from the very types that requests are parsed by.

Bounds and enumerations are therefore those that hold.  What is refused by rules between fields stands in no schema.
Made once.  Refuses to know: routes, HTTP.  Source: OpenAPI 3.1; JSON Schema 2020-12, which msgspec writes.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from gateway.openapi import answers
from gateway.openapi.operations import OPERATIONS, REFUSED, Operation, Tag

ABOUT: Final = """\
Lockgate speaks OpenAI's API (chat completions, completions, responses, models) and Anthropic's (messages).

A field that is not known is passed over, `null` is as if left out, and a field that would change the answer and is not \
built is refused by name. Every answer names its request in `x-request-id`. Whatever changes or computes something may \
be done once by an `Idempotency-Key`."""
_REFERENCE: Final = "#/components/schemas/{name}"
_WORDS: Final = {
    400: "The request is at fault; `param` names the field.",
    401: "The credential was not accepted.",
    403: "This is not allowed to you.",
    404: "There is none, or it is not yours.",
    408: "The body came too slowly, or there was no turn in time.",
    409: "Not as things stand, or the same key is at work.",
    410: "It was kept for its time, and is not known any more.",
    413: "The body is too large.",
    422: "The `Idempotency-Key` is another request's.",
    429: "A rate or a budget is spent; `retry-after` says when to come back.",
    503: "Not now: loading, draining or too busy. Try again.",
}
_READS: Final = (400, 401, 403, 503)
_CHANGES: Final = (408, 409, 413, 422, 429)


def document() -> dict[str, Any]:
    """Everything but `servers`, since a document is asked for where it holds."""
    schemas = Schemas()
    paths: dict[str, dict[str, Any]] = {}
    for each in OPERATIONS:
        paths.setdefault(each.path, {})[each.method.lower()] = operation(each, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Lockgate",
            "version": importlib.metadata.version("lockgate"),
            "description": ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": tag.value} for tag in Tag],
        "security": [{"bearer": []}, {"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token, or an API key.",
                },
                "key": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "x-api-key",
                    "description": "An API key.",
                },
            },
            "headers": {
                "RequestId": {"description": "Names this request.", "schema": {"type": "string"}}
            },
            "schemas": schemas.components,
        },
    }


def operation(each: Operation, schemas: Schemas) -> dict[str, Any]:
    named: dict[str, Any] = {
        "operationId": each.id,
        "tags": [each.tag.value],
        "summary": each.does,
        "parameters": list(_parameters(each)),
        "responses": responses(each, schemas),
    }
    if each.streams:
        named["description"] = each.streams
    if each.open:
        named["security"] = []
    if each.body:
        content: dict[str, Any] = {"schema": schemas.one_of(each.body)}
        if each.example is not None:
            asked = {"model": "default", **each.example}
            content["example"] = asked
        named["requestBody"] = {"required": True, "content": {"application/json": content}}
    return named


def responses(each: Operation, schemas: Schemas) -> dict[str, Any]:
    told: dict[str, Any] = {"200": _answer("It was done.", _content(each, schemas))}
    error = {"application/json": {"schema": schemas.one_of(each.errors)}}
    known = {503} if each.open else {*_READS, *(_CHANGES if each.changes else ()), *each.refuses}
    if each.body and each.tag in {Tag.ANSWERS, Tag.TOKENS}:
        known.add(404)
    for status in sorted(known):
        told[str(status)] = _answer(_WORDS[status], error)
    return {**told, "default": _answer("Refused for what it is in HTTP, or failed.", error)}


def _content(each: Operation, schemas: Schemas) -> dict[str, Any]:
    if each.told == (str,):
        return {"text/plain": {"schema": {"type": "string"}}}
    content: dict[str, Any] = {"application/json": {"schema": schemas.one_of(each.told)}}
    if each.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return content


def _answer(says: str, content: dict[str, Any]) -> dict[str, Any]:
    headers = {"x-request-id": {"$ref": "#/components/headers/RequestId"}}
    return {"description": says, "headers": headers, "content": content}


def _parameters(each: Operation) -> Iterator[dict[str, Any]]:
    if "{id}" in each.path:
        text = {"type": "string", "minLength": 1}
        yield {"name": "id", "in": "path", "required": True, "schema": text}
    for name in each.query:
        number = {"type": "integer", "minimum": 1, "maximum": 100}
        schema = number if name == "limit" else {"type": "string"}
        yield {"name": name, "in": "query", "required": False, "schema": schema}
    if each.changes:
        yield {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "description": "The same request by the same key is done once, and answered again for a day.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
        }


class Schemas:
    """Every type of the document, under the name that it has there."""

    def __init__(self, operations: Iterable[Operation] = OPERATIONS) -> None:
        types = list(dict.fromkeys(kind for each in operations for kind in _types(each)))
        self._names = named(types)
        _, found = msgspec.json.schema_components(types, ref_template=_REFERENCE)
        given = {_key(cls, self._names): name for cls, name in self._names.items()}
        assert set(given) == set(found), set(given) ^ set(found)
        text = msgspec.json.encode(found).decode()
        for key, name in given.items():
            text = text.replace(
                _quoted(key), _quoted("\0" + name)
            )  # marked, or it could be met again
        text = text.replace(_quoted("\0")[:-1], _quoted("")[:-1])
        told = {name for cls, name in self._names.items() if issubclass(cls, answers.Told)}
        self.components: dict[str, Any] = {}
        for key, schema in sorted(
            msgspec.json.decode(text).items(), key=lambda pair: given[pair[0]]
        ):
            schema["title"] = given[key]
            if given[key] in told:  # more may come
                schema.pop("additionalProperties", None)
            self.components[given[key]] = schema
        for kind, fields in REFUSED.items():
            properties = self.components[self._names[kind]]["properties"]
            for name in properties.keys() & set(fields):
                del properties[name]

    def one_of(self, kinds: Iterable[Any]) -> dict[str, Any]:
        options = [self._option(kind) for kind in kinds]
        return options[0] if len(options) == 1 else {"anyOf": options}

    def _option(self, kind: Any) -> dict[str, Any]:
        if isinstance(kind, tuple):  # the fields of each
            return {"allOf": [self._option(one) for one in kind]}
        return {"$ref": _REFERENCE.format(name=self._names[kind])}


def _quoted(name: str) -> str:
    return f'"{_REFERENCE.format(name=name)}"'


def _types(each: Operation) -> Iterator[Any]:
    for kind in (*each.body, *each.told, *each.errors):
        if isinstance(kind, tuple):
            yield from kind
        elif kind is not str:
            yield kind


_OF: Final = {
    "messages.schema": "Messages",
    "messages.schema_tools": "Messages",
    "registered.documents": "Document",
    "registered.templates": "Template",
    "responses.items": "Response",
    "responses.schema": "Responses",
    "schema_chat": "Chat",
}
"""What the types of a module of `gateway.api` are of, where their own name does not say it."""
_SAYS_LITTLE: Final = frozenset({"registered.documents", "responses.items", "registered.templates"})


def named(types: Iterable[Any]) -> dict[type, str]:
    """These types and all that they are made of, with the name that each has in the document."""
    classes = list(dict.fromkeys(_structs([msgspec.inspect.type_info(kind) for kind in types])))
    short = [cls.__name__ for cls in classes]
    names = {cls: _published(cls, alone=short.count(cls.__name__) == 1) for cls in classes}
    assert len(set(names.values())) == len(names), sorted(names.values())
    return names


def _published(cls: type, *, alone: bool) -> str:
    name, module = cls.__name__.lstrip("_"), cls.__module__.removeprefix("gateway.api.")
    vague = cls.__name__.startswith("_") or module in _SAYS_LITTLE or not alone
    word = _OF.get(module, "")
    return word + name if vague and word not in name else name


def _key(cls: type, names: Iterable[type]) -> str:
    """As msgspec calls it."""
    alone = [other.__name__ for other in names].count(cls.__name__) == 1
    return cls.__name__ if alone else f"{cls.__module__}.{cls.__qualname__}"


def _structs(infos: Iterable[Any]) -> Iterator[type]:
    seen: set[type] = set()
    left = list(infos)
    while left:
        info = left.pop()
        if isinstance(info, tuple):
            left += info
        elif isinstance(info, msgspec.inspect.StructType):
            if info.cls not in seen:
                seen.add(info.cls)
                yield info.cls
                left += info.fields
        elif isinstance(info, msgspec.inspect.Field | msgspec.inspect.Type):
            left += [getattr(info, name) for name in info.__struct_fields__]
