"""Any body at all: an answer or a refusal, never a fault of ours, never a hang, nothing left behind.

Bodies are built from the fields that exist with values near and far from right, then wrapped, cut and
bent as JSON text.  `derandomize` keeps the fast run the same everywhere; the slow one searches.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from executor.echo import EchoExecutor
from tests.gateway.inhouse import CHAT, MODEL, Answered, Inhouse, inhouse

pytestmark = pytest.mark.slow  # exhaustive; the fast subset has its neighbours

TEXT = "/v1/completions"
PATHS = st.sampled_from((CHAT, TEXT))
WORDS = st.sampled_from(
    (
        "",
        "x",
        "hello",
        "user",
        "system",
        "assistant",
        "text",
        "\u0000",
        "😀",
        "\u202e",
        "<|im_end|>",
        "1",
    )
) | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.sampled_from(
    (
        0,
        1,
        2,
        -1,
        5,
        16,
        129,
        257,
        258,
        2**31,
        2**63,
        -(2**63),
        0.5,
        1.0,
        2.5,
        -0.0,
        1e-9,
        1e300,
        1e308,
    )
) | st.integers(-3, 40)
LEAVES = st.none() | st.booleans() | NUMBERS | WORDS
VALUES: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=6,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(("user", "system", "assistant", "developer"))},
        optional={
            "content": WORDS
            | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": WORDS}), max_size=3)
            | VALUES,
            "name": WORDS,
            "tool_calls": VALUES,
        },
    ),
    max_size=4,
)
RIGHT: dict[str, st.SearchStrategy[Any]] = {
    "n": st.integers(1, 4),
    "max_tokens": st.integers(1, 300),
    "max_completion_tokens": st.integers(1, 20),
    "min_tokens": st.integers(0, 8),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0, 1),
    "seed": st.integers(-(2**63), 2**63 - 1),
    "stop": WORDS | st.lists(WORDS, max_size=3),
    "stop_token_ids": st.lists(st.integers(0, 257), max_size=3),
    "logit_bias": st.dictionaries(st.integers(0, 300).map(str), st.integers(-101, 101), max_size=3),
    "logprobs": st.booleans() | st.integers(0, 6),
    "top_logprobs": st.integers(0, 21),
    "stream": st.booleans(),
    "stream_options": st.dictionaries(
        st.sampled_from(("include_usage", "continuous_usage_stats", "x_status")), st.booleans()
    ),
    "ignore_eos": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "user": WORDS,
    "metadata": st.dictionaries(WORDS, WORDS, max_size=2),
    "service_tier": st.sampled_from(("auto", "default", "flex", "priority", "gold")),
    "response_format": st.fixed_dictionaries(
        {"type": st.sampled_from(("text", "json_object", ""))}
    ),
    "chat_template_kwargs": st.dictionaries(WORDS, LEAVES, max_size=2),
    "prompt": WORDS | st.lists(WORDS, max_size=3) | st.lists(st.integers(0, 260), max_size=5),
    "best_of": st.integers(1, 3),
    "tools": VALUES,
    "cache_salt": WORDS,
}


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Mostly right requests, one field or two bent; now and then the text itself."""
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": draw(MESSAGES),
        "prompt": draw(RIGHT["prompt"]),
    }
    for name in draw(st.lists(st.sampled_from(sorted(RIGHT)), max_size=6, unique=True)):
        body[name] = draw(RIGHT[name])
    for name in draw(st.lists(st.sampled_from([*sorted(RIGHT), "messages", "model"]), max_size=2)):
        body[name] = draw(VALUES)
    for name in draw(st.lists(st.sampled_from(sorted(body)), max_size=1)):
        del body[name]
    raw = json.dumps(body, ensure_ascii=draw(st.booleans())).encode()
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(raw)))
        how = draw(st.sampled_from(("cut", "insert", "double", "byte")))
        junk = draw(
            st.sampled_from((b'"', b"{", b"]", b",", b"\\", b"\x00", b"\xff", b"NaN", b"9" * 30))
        )
        if how == "cut":
            raw = raw[:at]
        elif how == "insert":
            raw = raw[:at] + junk + raw[at:]
        elif how == "double":
            raw = raw[:at] + raw
        else:
            raw = raw[:at] + junk[:1] + raw[at + 1 :]
    return raw


def judge(answer: Answered) -> None:
    assert answer.status in {200, 400, 404}, answer.body
    if answer.status != 200:
        error = answer.error
        assert isinstance(error["message"], str)
        assert isinstance(error["code"], str)
        assert isinstance(error["param"], str | None)
        return
    if answer.headers["content-type"] == "application/json":
        told = answer.json()
        assert all(choice["finish_reason"] in {"stop", "length"} for choice in told["choices"])
        return
    *chunks, done = answer.events()
    assert done == "[DONE]"
    assert not any("error" in chunk for chunk in chunks)
    ended = [c["index"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
    assert sorted(ended) == list(range(len(ended)))
    assert ended


def search(folder: Path, **options: Any) -> None:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        echo = EchoExecutor(context_tokens=320, kv_blocks=256)
        home: Inhouse = runner.run(stack.enter_async_context(inhouse(folder, echo=echo)))
        seen: set[int] = set()

        async def ask(path: str, raw: bytes) -> None:
            tasks = len(asyncio.all_tasks())
            answer = await home.caller().post(path, raw)
            judge(answer)
            seen.add(answer.status)
            await home.at_rest()
            await asyncio.sleep(0)
            assert len(asyncio.all_tasks()) == tasks
            assert not [entry for entry in home.logged if entry["event"] == "failed"]

        @settings(deadline=None, suppress_health_check=list(HealthCheck), **options)
        @given(PATHS, bodies() | st.binary(max_size=40) | VALUES.map(_raw))
        @example(CHAT, b'{"model":"echo","messages":[{"role":"user","content":"x"}]}')
        @example(CHAT, b'{"model":"","messages":[]}')
        @example(CHAT, b'{"model":"echos","messages":[]}')
        def check(path: str, raw: bytes) -> None:
            runner.run(ask(path, raw))

        try:
            check()
            assert seen >= {200, 400, 404}
        finally:
            runner.run(stack.aclose())


def _raw(value: object) -> bytes:
    return json.dumps(value).encode()


def test_any_body_is_answered_or_refused(tmp_path: Path) -> None:
    search(tmp_path, max_examples=60, derandomize=True, database=None)


@pytest.mark.slow
def test_any_body_is_answered_or_refused_at_length(tmp_path: Path) -> None:
    search(tmp_path, max_examples=1500, database=None)
