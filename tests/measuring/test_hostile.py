"""Servers that are broken, or mean harm: one error or a suspect row, and no crash."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from inferplan.errors import UsageError
from inferplan.measuring.address import Key, address_of
from inferplan.measuring.prompts import PromptSizing
from tests.cases import for_each
from tests.measuring.wire import Request, answer, event, read_request, served

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
SMALL = ["--lengths", "64", "--concurrency", "1", "--prompt", "128", "--output", "4", "--warmup", "0",
         "--single-requests", "2", "--timeout", "2", "--max-minutes", "0.05"]  # fmt: skip
PACKED = b"200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip"
LONG_KEY = "sk-0123456789abcdef"


def words_of(request: Request) -> int:
    return len(request.body["prompt"].split())


def honest(request: Request) -> dict[str, Any]:
    return {"prompt_tokens": 3 + 2 * words_of(request), "completion_tokens": request.body["max_tokens"]}


@dataclass
class Hostile:
    """usage: of each reply. raw: bytes that stand in place of a reply. pages: by path, JSON, text or raw bytes."""

    usage: Callable[[Request], Any] = honest
    raw: bytes = b""
    endless: bool = False
    model: str = "tiny"
    pages: dict[str, Any] = field(default_factory=dict)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await self.one(await read_request(reader), writer):
                await writer.drain()
        writer.close()

    async def one(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        page = self.pages.get(request.path)
        if isinstance(page, bytes):
            writer.write(page)
            return False
        if page is not None:
            return answer(writer, 200, page)
        if request.path == "/v1/models":
            return answer(writer, 200, {"data": [{"id": self.model, "owned_by": "vllm"}]})
        if request.path != "/v1/completions":
            return answer(writer, 404, {})
        if self.raw:
            writer.write(self.raw)
            return False
        pieces = 10**6 if self.endless else request.body["max_tokens"]
        writer.write(HEAD)
        for made in range(pieces):
            text = event({"choices": [{"text": "w ", "finish_reason": "length" if made + 1 == pieces else None}]})
            writer.write(b"%x\r\n%b\r\n" % (len(text), text))
            await writer.drain()
            await asyncio.sleep(0.001)
        text = event({"choices": [], "usage": self.usage(request)}) + b"data: [DONE]\n\n"
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(text), text))
        return True


class Silent(Hostile):
    """Takes requests and never answers."""

    async def one(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(20)
        return False


def page(body: bytes, head: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (head, len(body), body)


def events(body: bytes) -> bytes:
    return HEAD + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


@for_each(
    ("server", "code", "words"),
    [
        (Hostile(raw=events(b"data: " + b"[" * 200_000 + b"\n\n")), 5, "an event that is not JSON"),
        (Hostile(pages={"/v1/models": "[" * 200_000}), 2, "has no list of models"),
        (Hostile(raw=page(b"no", b"500 x\r\nContent-Type: text/plain; charset=hex")), 5, "HTTP 500: no"),
        (Hostile(raw=page(b"<html>", b"200 OK\r\nContent-Type: text/html")), 5, "a page (text/html) came"),
        (Hostile(raw=page(gzip.compress(b"data: [DONE]"), PACKED)), 5, "the reply is compressed (gzip)"),
        (Hostile(pages={"/v1/models": page(b" " * (1 << 24) + b" ")}), 5, "more than 16777216 bytes"),
        (Hostile(endless=True), 5, "more than 80 pieces"),
        (Hostile(raw=page(b"{}", b"429 x\r\nRetry-After: 9999")), 5, "HTTP 429"),
        (Hostile(raw=HEAD + b"zz\r\nhello\r\n"), 5, "chunk"),
        (Hostile(usage=lambda _: {"prompt_tokens": 10**400}), 5, "does not say how many tokens a prompt has"),
        (Hostile(usage=lambda _: {"prompt_tokens": 7}), 5, "does not count the tokens of prompts"),
        (Hostile(usage=lambda r: {"prompt_tokens": 10**6 - words_of(r)}), 5, "does not count the tokens of prompts"),
    ],
    ids=["deep event", "deep page", "charset", "html", "packed", "long page", "endless", "429", "chunk", "huge",
         "same", "less"],
)  # fmt: skip
def test_one_error_says_what_the_server_did(server: Hostile, code: int, words: str, call: Callable[..., Any]) -> None:
    with served(server):
        found, _, said = call(server.url, *SMALL)
    assert found == code and words in said, said


def test_a_server_that_is_silent_until_the_end_is_no_success(call: Callable[..., Any]) -> None:
    with served(Silent()) as server:
        code, _, said = call(server.url, *SMALL[:-3], "30", "--max-minutes", "0.02")
    assert code == 5 and "--max-minutes 0.02 was over, and no load had a reply" in said, said


@for_each(
    ("usage", "suspect"),
    [
        (lambda r: {**honest(r), "completion_tokens": 10**6}, "a reply has 1000000 tokens by the server's count, 4"),
        (lambda r: {**honest(r), "completion_tokens": 1}, "1 tokens by the server's count came in 4 pieces"),
    ],
)  # fmt: skip
def test_counts_that_cannot_be_right_make_a_row_suspect(
    usage: Callable[[Request], Any], suspect: str, call: Callable[..., Any]
) -> None:
    with served(Hostile(usage=usage)) as server:
        code, _, said = call(server.url, *SMALL, "--out", "own.csv", "--force")
    rows = list(csv.DictReader(Path("own.csv").read_text().splitlines()))
    assert code == 0 and len(rows) == 2, said
    assert all(row["suspect"].startswith(suspect) for row in rows), rows


def test_prompts_stay_as_long_as_asked_whatever_is_counted_later() -> None:
    sizing = PromptSizing()
    for words, tokens in ((48, 99), (384, 771), (126, 1), (9999, 1)):
        sizing.learn(words, tokens)
    assert sizing.words(256) <= 1024, "four words a token at the most"


def test_names_hold_nothing_that_a_terminal_obeys(call: Callable[..., Any]) -> None:
    evil = "evil\x1b[31m\n\r\x07\x9b2J\u202ename"
    server = Hostile(model=evil, pages={"/version": {"version": "0.20\x1b]0;title\x07\n1"}})
    with served(server):
        code, out, said = call(server.url, *SMALL, "--format", "json", "--out", "own.csv")
    assert code == 0, said
    assert json.loads(out)["server"]["model"] == "evil[31m 2Jname"
    assert json.loads(out)["server"]["version"] == "0.20]0;title 1"
    cells = [row["served_model"] for row in csv.DictReader(Path("own.csv").read_text().splitlines())]
    assert cells == ["evil[31m 2Jname"] * 2


def test_errors_hold_nothing_that_a_terminal_obeys(call: Callable[..., Any]) -> None:
    message = event({"error": {"message": "out of \x1b]0;title\x07memory\u202e"}})
    with served(Hostile(raw=events(message))) as server:
        _, _, said = call(server.url, *SMALL)
    assert "the server says: out of ]0;titlememory\n" in said


def test_a_key_that_a_server_puts_into_its_names_is_hidden(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", LONG_KEY)
    listed = b'{"data":[{"id":"\\u0073k-0123456789abcdef","root":"%b"}]}' % LONG_KEY.encode()
    with served(Hostile(pages={"/v1/models": page(listed)})) as server:
        code, out, said = call(server.url, *SMALL, "--format", "json", "--out", "own.csv")
    assert code == 0, said
    assert LONG_KEY not in out + said + Path("own.csv").read_text()
    assert json.loads(out)["server"]["model"] == "***"


def test_a_filler_in_place_of_a_key_spoils_no_name(call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "1")
    with served(Hostile(model="llama-3.1")) as server:
        code, out, said = call(server.url, *SMALL, "--format", "json")
    assert code == 0 and json.loads(out)["server"]["model"] == "llama-3.1", said
    assert Key(LONG_KEY).hidden(f"the key {LONG_KEY}") == "the key ***"


@for_each("gauge", ["NaN", "-Inf", "-3"])
def test_a_gauge_without_a_value_is_no_other_work(gauge: str, call: Callable[..., Any]) -> None:
    with served(Hostile(pages={"/metrics": f"vllm:num_requests_running {gauge}\n"})) as server:
        code, out, said = call(server.url, *SMALL, "--format", "json")
    assert code == 0 and json.loads(out)["requests_running_before"] is None, said


@for_each("url", ["user:secret@h:8000", "http://user:sec/ret@h:8000", "http://user:secret@h"])
def test_a_password_in_an_address_is_not_repeated(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        address_of(url)
    assert "sec" not in refused.value.render()


@for_each(
    ("name", "value"),
    [
        ("HTTP_PROXY", "gopher://proxy"),
        ("ALL_PROXY", "http://proxy:x"),
        ("SSL_CERT_FILE", "/nowhere/ca.pem"),
    ],
)
def test_an_environment_that_cannot_be_used_is_one_error(
    name: str, value: str, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    code, _, said = call("http://example.invalid:1", *SMALL)
    assert code == 2 and "a proxy or certificates that the environment names cannot be used" in said


def test_a_full_disk_costs_the_file_and_not_the_figures(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(Hostile()) as server:
        code, out, said = call(server.url, *SMALL, "--format", "json", "--out", "/dev/full", "--force")
    assert code == 4 and "cannot write /dev/full" in said
    assert len(json.loads(out)["loads"]) == 2


def test_bounds_that_leave_no_load_are_an_error(call: Callable[..., Any]) -> None:
    with served(Hostile()) as server:
        code, _, said = call(server.url, *SMALL, "--max-tokens", "1090")
    assert code == 2 and "every load is out of bounds" in said, said


@for_each(
    ("size", "because"),
    [
        ("0", "a group has one device or more"),
        ("-1", "--tp is -1, must be 0"),
        ("x", "--tp is 'x', not a number"),
        ("1.5", "--tp is 1.5, not a whole number"),
        ("\u0663", "not a number"),
    ],
)
def test_a_group_of_no_devices_is_refused_before_anything_is_sent(
    size: str, because: str, call: Callable[..., Any]
) -> None:
    code, _, said = call("http://127.0.0.1:1", *SMALL, "--model", "llama-3.1-8b", "--gpu", "h100-sxm", f"--tp={size}")
    assert code == 2 and because in said, said
