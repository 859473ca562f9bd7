"""Who may ask the page: tokens, links of persons, and what each of them has for itself."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from inferplan.errors import UsageError
from inferplan.web.keys import Keys
from tests.cases import for_each
from tests.web.conftest import ROOT, SECRET, Reply, Web
from tests.web.test_contract import typed

ADA = "ada.61a34914d5c73e6d14cf406a75d438c2df1281aa3ef3897bb5064749c17ecab5"
BO = "bo.6182fb02ac40464c2abb2be453bc9aff4c4b52f85a5ba0aab775ea2aa1294785"
EVE = "eve.b423348730eaee30fdbf7bc43f893b2c3677f6174c488e2287122ff904268c5b"
"""By ``openssl kdf -keylen 32 -kdfopt digest:SHA256 -kdfopt pass:SECRET -kdfopt "salt:inferplan web --person" -kdfopt
iter:600000 PBKDF2`` and ``printf ada | openssl dgst -sha256 -mac HMAC -macopt hexkey:...``. Eve has no link there."""
SMALL = {"model": "llama-3.1-8b", "gpu": "h100-sxm"}
LONG = {**SMALL, "rate": 20, "requests": 2_000_000}


def asked(web: Web, token: str, method: str, path: str, body: object = None) -> Reply:
    """What somebody with this token is answered."""
    content = None if body is None else json.dumps(body).encode()
    return web.ask(method, path, content, Authorization=f"Bearer {token}")


def test_links_are_signed_as_openssl_signs() -> None:
    keys = Keys(token=SECRET, people=("ada", "bo"))
    assert keys.link("http://127.0.0.1:8765/", "ada") == f"http://127.0.0.1:8765/?token={ADA}"
    assert [keys.holder(token) for token in (ADA, BO, SECRET)] == ["ada", "bo", ""]
    assert keys.holder(EVE) is None
    assert Keys(token=SECRET, people=("eve",)).holder(EVE) == "eve"
    assert Keys(token=None).holder("") == Keys(token=None).holder("whatever") == ""


@for_each(
    "token",
    [
        "",
        ".",
        "ada",
        "ada.",
        ADA[:-1],
        ADA + "0",
        ADA.upper(),
        ADA.replace("ada", "bo"),
        f".{ADA[4:]}",
        SECRET[:-1],
        "é" * 20,
    ],
)
def test_what_is_no_token(token: str) -> None:
    assert Keys(token=SECRET, people=("ada", "bo")).holder(token) is None


def test_tokens_are_drawn_anew() -> None:
    one, other = Keys(), Keys()
    assert one.token is not None and one.token != other.token
    assert len(one.token) == 32  # 24 bytes of the system's randomness in base 64
    assert other.holder(one.token) is None


@for_each(
    "given",
    [
        ({"token": "short"}, "the token cannot be used"),
        ({"token": "with.a.dot.in.the.middle"}, "the token cannot be used"),
        ({"token": "with blanks in the middle"}, "the token cannot be used"),
        ({"people": ("a.b",)}, "--person 'a.b' is not a name"),
        ({"people": ("",)}, "--person '' is not a name"),
        ({"people": ("a" * 41,)}, f"--person '{'a' * 41}' is not a name"),
        ({"people": ("ada", "bo", "ada")}, "--person 'ada' stands there twice"),
        ({"token": None, "people": ("ada",)}, "--person and --no-token"),
    ],
)
def test_keys_that_cannot_be_used(given: tuple[dict[str, object], str]) -> None:
    with pytest.raises(UsageError) as error:
        Keys(**given[0])  # type: ignore[arg-type]
    assert error.value.what == given[1]


def test_without_a_token_nothing_is_said(web: Web) -> None:
    """Of the server's, that is: what the page is made of is public."""
    for method, path in (
        ("GET", "/api/catalog"),
        ("POST", "/api/view"),
        ("GET", "/api/openapi.json"),
        ("GET", "/none"),
    ):
        got = web.ask(method, path, b"{}" if method == "POST" else None, Authorization="")
        assert (got.status, got.headers["www-authenticate"]) == (401, "Bearer")
        assert got.error["what"] == "this server asks for its token"
    for scheme in ("Basic", "", "Bearer "):
        assert web.get("/api/catalog", Authorization=f"{scheme} x").status == 401
    assert web.get("/static/app.js", Authorization="").status == 200


