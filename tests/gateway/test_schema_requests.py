from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.contract import Sampling
from gateway.api.refused import CHAT, COMPLETION
from gateway.api.schema import Controls, model_of
from gateway.api.schema_chat import ChatJob, parse_chat
from gateway.api.schema_completions import CompletionJob, parse_completion
from gateway.caching import EndUser
from gateway.errors import ApiError
from gateway.text.templates import ChatMessage
from tests.gateway.text_cards import STEADY, byte_level, card_of

VOCAB = 300
MESSAGES = [{"role": "user", "content": "hi"}]
INT64_MAX = 2**63 - 1


def chat(**fields: Any) -> ChatJob:
    return parse_chat({"model": "m", "messages": MESSAGES} | fields, vocab_size=VOCAB)


def completion(**fields: Any) -> CompletionJob:
    return parse_completion({"model": "m", "prompt": "hi"} | fields, vocab_size=VOCAB)


def either(**fields: Any) -> list[Controls]:
    return [chat(**fields).controls, completion(**fields).controls]


def refusal(call: Callable[..., object], **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        call(**fields)
    assert caught.value.status == 400
    assert caught.value.kind == "invalid_request_error"
    return caught.value


def test_the_least_request_is_neutral() -> None:
    for controls in either():
        assert controls.sampling == Sampling()
        assert (controls.n, controls.max_tokens, controls.seed) == (1, None, None)
        assert not any((controls.stream, controls.include_usage, controls.ignore_eos))
        assert controls.skip_special_tokens
    assert chat().messages == (ChatMessage("user", "hi"),)
    assert completion().prompts == ("hi",)


@pytest.mark.parametrize("body", ([], 42, None, "x", True, 1.5))
@pytest.mark.parametrize("parse", (parse_chat, parse_completion))
def test_a_body_that_is_no_object(parse: Callable[..., object], body: object) -> None:
    refusal(lambda: parse(body, vocab_size=VOCAB))
    refusal(lambda: model_of(body))


OPTIONAL = [
    "n",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "ignore_eos",
    "skip_special_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "stop",
    "stop_token_ids",
    "stream",
    "stream_options",
    "response_format",
    "structured_outputs",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "metadata",
    "service_tier",
    "priority",
    "logprobs",
    "top_logprobs",
    "reasoning_effort",
    "chat_template_kwargs",
    "best_of",
]


def test_null_is_as_if_left_out_and_unknown_fields_are_ignored() -> None:
    nothing = dict.fromkeys([*OPTIONAL, *CHAT, *COMPLETION])
    assert chat(**nothing, x_unknown={"a": 1}, verbosity="low") == chat()
    assert completion(**nothing, x_unknown=[1]) == completion()


NUMBERS: dict[str, tuple[float, float]] = {
    "n": (1, 128),
    "max_tokens": (1, 2**31 - 1),
    "min_tokens": (0, 2**31 - 1),
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0, 1),
    "seed": (-(2**63), INT64_MAX),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (0.001, 2),
}


@pytest.mark.parametrize("call", (chat, completion))
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_strict_and_in_range(call: Callable[..., object], name: str) -> None:
    low, high = NUMBERS[name]
    for good in (low, high):
        call(**{name: good})
    wrong: list[Any] = [
        True,
        False,
        "1",
        [],
        {},
        low - 1,
        high + 1,
        10**6 * high + 1,
        2**64,
        -(2**64),
    ]
    wrong += [1e308, -1e308, float("inf"), float("nan"), 2**2000]
    for bad in wrong:
        assert refusal(call, **{name: bad}).param == name


