"""What a request for text may say, for both endpoints: shapes, bounds, and the frozen `Controls`.

Strict: a boolean is no number, a string is no number, and every number has a range.  `null` is as if
left out, and unknown fields are ignored.  Every refusal is a 400 that names the field as `param`.

Refuses to know: HTTP, JSON bytes (`strict_json` has read them), who asks, what they may have: a
plan's caps on `n` and tokens are policy.  Source: API.md §1, §2; SECURITY.md §4 (A1–A3, A8).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from executor.contract import ModelCard, Sampling
from gateway import strict_json
from gateway.api.structure import ResponseFormat, Structure, StructuredOutputs, structure
from gateway.api.wire import check_kept
from gateway.caching import EndUser
from gateway.errors import ApiError, invalid
from policies import tags

_INT32_MAX = 2**31 - 1

TokenId = Annotated[int, Meta(ge=0, le=_INT32_MAX)]
TokenCount = Annotated[int, Meta(ge=1, le=_INT32_MAX)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Label = Annotated[str, Meta(max_length=512)]
Stop = Annotated[str, Meta(min_length=1, max_length=512)]

STOPS_MAX = 16
STOP_IDS_MAX = 256
BIASES_MAX = 1024
CHOICES_MAX = 128


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None  # padding only: accepted, never sent
    x_status: bool | None = None


class CommonRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that both endpoints share.  Unknown ones are ignored."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    n: Annotated[int, Meta(ge=1, le=CHOICES_MAX)] | None = None
    max_tokens: TokenCount | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=_INT32_MAX)] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Fraction | None = None
    top_k: Annotated[int, Meta(ge=-1, le=_INT32_MAX)] | None = None
    min_p: Fraction | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.001, le=2)] | None = None
    logit_bias: Annotated[dict[str, Any], Meta(max_length=BIASES_MAX)] | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=STOPS_MAX)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=STOP_IDS_MAX)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    user: Label | None = None
    safety_identifier: Annotated[str, Meta(max_length=64)] | None = None
    prompt_cache_key: Label | None = None
    metadata: (
        Annotated[
            dict[
                Annotated[str, Meta(min_length=1, max_length=tags.NAME_CHARS_MAX)],
                Annotated[str, Meta(max_length=tags.CLIENT_VALUE_CHARS_MAX)],
            ],
            Meta(max_length=tags.TAGS_MAX),
        ]
        | None
    ) = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    priority: Annotated[int, Meta(ge=-_INT32_MAX, le=_INT32_MAX)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """How to answer, the same for both endpoints.

    `sampling` lacks only the seed: `sampling_for` gives each choice its own.  `max_tokens` None: as
    many as fit and can be paid; `max_tokens_field` is the name by which the client gave it.  `end_user` is in
    the client's words: hash them before they are kept.  `metadata` is kept as it is, for reports.  `service_tier`
    is what was asked for."""

    model: str
    n: int
    sampling: Sampling
    seed: int | None
    max_tokens: int | None
    max_tokens_field: str
    min_tokens: int
    ignore_eos: bool
    skip_special_tokens: bool
    stops: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    structure: Structure | None
    stream: bool
    include_usage: bool
    continuous_usage: bool
    x_status: bool
    service_tier: str | None
    priority: int
    end_user: EndUser
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def logprobs(self) -> bool:
        return self.sampling.top_logprobs is not None

    def stop_ids(self, card: ModelCard) -> tuple[int, ...]:
        """For `Submit.stop_token_ids` and `Reply`: ids that end generation and are not printed.
        What has a shape ends where the shape does, whatever `ignore_eos` says."""
        eos = () if self.ignore_eos and self.structure is None else card.eos_token_ids
        return tuple(dict.fromkeys((*eos, *self.stop_token_ids)))

    def sampling_for(self, choice: int, drawn_seed: int) -> Sampling:
        """Choice i samples with f(seed, i): its own text, the same again for the same seed.
        `drawn_seed` is used where the client named none."""
        seed = drawn_seed if self.seed is None else self.seed
        return msgspec.structs.replace(self.sampling, seed=_mix(seed, choice))


def _mix(seed: int, choice: int) -> int:
    """The client's own seed for choice 0; SplitMix64 (Steele et al., 2014) for the others."""
    if choice == 0:
        return seed
    word = (seed + choice * 0x9E3779B97F4A7C15) & (2**64 - 1)
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    word ^= word >> 31
    return word - 2**64 if word >= 2**63 else word


Request = TypeVar("Request", bound=CommonRequest)


def object_of(body: object) -> dict[str, Any]:
    """The request object.  Raises ApiError 400 for a list, number, string or null."""
    if not isinstance(body, dict):
        raise invalid("The request body must be a JSON object.")
    return body