def test_who_comes_without_a_token_is_asked_for_it(web: Web) -> None:
    got = web.get("/", Authorization="")
    page = got.body.decode()
    assert got.status == 401 and got.headers["content-type"].startswith("text/html")
    assert "this server asks for its token: open the address that inferplan web printed" in page
    assert 'name="token"' in page and "<script" not in page
    assert "form-action 'self'" in got.headers["content-security-policy"]


def test_a_link_leaves_a_cookie_and_goes_on_without_the_token(web: Web) -> None:
    token = web.headers["Authorization"].partition(" ")[2]
    got = web.get(f"/?token={token}&theme=dark", Authorization="")
    assert (got.status, got.headers["location"]) == (303, "/?theme=dark")
    cookie, *rest = got.headers["set-cookie"].split("; ")
    assert cookie == f"inferplan-{web.port}={token}"
    assert {"Path=/", "HttpOnly", "SameSite=Lax"} == set(rest)
    assert web.get("/api/openapi.json", Authorization="", Cookie=cookie).status == 200
    for other in ("theme=x", 'theme={"dark": 1}', "naked", 'left="open'):  # of a page on another port (RFC 6265, 8.5)
        assert web.get("/", Authorization="", Cookie=f"{other}; {cookie}").status == 200
    assert web.get("/api/openapi.json", Authorization="", Cookie=cookie[:-1]).status == 401
    assert web.get(f"/api/openapi.json?token={token}", Authorization="").status == 401  # a link opens the page alone


def test_a_wrong_link_opens_nothing(web: Web) -> None:
    got = web.get("/?token=wrong", Authorization="")
    assert got.status == 401 and "set-cookie" not in got.headers
    assert web.get("/?token=", Authorization="").status == 401


@for_each("origin", ["https://127.0.0.1:{}", "ftp://127.0.0.1:{}", "127.0.0.1:{}", "http://localhost:{}"])
def test_another_scheme_is_another_site(web: Web, origin: str) -> None:
    own = f"127.0.0.1:{web.port}"
    got = web.post("/api/view", SMALL, Host=own, Origin=origin.format(web.port))
    assert got.status == 403
    assert web.post("/api/view", SMALL, Host=own, Origin=f"http://{own}").status == 200


def test_each_person_has_jobs_of_their_own(server: Callable[[str], Web]) -> None:
    """Two of each, three of all; another's job is as if there were none."""
    web = server("jobs=2, jobs_of_all=3")

    def start(token: str) -> Reply:
        return asked(web, token, "POST", "/api/jobs", {"kind": "simulate", "options": LONG})

    first = start(ADA).json["id"]
    assert start(ADA).status == 202
    third = start(ADA)
    assert third.status == 429 and third.error["what"] == "2 jobs are running already"
    assert start(BO).status == 202
    fourth = start(BO)
    assert fourth.status == 429 and fourth.error["what"] == "3 jobs of all people are running already"
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/events")):
        assert asked(web, BO, method, f"/api/jobs/{first}{path}").status == 404
    assert asked(web, BO, "GET", f"/api/report/{first}").error["what"].startswith("no job")
    assert asked(web, ADA, "GET", f"/api/jobs/{first}").json["state"] == "running"
    assert asked(web, ADA, "DELETE", f"/api/jobs/{first}").json["state"] == "cancelled"
    assert start(BO).status == 202
    assert start(EVE).status == 401


def test_one_person_does_not_fill_the_queue(server: Callable[[str], Web]) -> None:
    web = server("pricing=1, waiting=60, waiting_each=2")
    with ThreadPoolExecutor(13) as threads:
        many = [threads.submit(asked, web, ADA, "POST", "/api/view", SMALL) for _ in range(12)]
        other = threads.submit(asked, web, BO, "POST", "/api/view", SMALL)
    found = [one.result() for one in many]
    assert {one.status for one in found} == {200, 429}
    assert any(one.error["what"] == "2 requests of ada are waiting already" for one in found if one.status == 429)
    assert other.result().status == 200


