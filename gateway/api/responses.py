"""POST /v1/responses: how items become a prompt, and in which words it is answered."""

from __future__ import annotations

from gateway.api.answers import Answered
from gateway.api.chat import templated
from gateway.api.generate import Asked, Family, Resolve
from gateway.api.refused import unsupported
from gateway.api.response_object import OUR_PREFIX, encode, response_answer
from gateway.api.response_stream import ResponseStream, fault
from gateway.api.schema_responses import parse_responses
from gateway.errors import ApiError
from gateway.house import Reading


async def ask(body: object, reading: Reading, wall_ms: int, resolve: Resolve) -> Asked:
    """Raises ApiError 400, and what `resolve` raises, naming fields as they are called here."""
    job = parse_responses(body, vocab_size=reading.card.vocab_size).job()
    if job.tools is not None or any(each.role == "tool" or each.calls for each in job.messages):
        at = "input" if job.tools is None else "tools"
        raise unsupported(f"{at}: tools are not supported here yet.", param=at)
    try:
        return await templated(job, reading, wall_ms, resolve)
    except ApiError as why:
        if why.param is not None and why.param.startswith("messages"):
            why.param = "input"
        raise


def write(asked: Asked, answered: Answered) -> bytes:
    return encode(response_answer(asked.repeated, answered))


RESPONSES = Family(
    route="/v1/responses",
    id_prefix=OUR_PREFIX,
    prompt_param="input",
    ask=ask,
    shape=ResponseStream,
    write=write,
    fault=fault,
)