@pytest.mark.parametrize(
    ("fields", "param"),
    (
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"model": 5}, "model"),
        ({"model": "m" * 257}, "model"),
        ({"model": "\ud800"}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": ["a"] * 10_000}, "stop"),
        ({"stop": "a" * 513}, "stop"),
        ({"stop": 7}, "stop"),
        ({"stop": ["\ud800"]}, "stop"),
        ({"stop_token_ids": [VOCAB]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [True]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [1] * 257}, "stop_token_ids"),
        ({"stream_options": {}}, "stream_options"),
        ({"stream_options": {"include_usage": True}, "stream": False}, "stream_options"),
        ({"stream_options": {"include_usage": 1}, "stream": True}, "stream_options.include_usage"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"user": "u" * 513}, "user"),
        ({"user": 5}, "user"),
        ({"user": "\udfff"}, "user"),
        ({"safety_identifier": "s" * 65}, "safety_identifier"),
        ({"prompt_cache_key": "k" * 513}, "prompt_cache_key"),
        ({"metadata": {str(i): "v" for i in range(17)}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"metadata": {"k": 1}}, "metadata"),
        ({"metadata": {"\ud800": "v"}}, "metadata"),
        ({"service_tier": "platinum"}, "service_tier"),
        ({"response_format": {"type": "hiccup"}}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": "text"}, "response_format"),
        ({"cache_salt": "x"}, "cache_salt"),
        ({"extra_key": "x"}, "extra_key"),
        ({"chat_template": "{{ x }}"}, "chat_template"),
        ({"chat_template": ""}, "chat_template"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"length_penalty": True}, "length_penalty"),
        ({"echo": True}, "echo"),
    ),
)
@pytest.mark.parametrize("call", (chat, completion))
def test_what_both_refuse(call: Callable[..., object], fields: dict[str, Any], param: str) -> None:
    error = refusal(call, **fields)
    assert error.param == param
    assert error.message


def user(content: Any, **more: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content, **more}]


@pytest.mark.parametrize(
    ("fields", "param"),
    (
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": [{}]}, "messages[0].role"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": MESSAGES * 2049}, "messages"),
        ({"messages": [{"role": 123, "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content"),
        ({"messages": user(123)}, "messages[0].content"),
        ({"messages": user(None)}, "messages[0].content"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": user("\ud800")}, "messages[0].content"),
        ({"messages": MESSAGES + user([{"type": "text", "text": "\udc00"}])}, "messages[1].content"),
        ({"messages": user([{}])}, "messages[0].content[0].type"),
        ({"messages": user([{"type": "text"}])}, "messages[0].content[0].text"),
        ({"messages": user([{"type": "text", "text": 5}])}, "messages[0].content[0].text"),
        ({"messages": user([{"type": "song"}])}, "messages[0].content[0].type"),
        (
            {"messages": user([{"type": "image_url", "image_url": {"url": "http://169.254.169.254"}}])},
            "messages[0].content[0]",
        ),
        ({"messages": user([{"type": "file", "file": {"file_data": "x"}}])}, "messages[0].content[0].file"),
        ({"messages": user([{"type": "input_audio"}])}, "messages[0].content[0]"),
        ({"messages": user("x", name="n" * 65)}, "messages[0].name"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": 5}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
        ({"functions": []}, "functions"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"prediction": {}}, "prediction"),
        ({"store": True}, "store"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"prompt": {"id": "tmpl_1", "text": "x"}}, "prompt.text"),
        ({"reasoning_effort": "heroic"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"messages": "x"}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"__x": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"x": [1]}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"x": 10**7}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"x": float("nan")}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"x": "y" * 65}}, "chat_template_kwargs"),
        ({"continue_final_message": True}, "continue_final_message"),
    ),
)  # fmt: skip
def test_what_chat_refuses(fields: dict[str, Any], param: str) -> None:
    assert refusal(chat, **fields).param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    (
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"prompt": [""]}, "prompt[0]"),
        ({"prompt": ["a", [1], []]}, "prompt[2]"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [1, True]}, "prompt"),
        ({"prompt": [1, -1]}, "prompt"),
        ({"prompt": [1.0]}, "prompt[0]"),
        ({"prompt": [VOCAB]}, "prompt"),
        ({"prompt": [[1], [2, 2**70]]}, "prompt[1]"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a"] * 65, "n": 2}, "prompt"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 10**6}, "logprobs"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 10**6}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"suffix": "x"}, "suffix"),
    ),
)
def test_what_completions_refuses(fields: dict[str, Any], param: str) -> None:
    assert refusal(completion, **fields).param == param


