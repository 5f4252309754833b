"""`lockgate run`: a chat in the terminal with a model of a running server, streamed.

The public API by the front door, as any client: the conversation is kept here and sent whole.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx2
import msgspec
import typer

from gateway.cli import client
from gateway.cli.options import ENV_TOKEN, VAR, Json, StateDir
from gateway.cli.show import Refusal, clean, document, note
from gateway.cli.sse import Comment, NotEvents, events

READ_TIMEOUT_S = 120.0
ERROR_BYTES_MAX = 1 << 20
HELP = "/reset forgets the conversation, /exit or Ctrl-D ends, Ctrl-C stops an answer."


@dataclass(frozen=True, slots=True)
class Asking:
    """What stays the same over a conversation."""

    server: client.Server
    model: str
    max_tokens: int | None
    temperature: float | None
    seed: int | None

    def body(self, messages: list[dict[str, str]], *, stream: bool) -> bytes:
        given = {
            "model": self.model,
            "messages": messages,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "stream": stream or None,
        }
        return msgspec.json.encode({k: v for k, v in given.items() if v is not None})


def run(
    model: Annotated[str, typer.Argument(help="The model's name or alias.")] = "default",
    url: Annotated[
        str | None, typer.Option(help="The server's public address; in development it is known.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(envvar=ENV_TOKEN, help="A tenant's token or key [acme/alice in development]."),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="Ask this once and end.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, max=2)] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answer.")] = None,
    state_dir: StateDir = VAR,
    as_json: Json = False,
) -> None:
    """Chat with a model of a running server. With --prompt ask once; --json prints the whole answer."""
    asking = Asking(_server(url, token, state_dir), model, max_tokens, temperature, seed)
    start = [] if system is None else [{"role": "system", "content": system}]
    if as_json and prompt is None:
        raise Refusal("--json prints one answer. Give the question with --prompt.", exit_code=2)
    if prompt is not None:
        messages = [*start, {"role": "user", "content": prompt}]
        if as_json:
            document(whole(asking, messages))
        else:
            for text in streamed(asking, messages, _status):
                _write(text)
            _write("\n")
        return
    note(f"{model} at {asking.server.url}. {HELP}")
    converse(asking, start, _read_line)


def converse(
    asking: Asking, start: list[dict[str, str]], read_line: Callable[[], str | None]
) -> None:
    """Until /exit or the end of input.  An answer that failed is not kept, nor its question."""
    messages = list(start)
    while (line := read_line()) is not None:
        words = line.strip()
        if words in {"/exit", "/quit"}:
            return
        if words == "/reset":
            messages = list(start)
            note("Forgotten.")
        elif words in {"/help", "/?"}:
            note(HELP)
        elif words:
            asked = [*messages, {"role": "user", "content": line}]
            said: list[str] = []
            try:
                for text in streamed(asking, asked, _status):
                    said.append(text)
                    _write(text)
            except Refusal as refusal:
                note(f"\n{refusal.message}")
                continue
            except KeyboardInterrupt:
                note("\n(stopped)")
            _write("\n")
            messages = [*asked, {"role": "assistant", "content": "".join(said)}]


def whole(asking: Asking, messages: list[dict[str, str]]) -> Any:
    with asking.server.open(READ_TIMEOUT_S) as http:
        try:
            with _post(http, asking.body(messages, stream=False)) as answer:
                raw = b"".join(answer.iter_bytes())
        except httpx2.HTTPError as error:
            raise client.unreachable(asking.server.url, error, "--url") from None
    if not answer.is_success:
        raise api_refusal(answer.status_code, raw)
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        raise Refusal(f"{asking.server.url} is no model server. Correct --url.") from None


def streamed(
    asking: Asking, messages: list[dict[str, str]], status: Callable[[str], None]
) -> Iterator[str]:
    """Pieces of the answer's text.  Raises Refusal, also for a fault in mid-stream."""
    with asking.server.open(READ_TIMEOUT_S) as http:
        try:
            with _post(http, asking.body(messages, stream=True)) as answer:
                if not answer.is_success:
                    raise api_refusal(answer.status_code, error_body(answer))
                yield from _pieces(answer, status)
        except httpx2.HTTPError as error:
            raise client.unreachable(asking.server.url, error, "--url") from None


def _pieces(answer: httpx2.Response, status: Callable[[str], None]) -> Iterator[str]:
    finished = False
    try:
        for event in events(answer.iter_bytes()):
            if isinstance(event, Comment):
                status(event.text)
                continue
            if event.raw == b"[DONE]":
                break
            chunk = msgspec.json.decode(event.raw)
            if "error" in chunk:
                raise Refusal(clean(chunk["error"].get("message", "The answer failed.")))
            for choice in chunk.get("choices", []):
                finished |= choice.get("finish_reason") is not None
                if text := choice.get("delta", {}).get("content"):
                    yield text
    except (NotEvents, msgspec.DecodeError, AttributeError, TypeError):
        raise Refusal("The server's answer is no event stream. Correct --url.") from None
    if not finished:
        raise Refusal("The answer broke off. Ask again.")


def _post(http: httpx2.Client, body: bytes) -> Any:
    return http.stream(
        "POST",
        "/v1/chat/completions",
        content=body,
        headers={"content-type": "application/json"},
    )


def error_body(answer: httpx2.Response) -> bytes:
    raw = bytearray()
    for chunk in answer.iter_bytes():
        raw += chunk
        if len(raw) > ERROR_BYTES_MAX:
            break
    return bytes(raw)


def api_refusal(status: int, raw: bytes) -> Refusal:
    """The OpenAI error object's message, or what the status alone says."""
    try:
        message = msgspec.json.decode(raw)["error"]["message"]
        return Refusal(clean(message), status=status)
    except (msgspec.DecodeError, KeyError, TypeError, RecursionError):
        return client.refused(status, raw, None)


def _server(url: str | None, token: str | None, state_dir: Path) -> client.Server:
    client.require_given(token)
    if url and token:
        return client.Server(url, token)
    known = client.read_known(state_dir, "--url and --token")
    if not token and url and url.rstrip("/") != known.base_url.rstrip("/"):
        raise Refusal(
            f"The development tokens of {state_dir} are not for {clean(url)}. Give --token."
        )
    base_url = (url or known.base_url).rstrip("/").removesuffix("/v1")
    return client.Server(base_url, token or client.token_named(known, client.DEMO_USER, state_dir))


def waiting(comment: str) -> str | None:
    """`status queued 3 4000` in words: 3 are before it, and its turn comes in about 4 s."""
    words = comment.split()
    if words[:2] != ["status", "queued"] or len(words) < 3:
        return None
    about = f", about {-(-int(words[3]) // 1000)} s" if words[3:] and words[3].isdecimal() else ""
    return f"(waiting, place {clean(words[2])}{about})"


def _status(comment: str) -> None:
    """Silent on a pipe."""
    if sys.stderr.isatty() and (line := waiting(comment)) is not None:
        note(line)


def _write(text: str) -> None:
    """A model's text, without the control characters that would drive the terminal."""
    sys.stdout.write("".join(c if c.isprintable() or c in "\n\t" else "�" for c in text))
    sys.stdout.flush()


def _read_line() -> str | None:
    try:
        return input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return None
