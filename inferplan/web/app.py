"""The routes: the page, and the JSON API behind it (docs/web.md)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from inferplan import __version__
from inferplan.errors import InferplanError, UsageError
from inferplan.web.body import parse_body
from inferplan.web.folder import Folder
from inferplan.web.guard import Guard
from inferplan.web.jobs import KINDS, Job, Jobs
from inferplan.web.keys import Keys
from inferplan.web.pricing import Answer, PricingProcesses, too_busy
from inferplan.web.schemas import describe
from inferplan.web.tasks import error_record, error_reply
from inferplan.web.worker import WorkerSetting

STATIC = Path(__file__).with_name("static")
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; sandbox"
"""Content-Security-Policy of a plan's page, whose styles stand in its text."""
_BETWEEN_EVENTS = 0.2


class WebServer:
    """What the routes share: processes, jobs, the folder, and the catalogue once it was asked for."""

    def __init__(self, setting: WorkerSetting) -> None:
        self.setting, self.folder = setting, Folder(root=setting.folder, limits=setting.limits)
        self.pricing, self.jobs = PricingProcesses(setting), Jobs(setting)
        self._catalogue: asyncio.Task[Answer] | None = None

    @asynccontextmanager
    async def life(self, _: FastAPI) -> AsyncIterator[None]:
        """Start the processes with the server, and end all of them with it."""
        await self.pricing.start()
        self._fetch_catalogue()  # the page asks for it first
        try:
            yield
        finally:
            self._fetch_catalogue().cancel()
            self.jobs.stop()
            self.pricing.stop()

    def _fetch_catalogue(self) -> asyncio.Task[Answer]:
        if self._catalogue is None:
            asked = self.pricing.ask("catalog", {}, self.setting.limits.start_seconds)
            self._catalogue = asyncio.create_task(asked)
        return self._catalogue

    async def catalogue(self) -> Answer:
        """What is on file, which is read once."""
        found = await asyncio.shield(self._fetch_catalogue())
        if found[0] != 200:
            self._catalogue = None
        return found

    async def body(self, request: Request) -> dict[str, Any]:
        """The body of a request. Raises ``InferplanError`` for what is no JSON, or names files outside the folder."""
        body = parse_body(await request.body(), self.setting.limits)
        self.folder.require_inside(body)
        return body

    async def answer(self, question: str, request: Request) -> Response:
        """The answer of a process to a question with a body."""
        return reply(await self.pricing.ask(question, await self.body(request), person=request.state.person))


def reply(answer: Answer) -> Response:
    """An answer as HTTP has it."""
    status, kind, content = answer
    body = content if isinstance(content, bytes) else json.dumps(content).encode("utf-8")
    return Response(body, status, media_type=kind)


def error_response(status: int, error: InferplanError) -> JSONResponse:
    """An error with a status of its own."""
    return JSONResponse(error_record(error), status)


def make_app(setting: WorkerSetting, keys: Keys, own: Iterable[str] = (), front: str = "") -> FastAPI:
    """The application. keys: who may ask; own: names of this server beside ``localhost`` and its addresses; front: the
    origin of a proxy before it."""
    server = WebServer(setting)
    app = FastAPI(
        title="inferplan", version=__version__, openapi_url=None, docs_url=None, redoc_url=None, lifespan=server.life
    )
    app.state.server = server
    _answers(app, server)
    _jobs(app, server)
    _page(app, server)
    _errors(app)
    app.add_middleware(Guard, limits=setting.limits, own=own, keys=keys, front=front)
    return app


def _answers(app: FastAPI, server: WebServer) -> None:
    """What is answered at once."""

    @app.get("/api/catalog")
    async def catalog() -> Response:
        return reply(await server.catalogue())

    def answered(name: str) -> None:
        @app.post(f"/api/{name}")
        async def answer(request: Request) -> Response:
            return await server.answer(name, request)

    for name in ("view", "compare", "explain", "export"):
        answered(name)


def _jobs(app: FastAPI, server: WebServer) -> None:
    """What takes longer."""

    @app.post("/api/jobs")
    async def start(request: Request) -> Response:
        body = await server.body(request)
        kind, options = body.get("kind"), body.get("options", {})
        if kind not in KINDS or not isinstance(options, dict) or set(body) - {"kind", "options"}:
            raise UsageError("a job has a kind and options", hint=f"kind: {' or '.join(KINDS)}; options: by name")
        job = await asyncio.to_thread(server.jobs.start, kind, options, request.state.person)
        if isinstance(job, str):
            return reply(too_busy(job, 429))
        return JSONResponse({"id": job.id}, 202)

    @app.get("/api/jobs/{name}")
    async def state(name: str, request: Request) -> Response:
        return JSONResponse(_find(server, name, request).record())

    @app.delete("/api/jobs/{name}")
    async def cancel(name: str, request: Request) -> Response:
        job = _find(server, name, request)
        await asyncio.to_thread(job.cancel)
        return JSONResponse(job.record())

    @app.get("/api/jobs/{name}/events")
    async def events(name: str, request: Request) -> Response:
        return StreamingResponse(_events(_find(server, name, request)), media_type="text/event-stream")

    @app.get("/api/report/{name}")
    async def report(name: str, request: Request) -> Response:
        job = _find(server, name, request)
        page = job.found.get("page")
        if page is None:
            because = job.found.get("page_why") or f"{job.kind} is {job.state}"
            raise HTTPException(404, f"job {job.id} has no page: {because}")
        return HTMLResponse(page, headers={"Content-Security-Policy": REPORT_POLICY})


def _find(server: WebServer, name: str, request: Request) -> Job:
    """The job of that name, if it is of the person who asks."""
    job = server.jobs.find(name, request.state.person)
    if job is None:
        raise HTTPException(404, f"no job {name[:40]!r}")
    return job


async def _events(job: Job) -> AsyncIterator[str]:
    """The state of a job whenever it changes, until its end."""
    said = ""
    while True:
        record = job.record()
        text = json.dumps(record)
        if text != said:
            said = text
            yield f"event: {record['state']}\ndata: {text}\n\n"
        if record["state"] != "running":
            return
        await asyncio.sleep(_BETWEEN_EVENTS)


def _page(app: FastAPI, server: WebServer) -> None:
    """The page itself, and the description of the API."""

    @app.get("/api/openapi.json")
    async def openapi() -> Response:
        return JSONResponse(describe(server.setting.commands, server.setting.limits))

    @app.get("/")
    async def index() -> Response:
        page = STATIC / "index.html"
        if not page.is_file():
            raise HTTPException(404, "this installation has no page; its API is described at /api/openapi.json")
        return HTMLResponse(page.read_text(encoding="utf-8"), headers={"Cache-Control": "no-cache"})

    app.mount("/static", StaticFiles(directory=STATIC, check_dir=False), name="static")


def _errors(app: FastAPI) -> None:
    """Every error has one form."""

    @app.exception_handler(InferplanError)
    async def said(_: Request, error: InferplanError) -> Response:
        answer = error_reply(error)
        return JSONResponse(answer.content, answer.status)

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> Response:
        response = error_response(error.status_code, UsageError(str(error.detail)))
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(Exception)
    async def bug(_: Request, error: Exception) -> Response:
        found = InferplanError(f"a bug in inferplan: {type(error).__name__}: {error}")
        found.exit_code = 1
        return error_response(500, found)