def test_a_choice_that_there_is_not_is_answered_with_those_there_are() -> None:
    assert refusal(chat, service_tier="platinum").message == (
        "'service_tier' is not one of the accepted values: auto, default, flex, scale, priority, fast."
    )


@pytest.mark.parametrize(
    "name", ("cache_salt", "extra_key", "cache_key", "prompt_cache_isolation_key", "cache_hash")
)
def test_what_is_shared_never_follows_from_a_request_and_it_says_so(name: str) -> None:
    for call in (chat, completion):
        error = refusal(call, **{name: "x"})
        assert (error.status, error.param) == (400, name)
        assert "follows from your identity and rights" in error.message


@pytest.mark.parametrize(
    "name", ("bypass_cache", "kv_transfer_params", "skip_reading_prefix_cache")
)
def test_what_is_kept_follows_from_the_plan_and_it_says_so(name: str) -> None:
    for call in (chat, completion):
        assert "follows from your plan" in refusal(call, **{name: True}).message


def test_what_is_not_built_yet_says_so_and_what_is_forbidden_says_why() -> None:
    assert refusal(chat, functions=[]).code == "unsupported"
    assert "never" in refusal(chat, cache_salt="x").message
    assert "comes from the model alone" in refusal(chat, chat_template="x").message
    assert (
        "nothing is ever fetched"
        in refusal(
            chat, messages=user([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}])
        ).message
    )


@pytest.mark.parametrize(
    "fields",
    (
        {"store": False},
        {"modalities": ["text"]},
        {"response_format": {"type": "text"}},
        {"echo": False},
        {"length_penalty": 1.0},
        {"logit_bias": {}},
        {"stop": []},
        {"top_logprobs": 0},
        {"prompt_cache_key": "k"},
        {"prompt_cache_retention": "24h"},
        {"bypass_cache": False},
        {"parallel_tool_calls": True},
        {"repetition_penalty": 1},
    ),
)
def test_what_asks_for_nothing_is_accepted(fields: dict[str, Any]) -> None:
    assert chat(**fields).controls.sampling == Sampling()


def test_both_limits_the_newer_wins() -> None:
    assert chat(max_tokens=5, max_completion_tokens=3).controls.max_tokens == 3
    assert chat(max_tokens=5).controls.max_tokens == 5
    assert completion(max_tokens=5, max_completion_tokens=3).controls.max_tokens == 5


def test_message_content_in_all_its_forms() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "extra": 1}]
    job = chat(
        messages=[
            {"role": "developer", "content": parts, "name": "dev"},
            {"role": "assistant", "content": "", "refusal": None, "tool_calls": None},
            {"role": "assistant", "content": "x", "tool_calls": []},
            {"role": "user", "content": []},
        ]
    )
    assert job.messages == (
        ChatMessage("developer", "a\nb", "dev"),
        ChatMessage("assistant", ""),
        ChatMessage("assistant", "x"),
        ChatMessage("user", ""),
    )


def test_logit_bias_names_every_bad_key_at_once() -> None:
    good = {"0": 1, "299": -100.0}
    bad = {"AI": 1, "300": 1, "-1": 1, "01": 1, "٣": 1, "1.0": 1, " 5": 1, "\ud800": 1}
    values = {
        "7": "x",
        "8": True,
        "9": 101,
        "10": float("inf"),
        "13": float("nan"),
        "11": None,
        "12": 10**400,
    }
    error = refusal(chat, logit_bias=good | bad | values)
    assert error.param == "logit_bias"
    error.json()
    for key in bad | values:
        assert ascii(key) in error.message
    for controls in either(logit_bias=good):
        assert controls.sampling.logit_bias == ((0, 1.0), (299, -100.0))
    assert refusal(chat, logit_bias={str(i): 1 for i in range(1025)}).param == "logit_bias"
    assert len(refusal(chat, logit_bias={"x" * 99 + str(i): 1 for i in range(1000)}).message) < 4096