def model_of(body: object) -> str:
    """The name of the model alone, which must be known before its vocabulary is."""
    model = object_of(body).get("model")
    if not isinstance(model, str) or not 0 < len(model) <= 256:
        raise invalid(
            "model: expected the name of a model. GET /v1/models lists yours.", param="model"
        )
    return whole(model, "model")


def shape(body: object, kind: type[Request]) -> Request:
    """`body` as `kind`.  Raises ApiError 400 naming the field."""
    try:
        request = msgspec.convert(object_of(body), kind)
    except msgspec.ValidationError as error:
        raise strict_json.misfit(str(error), kind) from None
    for name in ("model", "user", "safety_identifier", "prompt_cache_key"):
        whole(getattr(request, name) or "", name)
    for key, value in (request.metadata or {}).items():
        whole(key + value, "metadata")
        check_kept(key + value, "metadata")
    return request


def whole(text: str, param: str) -> str:
    """Refuse half a surrogate pair, which is no text and has no UTF-8."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise invalid(
                f"{param}: contains half of a surrogate pair (\\ud800 to \\udfff), which is no text.",
                param=param,
            ) from None
    return text


def controls(
    request: CommonRequest,
    *,
    max_tokens: int | None,
    top_logprobs: int | None,
    vocab_size: int,
    max_tokens_field: str = "max_tokens",
) -> Controls:
    """What `request` asks for, once the rules between fields hold.  Raises ApiError 400."""
    if request.stream_options is not None and not request.stream:
        raise invalid(
            "stream_options: only allowed together with stream: true.", param="stream_options"
        )
    min_tokens = request.min_tokens or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise invalid(f"min_tokens: must not be above {max_tokens_field}.", param="min_tokens")
    options = request.stream_options or StreamOptions()
    stops = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    for stop in stops:
        whole(stop, "stop")
    stop_token_ids = tuple(request.stop_token_ids or ())
    if outside := [token for token in stop_token_ids if token >= vocab_size]:
        raise _not_in_vocabulary("stop_token_ids", outside[0], vocab_size)
    return Controls(
        model=request.model,
        n=request.n or 1,
        sampling=_sampling(request, top_logprobs, vocab_size),
        seed=request.seed,
        max_tokens=max_tokens,
        max_tokens_field=max_tokens_field,
        min_tokens=min_tokens,
        ignore_eos=bool(request.ignore_eos),
        skip_special_tokens=request.skip_special_tokens is not False,
        stops=stops,
        stop_token_ids=stop_token_ids,
        structure=structure(request.response_format, request.structured_outputs),
        stream=bool(request.stream),
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
        x_status=bool(options.x_status),
        service_tier=request.service_tier,
        priority=request.priority or 0,
        end_user=EndUser(request.safety_identifier, request.user, request.prompt_cache_key),
        metadata=dict(request.metadata or {}),
    )


def _sampling(request: CommonRequest, top_logprobs: int | None, vocab_size: int) -> Sampling:
    temperature = 1.0 if request.temperature is None else request.temperature
    top_p = 1.0 if request.top_p is None else request.top_p
    if top_p == 0:  # nothing but the likeliest token: greedy
        temperature, top_p = 0.0, 1.0
    return Sampling(
        temperature=temperature,
        top_p=top_p,
        top_k=request.top_k if request.top_k is not None and request.top_k > 0 else None,
        min_p=request.min_p or 0.0,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=request.repetition_penalty or 1.0,
        logit_bias=_logit_bias(request.logit_bias or {}, vocab_size),
        top_logprobs=top_logprobs,
    )


_BIAS_KEY = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


def _logit_bias(bias: Mapping[str, Any], vocab_size: int) -> tuple[tuple[int, float], ...]:
    """All bad entries in one refusal, so that a client mends them at once."""
    good: list[tuple[int, float]] = []
    bad: list[str] = []
    for key, value in bias.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        named = _BIAS_KEY.fullmatch(key) is not None and int(key) < vocab_size
        if named and number and -100 <= value <= 100:  # which no NaN passes
            good.append((int(key), float(value)))
        else:
            bad.append(ascii(key[:24]))
    if bad:
        listed = ", ".join(bad[:64]) + (f" and {len(bad) - 64} more" if len(bad) > 64 else "")
        raise invalid(
            f"logit_bias: keys must be token ids from 0 to {vocab_size - 1} and values numbers from "
            f"-100 to 100. At fault: {listed}.",
            param="logit_bias",
        )
    return tuple(good)


def _not_in_vocabulary(param: str, token: int, vocab_size: int) -> ApiError:
    return invalid(
        f"{param}: {token} is not a token of this model, whose ids are 0 to {vocab_size - 1}.",
        param=param,
    )


def token_ids(tokens: list[int], param: str, vocab_size: int) -> tuple[int, ...]:
    """Raises ApiError 400 for the first that the model does not have."""
    for token in tokens:
        if token >= vocab_size:
            raise _not_in_vocabulary(param, token, vocab_size)
    return tuple(tokens)
