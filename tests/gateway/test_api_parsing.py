"""What a body may say: each kind of wrong one is a 400 that names its field, costs nothing and is
recorded; each kind of odd but right one is answered.  API.md §2 (Parsing, Sampling), SECURITY.md §4
(A1–A3, A7, A8, W14)."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.gateway.inhouse import CHAT, MODEL, PLAN, Inhouse, chat_body, inhouse
from tests.gateway.test_line import lived

TEXT = "/v1/completions"
HUGE = 10**6
NOTHING = object()


def user(content: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": content}]}


def part(**fields: object) -> dict[str, object]:
    return user([fields])


RAW: tuple[bytes, ...] = (
    b"",
    b"[]",
    b"42",
    b"null",
    b"true",
    b'"text"',
    b"{",
    b"[" * 10_000 + b"]" * 10_000,
    b"\xef\xbb\xbf{}",
    b'{"model":"echo","messages":[]} trailing',
    b'{"model":"echo","model":"echo","messages":[{"role":"user","content":"x"}]}',
    b'{"model":"echo","messages":[{"role":"user","content":"\\ud800"}]}',
    b'{"model":"echo","messages":[{"role":"user","content":"\\udfff x"}],"stream":true}',
    b'{"model":"echo","messages":[{"role":"user","content":"\xff"}]}',
    b'{"model":"echo","temperature":NaN,"messages":[{"role":"user","content":"x"}]}',
    b'{"model":"echo","seed":' + b"9" * 400 + b',"messages":[{"role":"user","content":"x"}]}',
)

# Fields laid over a right request, and the field that the refusal must name.
CHAT_WRONG: tuple[tuple[dict[str, object], str], ...] = (
    ({"messages": []}, "messages"),
    ({"messages": NOTHING}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": {}}, "messages"),
    ({"messages": [{}]}, "messages[0].role"),
    ({"messages": ["x"]}, "messages[0]"),
    ({"messages": [{"role": 123, "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    (user(None), "messages[0].content"),
    (user(123), "messages[0].content"),
    (user({"text": "x"}), "messages[0].content"),
    (user(["x"]), "messages[0].content[0]"),
    (part(type="text"), "messages[0].content[0].text"),
    (part(type="hiccup", text="x"), "messages[0].content[0].type"),
    (part(type="text", text=5), "messages[0].content[0].text"),
    # A7: no fetcher exists, whatever the address
    *(
        (part(type="image_url", image_url={"url": url}), "messages[0].content[0]")
        for url in (
            "http://169.254.169.254/latest/meta-data",
            "file:///etc/passwd",
            "https://example.com/redirect",
            "data:image/png;base64,AAAA",
        )
    ),
    (part(type="input_audio", input_audio={}), "messages[0].content[0]"),
    (part(type="video_url", video_url={}), "messages[0].content[0]"),
    (part(type="file", file={"file_data": "x"}), "messages[0].content[0].file"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.01}, "temperature"),
    ({"temperature": 1e308}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"min_p": 2}, "min_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": 9}, "n"),  # the plan's own bound
    ({"n": HUGE}, "n"),
    ({"n": True}, "n"),
    ({"n": "1"}, "n"),
    ({"n": 1.5}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 2**63}, "max_tokens"),
    ({"max_tokens": False}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": 2**62}, "max_completion_tokens"),
    ({"min_tokens": 9, "max_tokens": 5}, "min_tokens"),
    ({"seed": 2**63}, "seed"),
    ({"seed": 2**64}, ""),  # refused as JSON: 20 digits
    ({"seed": "1"}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"seed": True}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": ["ok", ""]}, "stop[1]"),
    ({"stop": [str(i) for i in range(17)]}, "stop"),
    ({"stop": [str(i) for i in range(10_000)]}, "stop"),
    ({"stop": 5}, "stop"),
    ({"stop": "x" * 513}, "stop"),
    ({"stop_token_ids": [258]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"logit_bias": {"AI": 1}}, "logit_bias"),
    ({"logit_bias": {"258": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"01": 1}}, "logit_bias"),
    ({"logit_bias": {"1": "x"}}, "logit_bias"),
    ({"logit_bias": {"1": True}}, "logit_bias"),
    ({"logit_bias": {"1": 100.5}}, "logit_bias"),
    ({"logit_bias": {str(i): 1 for i in range(100_000)}}, ""),
    ({"logit_bias": {str(i): 1 for i in range(2_000)}}, "logit_bias"),
    ({"logit_bias": []}, "logit_bias"),
    ({"logprobs": 5}, "logprobs"),
    ({"logprobs": HUGE}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": HUGE}, "top_logprobs"),
    ({"top_logprobs": 5}, "top_logprobs"),
    ({"logprobs": False, "top_logprobs": 5}, "top_logprobs"),
    ({"stream": "yes"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream_options": {}, "stream": False}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
    ({"response_format": {"type": "hiccup"}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        "response_format.json_schema.name",
    ),
    ({"structured_outputs": {"regex": "a", "grammar": "b"}}, "structured_outputs"),
    ({"response_format": {}}, "response_format.type"),
    ({"tools": []}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "f()"}}]}, "tools[0].function.name"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"functions": []}, "functions"),
    ({"chat_template": "{{ x }}"}, "chat_template"),
    ({"chat_template_kwargs": {"messages": "x"}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"x": [1]}}, "chat_template_kwargs"),
    ({"cache_salt": "x"}, "cache_salt"),
    ({"extra_key": "x"}, "extra_key"),
    ({"service_tier": "gold"}, "service_tier"),
    ({"service_tier": 1}, "service_tier"),
    ({"user": "x" * 513}, "user"),
    ({"user": 5}, "user"),
    ({"safety_identifier": "x" * 65}, "safety_identifier"),
    ({"metadata": {str(i): "x" for i in range(17)}}, "metadata"),
    ({"metadata": {"k": 5}}, "metadata"),
    ({"metadata": {"k" * 65: "x"}}, "metadata"),
    ({"reasoning_effort": "heroic"}, "reasoning_effort"),
    ({"store": True}, "store"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"best_of": 2}, "best_of"),
    ({"model": NOTHING}, "model"),
    ({"model": ""}, "model"),
    ({"model": 5}, "model"),
    ({"model": "x" * 257}, "model"),
    (user("x" * 5000), "messages"),
)

TEXT_WRONG: tuple[tuple[dict[str, object], str], ...] = (
    ({"prompt": NOTHING}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt[0]"),
    ({"prompt": ["a", ""]}, "prompt[1]"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [1, True]}, "prompt"),
    ({"prompt": [1, -1]}, "prompt"),
    ({"prompt": [258]}, "prompt"),
    ({"prompt": [[1], [258]]}, "prompt[1]"),
    ({"prompt": {"text": "x"}}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": ["a"] * 129}, "prompt"),
    ({"prompt": ["a"] * 65, "n": 2}, "prompt"),
    ({"prompt": "x" * 5000}, "prompt"),
    ({"prompt": [65] * 5000}, "prompt"),
    ({"best_of": HUGE}, "best_of"),
    ({"best_of": 2}, "best_of"),
    ({"best_of": True}, "best_of"),
    ({"logprobs": 6}, "logprobs"),
    ({"logprobs": HUGE}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"echo": True}, "echo"),
    ({"suffix": "x"}, "suffix"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"temperature": 3}, "temperature"),
    ({"n": HUGE}, "n"),
    ({"stop": [""]}, "stop[0]"),
)


def laid(base: dict[str, object], fields: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in (base | fields).items() if value is not NOTHING}


@pytest.mark.slow
def test_each_wrong_request_is_a_400_that_names_its_field(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        caller, faults, count = home.caller(), [], 0

        async def expect(path: str, body: object, param: str | None) -> None:
            nonlocal count
            count += 1
            answer = await caller.post(path, body)
            case = f"{path} {str(body)[:100]}"
            if answer.status != 400:
                faults.append(f"{answer.status}: {case}")
                return
            error = answer.error
            if answer.headers["content-type"] != "application/json":
                faults.append(f"{answer.headers['content-type']}: {case}")
            if not isinstance(error["code"], str | None) or not error["message"]:
                faults.append(f"{error}: {case}")
            if error["type"] != "invalid_request_error":
                faults.append(f"{error['type']}: {case}")
            if param is not None and error["param"] != (param or None):
                faults.append(f"param {error['param']!r} instead of {param!r}: {case}")

        for raw in RAW:
            await expect(CHAT, raw, None)
            await expect(TEXT, raw, None)
        for fields, param in CHAT_WRONG:
            await expect(CHAT, laid(chat_body(), fields), param)
            if fields.get("stream") is None and param != "stream_options":
                await expect(CHAT, laid(chat_body(stream=True), fields), param)
        for fields, param in TEXT_WRONG:
            await expect(TEXT, laid({"model": MODEL, "prompt": "hello"}, fields), param)
        assert faults == []
        assert count > 230
        usage = (await home.operator().get("/v1/admin/usage", "by=tenant")).json()
        assert usage["rows"] == []
        assert home.echo.gauges.prompt_tokens == 0
        records = home.audited()
        assert len([each for each in records if each["kind"] == "request.rejected"]) == count
        assert (await caller.chat()).status == 200  # and the next request is fine

    lived(tmp_path, story)


NULLS = dict.fromkeys(
    (
        *(
            "n",
            "max_tokens",
            "max_completion_tokens",
            "min_tokens",
            "temperature",
            "top_p",
            "top_k",
        ),
        *("min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "stop"),
        *("logit_bias", "stop_token_ids", "stream", "stream_options", "response_format", "user"),
        *("safety_identifier", "prompt_cache_key", "metadata", "service_tier", "priority", "tools"),
        *("tool_choice", "logprobs", "top_logprobs", "reasoning_effort", "chat_template_kwargs"),
        *("ignore_eos", "skip_special_tokens", "functions", "store", "cache_salt", "chat_template"),
    )
)

CHAT_RIGHT: tuple[dict[str, object], ...] = (
    {},
    NULLS,
    {"unheard_of": {"deep": [1]}, "another": None, "x": "y"},
    {"logit_bias": {}},
    {"logit_bias": {"0": -100, "257": 100, "5": 0.5}},
    {"temperature": 0},
    {"temperature": 2},
    {"temperature": 1e-9},
    {"top_p": 0},
    {"top_p": 1},
    {"top_k": -1},
    {"top_k": 0},
    {"presence_penalty": -2, "frequency_penalty": 2},
    {"seed": -(2**63)},
    {"seed": 2**63 - 1},
    {"stop": [str(i) for i in range(16)]},
    {"stop": []},
    {"n": 8, "temperature": 0},
    {"logprobs": True},
    {"logprobs": True, "top_logprobs": 0},
    {"logprobs": True, "top_logprobs": 20},
    {"logprobs": False},
    {"top_logprobs": 0},
    {"max_tokens": 10**9},
    {"max_tokens": 5, "max_completion_tokens": 7},
    {"stream_options": None},
    {"response_format": {"type": "text"}},
    {"service_tier": "auto"},
    {"service_tier": "fast"},
    {"user": "someone", "presence_penalty": 0, "frequency_penalty": 0},
    {"metadata": {"k" * 64: "v" * 512}},
    {"modalities": ["text"], "store": False},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"reasoning_effort": "none"},
    {"messages": [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "x"}]},
    {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "a", "name": "bob"},
            {"role": "assistant", "content": ""},
            {
                "role": "user",
                "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}],
            },
            {"role": "assistant", "content": [{"type": "text", "text": ""}], "tool_calls": []},
            {"role": "user", "content": "d", "extra": 1},
        ]
    },
    user(""),
    user([]),
    user("😀 \u0000 \ufeff \u202e"),
)

TEXT_RIGHT: tuple[dict[str, object], ...] = (
    {"prompt": [72, 101]},
    {"prompt": [[72], [101]]},
    {"prompt": ["a", "b"]},
    {"prompt": [256, 257]},
    {"logprobs": 0},
    {"logprobs": 5},
    {"echo": False, "suffix": None, "best_of": 1},
    {"best_of": 2, "n": 2},
    {"stop": "l"},
)


@pytest.mark.slow
def test_each_odd_but_right_request_is_answered(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        faults = []
        for fields in CHAT_RIGHT:
            for stream in (False, True):
                answer = await home.caller().post(
                    CHAT, laid(chat_body(), fields | {"stream": stream})
                )
                if answer.status != 200:
                    faults.append((answer.status, answer.body, fields))
        for fields in TEXT_RIGHT:
            body = laid({"model": MODEL, "prompt": "hello", "max_tokens": 4}, fields)
            answer = await home.caller().post(TEXT, body)
            if answer.status != 200:
                faults.append((answer.status, answer.body, fields))
        assert faults == []

    lived(tmp_path, story)


def test_all_bad_biases_are_named_at_once(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        answer = await home.caller().chat(logit_bias={"AI": 1, "7": 1, "9999": 1, "8": "x"})
        message = answer.error["message"]
        assert all(repr(key) in message for key in ("AI", "9999", "8"))
        assert "'7'" not in message

    lived(tmp_path, story)


@pytest.mark.parametrize("path", (CHAT, TEXT))
def test_a_refusal_never_repeats_what_was_sent(tmp_path: Path, path: str) -> None:
    canary = "CANARY-77aa"

    async def run() -> None:
        async with inhouse(tmp_path) as home:
            for field in ("temperature", "stop", "n", "service_tier", "user", "logprobs"):
                body = chat_body() | {"prompt": "x", field: [canary]}
                answer = await home.caller().post(path, body)
                assert answer.status == 400 or field == "stop"
                assert canary not in json.dumps(answer.headers)
                assert canary.encode() not in answer.body

    asyncio.run(run())


BLAMED: tuple[tuple[dict[str, int], tuple[tuple[str, dict[str, object], str | None], ...]], ...] = (
    (
        {"max_prompt_tokens": 40, "max_output_tokens": 4},
        (
            (TEXT, {"prompt": ["a"] * 9}, "prompt"),
            (TEXT, {"prompt": ["a"] * 9, "stream": True}, "prompt"),
            (TEXT, {"prompt": ["a"] * 5, "n": 2}, "n"),
            (TEXT, {"prompt": "a", "n": 9}, "n"),
            (TEXT, {"prompt": [1] * 5_000}, "prompt"),
            (TEXT, {"prompt": "a" * 41}, "prompt"),
            (TEXT, {"prompt": "a", "max_tokens": 9}, "max_tokens"),
            (CHAT, {"n": 9}, "n"),
            (CHAT, {"max_tokens": 9}, "max_tokens"),
            (CHAT, {"max_completion_tokens": 9}, "max_completion_tokens"),
            (CHAT, {"max_completion_tokens": 9, "min_tokens": 10}, "min_tokens"),
        ),
    ),
    (
        {"input_tpm": 40, "output_tpm": 4},
        (
            (TEXT, {"prompt": "a" * 41}, "prompt"),
            (TEXT, {"prompt": ["a"] * 5}, "prompt"),
            (CHAT, {"n": 5}, "n"),
            (CHAT, chat_body("a" * 41), "messages"),
            (CHAT, {"max_completion_tokens": 9}, "max_completion_tokens"),
        ),
    ),
    ({"rpm": 0}, ((CHAT, {}, None),)),
)


@pytest.mark.parametrize(("limits", "asked"), BLAMED)
def test_what_a_plan_refuses_names_the_field_that_the_client_wrote(
    tmp_path: Path,
    limits: dict[str, int],
    asked: tuple[tuple[str, dict[str, object], str | None], ...],
) -> None:
    async def story(home: Inhouse) -> None:
        for path, fields, param in asked:
            body = chat_body("a") if path == CHAT else {"model": MODEL}
            answer = await home.caller().post(path, body | fields)
            assert (answer.status, answer.error["param"]) == (400, param), fields

    lived(tmp_path, story, plan=replace(PLAN, limits=replace(PLAN.limits, **limits)))