def test_log_probabilities() -> None:
    assert chat(logprobs=True).controls.sampling.top_logprobs == 0
    assert chat(logprobs=True, top_logprobs=20).controls.sampling.top_logprobs == 20
    assert not chat(logprobs=False).controls.logprobs
    assert completion(logprobs=0).controls.logprobs
    assert completion(logprobs=5).controls.sampling.top_logprobs == 5


def test_prompts_in_all_their_forms() -> None:
    assert completion(prompt=[1, 2]).prompts == ((1, 2),)
    assert completion(prompt=["a", "b"]).prompts == ("a", "b")
    assert completion(prompt=[[1], [2, 3]], n=64).prompts == ((1,), (2, 3))
    assert completion(best_of=3, n=3).controls.n == 3


def test_streaming_options() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True, "x_status": True}
    for controls in either(stream=True, stream_options=options | {"include_obfuscation": False}):
        assert controls.stream
        assert controls.include_usage
        assert controls.continuous_usage
        assert controls.x_status


def test_sampling_is_what_the_executor_takes() -> None:
    sampling = chat(temperature=0.5, top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.1).controls
    assert sampling.sampling == Sampling(
        temperature=0.5, top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.1
    )
    assert chat(top_p=0).controls.sampling == Sampling(temperature=0.0)
    assert chat(top_k=-1).controls.sampling == chat(top_k=0).controls.sampling == Sampling()


def test_stop_ids() -> None:
    card = card_of(byte_level())
    assert chat(stop_token_ids=[7, 2]).controls.stop_ids(card) == (2, 7)
    assert chat(stop_token_ids=[7], ignore_eos=True).controls.stop_ids(card) == (7,)


@STEADY
@given(seed=st.integers(-(2**63), INT64_MAX), drawn=st.integers(-(2**63), INT64_MAX))
def test_each_choice_has_a_seed_of_its_own(seed: int, drawn: int) -> None:
    named, free = chat(seed=seed, n=8).controls, chat(n=8).controls
    seeds = [named.sampling_for(choice, drawn).seed for choice in range(8)]
    assert seeds[0] == seed
    assert len(set(seeds)) == 8
    assert all(-(2**63) <= one <= INT64_MAX for one in seeds)
    assert free.sampling_for(0, drawn).seed == drawn
    assert free.sampling_for(3, seed).seed == seeds[3]


def test_extras_for_the_template() -> None:
    job = chat(chat_template_kwargs={"enable_thinking": False}, reasoning_effort="low")
    assert job.template_extras == {"enable_thinking": False, "reasoning_effort": "low"}


def test_who_the_end_user_is() -> None:
    """What is absent is not what is empty: they are two scopes."""
    assert chat(user="u").controls.end_user == EndUser(user="u")
    both = chat(user="u", safety_identifier="s", prompt_cache_key="k").controls.end_user
    assert both == EndUser("s", "u", "k")
    assert both.named == ("s", "u")
    assert chat(prompt_cache_key="k").controls.end_user.named == (None, None, "k")
    assert chat().controls.end_user.named is None
    assert chat(user="").controls.end_user == EndUser(user="")


def outcome(call: Callable[..., object], fields: dict[str, Any]) -> ApiError | None:
    try:
        call(**fields)
    except ApiError as error:
        return error
    return None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@STEADY
@given(
    fields=st.dictionaries(st.sampled_from([*OPTIONAL, "messages", "prompt", "tools"]), json_values)
)
def test_any_object_is_read_or_refused_never_a_crash(fields: dict[str, Any]) -> None:
    for call in (chat, completion):
        refused = outcome(call, fields)
        if refused is not None:
            assert refused.status == 400
            assert refused.param
            refused.json()
