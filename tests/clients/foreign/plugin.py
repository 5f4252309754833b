"""A pytest plugin that stands in for what foreign suites bring with them, and writes down what became of each test.

Loaded by itself in their process: knows nothing of ours.  It makes their module names, their models, their lack of a
key and their asyncio plugin into ours.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.abc
import importlib.machinery
import inspect
import json
import os
import re
import sys
import types
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import anthropic
import jsonschema_rs
import openai
import pytest
import requests

MODEL = os.environ["LOCKGATE_MODEL"]
TOKEN = os.environ["LOCKGATE_TOKEN"]
STUBBED = ("vllm", "wget", "fastapi")
TEST_S_MAX = 30
KEYED = {"authorization", "x-api-key"}
THEIR_KEYS = ("sk-this-is-the-secret-key", "dummy", "dummy-key")
UNDER_V1 = {
    "/chat/completions",
    "/completions",
    "/responses",
    "/models",
    "/tokenize",
    "/detokenize",
}
LOOP = asyncio.new_event_loop()


# Modules that are not here


class Anything(type):
    """The type of whatever a stub is asked for: it can be called and subclassed, and has whatever is asked of it."""

    def __new__(cls, name: str, bases: tuple[type, ...] = (), space: Any = None) -> Any:
        said = {
            "__init__": _take,
            "__getattr__": lambda self, name: Anything(name),
            **(space or {}),
        }
        return super().__new__(cls, name, bases, said)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name)


def _take(self: object, *given: object, **named: object) -> None:
    pass


class Stub(types.ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name)


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in STUBBED:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


sys.meta_path.append(Stubs())
jsonschema = types.ModuleType("jsonschema")
jsonschema.validate = lambda instance, schema: jsonschema_rs.validate(schema, instance)  # type: ignore[attr-defined]
sys.modules["jsonschema"] = jsonschema


# pytest-asyncio, as far as they use it: one loop for all


def _driven(make: Callable[..., AsyncIterator[Any]]) -> Callable[..., Iterator[Any]]:
    @functools.wraps(make)
    def fixture(*given: Any, **named: Any) -> Iterator[Any]:
        parts = make(*given, **named)
        yield LOOP.run_until_complete(anext(parts))
        LOOP.run_until_complete(anext(parts, None))

    return fixture


def _asyncio_fixture(function: Any = None, **options: Any) -> Any:
    if function is None:
        return functools.partial(_asyncio_fixture, **options)
    options.pop("loop_scope", None)
    return pytest.fixture(**options)(_driven(function))


asyncio_plugin = types.ModuleType("pytest_asyncio")
asyncio_plugin.fixture = _asyncio_fixture  # type: ignore[attr-defined]
sys.modules["pytest_asyncio"] = asyncio_plugin


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    named = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    LOOP.run_until_complete(asyncio.wait_for(pyfuncitem.obj(**named), TEST_S_MAX))
    return True


# Requests as we take them: with a key, under /v1, of a model that is here

_request: Any = requests.Session.request


def _ours(self: requests.Session, method: str, url: str, **said: Any) -> Any:
    parts = urlsplit(url)
    if parts.path in UNDER_V1:
        url = urlunsplit(parts._replace(path="/v1" + parts.path))
    headers = dict(said.pop("headers", None) or {})
    if not KEYED & set(map(str.lower, headers)):
        headers["Authorization"] = f"Bearer {TOKEN}"
    for name, value in headers.items():
        for theirs in THEIR_KEYS:
            headers[name] = headers[name].replace(theirs, TOKEN) if value else value
    said["json"] = _of_ours(said.get("json"))
    said.setdefault("timeout", TEST_S_MAX)
    return _request(self, method, url, headers=headers, **said)


requests.Session.request = _ours  # type: ignore[assignment, method-assign]


def _of_ours(body: Any) -> Any:
    """For a model that is here; one that is named so that there is none stays."""
    named = isinstance(body, dict) and "does-not" not in str(body.get("model"))
    return {**body, "model": MODEL} if named and body else body


def _adapt(*clients: Any) -> None:
    """Those that the tests make themselves."""
    for client in clients:
        begin, post = client.__init__, client.post

        def init(self: Any, *, begin: Any = begin, **said: Any) -> None:
            if said.get("api_key") in {None, *THEIR_KEYS}:
                said["api_key"] = TOKEN
            begin(self, **said)

        def posted(self: Any, path: str, *, post: Any = post, **said: Any) -> Any:
            said["body"] = _of_ours(said.get("body"))
            return post(self, path, **said)

        client.__init__ = init
        client.post = posted


_adapt(openai.OpenAI, openai.AsyncOpenAI, anthropic.Anthropic, anthropic.AsyncAnthropic)


# What became of each


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reasons = json.loads(os.environ["LOCKGATE_NOT_APPLICABLE"])
    for item in list(items):
        for pattern, reason in reasons.items():
            if re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), item.nodeid, re.DOTALL):
                items.remove(item)
                _write(item.nodeid, "not applicable", reason)
                break


def _write(test: str, outcome: str, why: str) -> None:
    with Path(os.environ["LOCKGATE_OUTCOMES"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"test": test, "outcome": outcome, "why": why[:300]}) + "\n")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.failed or report.skipped:
        said = "" if report.longrepr is None else str(report.longrepr)
        why = [line[1:].strip() for line in said.splitlines() if line.startswith("E ")]
        _write(report.nodeid, report.outcome, (why or said.splitlines()[-1:] or [""])[0])
