"""Reading /v1/responses as a strict client does: every object is one of OpenAI's, every pair is closed in order."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.gateway.inhouse import MODEL, Answered

RESPONSES = "/v1/responses"
LAST = frozenset({"response.completed", "response.incomplete", "response.failed"})
_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def asked(content: object = "hello", **fields: object) -> dict[str, object]:
    return {"model": MODEL, "input": content, **fields}


def read(answer: Answered) -> dict[str, Any]:
    """A whole answer, of OpenAI's type."""
    assert answer.status == 200, answer.body
    body: dict[str, Any] = answer.json()
    is_response(body)
    return body


def is_response(body: dict[str, Any]) -> None:
    Response.model_validate_json(json.dumps(body), strict=True)


def events_of(data: bytes) -> list[dict[str, Any]]:
    """The events, each of OpenAI's type and named as its frame; comments are skipped."""
    text = data.decode()
    assert "\r" not in text
    assert "[DONE]" not in text
    assert text.endswith("\n\n")
    found = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        if block.startswith(": "):
            assert "\n" not in block
            continue
        name, said = block.split("\n")
        event = json.loads(said.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        _EVENT.validate_json(said.removeprefix("data: "), strict=True)
        found.append(event)
    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    return found


@dataclass
class Followed:
    """A stream, as it was followed to its end."""

    begun: list[str] = field(default_factory=list)
    output: list[dict[str, Any]] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    status: str = ""

    @property
    def text(self) -> str:
        return "".join(part["text"] for item in self.output for part in item.get("content") or ())


def followed(events: list[dict[str, Any]]) -> Followed:
    """Every pair closed in order, each delta part of what is then done.  AssertionError where not."""
    found = Followed()
    item: dict[str, Any] | None = None
    part, said = False, ""
    for event in events:
        kind = event["type"].removeprefix("response.")
        assert found.status == ""  # nothing comes after the last
        if kind in {"created", "queued", "in_progress"}:
            assert item is None
            found.begun.append(kind)
            assert event["response"]["output"] == []
            continue
        assert "in_progress" in found.begun or kind in {"error", "failed", "incomplete"}
        if kind == "output_item.added":
            assert item is None
            item = event["item"]
            assert item["status"] == "in_progress"
            assert event["output_index"] == len(found.output)
            part, said = False, ""
        elif kind == "error":
            assert item is None
            found.error = event
        elif kind in {"completed", "incomplete", "failed"}:
            assert item is None
            found.status, found.last = event["response"]["status"], event["response"]
            assert kind == ("incomplete" if found.status == "cancelled" else found.status)
            assert (found.error is not None) == (kind == "failed")
        else:
            assert item is not None
            assert event["output_index"] == len(found.output)
            assert event.get("item_id", item["id"]) == item["id"]
            if kind == "content_part.added":
                assert item["type"] == "message"
                assert not part
                part = True
            elif kind == "output_text.delta":
                assert part
                assert event["delta"]
                said += event["delta"]
            elif kind == "function_call_arguments.delta":
                assert item["type"] == "function_call"
                said += event["delta"]
            elif kind == "output_text.done":
                assert part
                assert event["text"] == said
            elif kind == "content_part.done":
                assert part
                assert event["part"]["text"] == said
                part = False
            elif kind == "function_call_arguments.done":
                assert event["arguments"] == said
            else:
                assert kind == "output_item.done"
                assert not part
                assert event["item"]["id"] == item["id"]
                whole = event["item"]
                assert said == (
                    whole["arguments"]
                    if whole["type"] == "function_call"
                    else whole["content"][0]["text"]
                )
                found.output.append(whole)
                item = None
    assert found.begun[0] == "created"
    assert found.status != ""
    assert found.last["output"] == found.output
    return found