def test_what_is_printed_opens_the_page(tmp_path: Path) -> None:
    """A link for each person, of a token from the environment; it stands in no list of processes."""
    command = [sys.executable, "-m", "inferplan", "web", "--no-browser", "--port", "0", "--person", "ada"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "INFERPLAN_WEB_TOKEN": SECRET}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        own, ada = process.stderr.readline(), process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        process.wait(20)
    assert own.startswith("listening on http://127.0.0.1:") and own.endswith(f"/?token={SECRET} (Ctrl-C ends it)\n")
    assert ada.startswith("for ada: http://127.0.0.1:") and ada.endswith(f"/?token={ADA}\n")


def test_a_link_for_other_machines_is_not_that_of_any_address(tmp_path: Path) -> None:
    """0.0.0.0 is this host on this network (RFC 6890): nobody else reaches it by that."""
    command = [sys.executable, "-m", "inferplan", "web", "--no-browser", "--port", "0", "--host", "0.0.0.0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        first, second, third = (process.stderr.readline() for _ in range(3))
        process.send_signal(signal.SIGTERM)
        process.wait(20)
    assert first.startswith("listening on http://0.0.0.0:")
    own = re.fullmatch(r"from other machines: http://([\d.]+):\d+/\?token=\S+\n", second)
    if own is None:  # without a route to others
        assert second == "from other machines: its own address in the place of 0.0.0.0\n"
    else:
        with socket.socket() as door:  # only an address of this machine can be bound
            door.bind((own[1], 0))
        assert own[1] != "0.0.0.0"
    assert third.startswith("HTTP is not encrypted: ")


def test_a_proxy_stands_before_it(tmp_path: Path) -> None:
    """nginx passes its own name on, or not (``proxy_set_header Host``); the browser names the proxy's origin."""
    command = [sys.executable, "-m", "inferplan", "web", "--no-browser", "--port", "0", "--token", SECRET]
    command += ["--public-url", "https://plan.example.org/", "--person", "ada"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        own, ada = process.stderr.readline(), process.stderr.readline()
        port = int(own.partition("127.0.0.1:")[2].partition("/")[0])
        web = Web(process=process, port=port, folder=tmp_path)
        web.headers["Authorization"] = f"Bearer {SECRET}"
        front = {"Origin": "https://plan.example.org"}
        try:
            assert ada == f"for ada: https://plan.example.org/?token={ADA}\n"
            for host in ("plan.example.org", f"127.0.0.1:{port}"):
                assert web.post("/api/explain", {}, Host=host, **front).status == 400  # it is asked, and wrong
            for origin in (
                "https://plan.example.org.evil.example",
                "https://evil.example",
                "http://plan.example.org:1",
            ):
                assert web.post("/api/explain", {}, Host="plan.example.org", Origin=origin).status == 403
            assert web.post("/api/explain", {}, Host="other.example.org").status == 403
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)


def test_what_the_page_asks_for_by_itself_takes_no_place(server: Callable[[str], Web]) -> None:
    web = server("jobs=1")
    loads = {"kind": "loads", "options": {**SMALL, "rate": 20, "requests": 100_000}}
    assert asked(web, ADA, "POST", "/api/jobs", loads).status == 202
    assert asked(web, ADA, "POST", "/api/jobs", {"kind": "simulate", "options": LONG}).status == 202
    assert asked(web, ADA, "POST", "/api/jobs", loads).status == 429
    assert asked(web, ADA, "POST", "/api/jobs", {"kind": "simulate", "options": LONG}).status == 429


@for_each(
    "url",
    ["plan.example.org", "https://plan.example.org", "https://a b/", "https://plan.example.org/path/", "ftp://x/"],
)
def test_an_address_that_is_no_url(tmp_path: Path, url: str) -> None:
    ran = typed("web", "--no-browser", "--port", "0", "--public-url", url, cwd=tmp_path)
    assert ran.returncode == 2
    assert ran.stderr == f"error: --public-url {url!r} cannot be used\nhint: --public-url https://plan.example.org/\n"


def test_a_token_and_none(tmp_path: Path) -> None:
    ran = typed("web", "--no-browser", "--token", SECRET, "--no-token", cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (2, "error: --token and --no-token\nhint: leave one out\n")
