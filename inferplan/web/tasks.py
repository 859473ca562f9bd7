"""What the server is asked, answered in one of its processes: a status and a record of JSON for each request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from inferplan.answers.fit import Fits
from inferplan.errors import InferplanError, UsageError
from inferplan.estimate.batch import Estimate
from inferplan.table import SCHEMA_VERSION, Report, plain, render
from inferplan.web.behind import day_behind, fit_views, plan_behind, simulation_behind
from inferplan.web.catalogue import catalogue_record
from inferplan.web.commands import Answered, Commands, Progress
from inferplan.web.limits import Limits
from inferplan.web.loads import run_loads
from inferplan.web.python_text import python_text
from inferplan.web.view import cost_view, curves, view_record

STATUS = {1: 500, 2: 400, 3: 409, 4: 404, 5: 503, 6: 409}
"""Exit code of the command line to status of HTTP."""
PRICES = ("price", "prices", "term", "currency")
"""Options of a view that ``inferplan estimate`` does not have and ``inferplan cost`` does."""
OWN = (*PRICES, "points")
EXPORTS = ("csv", "json", "markdown", "python", "command")


@dataclass(frozen=True, kw_only=True)
class ProcessReply:
    """What a process of the server answers: ``content`` is JSON's, or text where ``kind`` says so."""

    content: Any
    status: int = 200
    kind: str = "application/json"


def error_record(error: InferplanError) -> dict[str, Any]:
    """An error as JSON has it."""
    return {"error": error.record()}


def error_reply(error: InferplanError) -> ProcessReply:
    """An error as an answer."""
    return ProcessReply(content=error_record(error), status=STATUS.get(error.exit_code, 400))


@dataclass(frozen=True, kw_only=True)
class Desk:
    """Answers one question at a time by the commands of the command line."""

    commands: Commands
    limits: Limits
    progress: Progress | None = None
    """Told how far a job or a tool is."""

    def answer(self, question: str, body: Mapping[str, Any]) -> ProcessReply:
        """The answer to one of :data:`QUESTIONS`; never raises."""
        try:
            return QUESTIONS[question](self, body)
        except InferplanError as error:
            return error_reply(error)
        except RecursionError:
            return error_reply(UsageError("a request nested too deep"))
        except MemoryError:
            return error_reply(UsageError("this needs more memory than the server gives to a request"))

    def catalogue(self, _: Mapping[str, Any]) -> ProcessReply:
        """What can be chosen."""
        return ProcessReply(content=plain(catalogue_record(self.commands.prices({}))))

    def view(self, body: Mapping[str, Any]) -> ProcessReply:
        """One deployment under one static batch, as the page draws it."""
        return ProcessReply(content=plain(self._view(body)))

    def compare(self, body: Mapping[str, Any]) -> ProcessReply:
        """Several of them, without their operators; one that cannot be has its error instead."""
        _require_keys(body, {"views"})
        views = body.get("views")
        if not isinstance(views, list) or not 0 < len(views) <= self.limits.views:
            raise UsageError(f"views: a list of 1 to {self.limits.views} views")
        found = []
        for one in views:
            try:
                view = self._view(_mapping("views", one))
                view["roofline"].pop("operators")
                found.append(view)
            except InferplanError as error:
                found.append(error_record(error))
        return ProcessReply(content=plain(found))

    def _view(self, body: Mapping[str, Any]) -> dict[str, Any]:
        points = self._points(body)
        answered, estimate = self._estimate(body)
        report, request = answered.report, answered.request
        assert report is not None and request is not None
        priced = cost_view(estimate, self.commands.prices({key: body[key] for key in PRICES if key in body}))
        return {
            "command": answered.command,
            "python": None if hasattr(estimate, "techniques") else python_text(request, estimate.load),
            "notes": [*answered.notes, *report.notes],
            **view_record(estimate, _record(report), points),
            "cost": priced.cost,
            "cost_why": priced.why or None,
        }

    def _points(self, body: Mapping[str, Any]) -> int:
        points = body.get("points", 500)
        if not isinstance(points, int) or isinstance(points, bool) or not 1 <= points <= self.limits.points:
            raise UsageError(f"points: a whole number from 1 to {self.limits.points:,}")
        return points

    def _estimate(self, body: Mapping[str, Any]) -> tuple[Answered, Estimate]:
        options = {key: value for key, value in body.items() if key not in OWN}
        answered = self.commands.run("estimate", options)
        report = _report(answered)
        assert isinstance(report.of, Estimate)
        return answered, report.of

    def explain(self, body: Mapping[str, Any]) -> ProcessReply:
        """Where one number of a view comes from."""
        _require_keys(body, {"view", "term"})
        view = _mapping("view", body.get("view"))
        options = {key: value for key, value in view.items() if key not in OWN}
        answered = self.commands.run("explain", {"number": body.get("term"), **options})
        report = _report(answered)
        lines = render(report, "table").rstrip("\n").split("\n")
        return ProcessReply(content={"command": answered.command, "lines": lines, **_record(report)})

    def export(self, body: Mapping[str, Any]) -> ProcessReply:
        """A view as a file: the curves as CSV, the estimate as the command line prints it, or what asks the same."""
        _require_keys(body, {"view", "format"})
        style, view = body.get("format"), _mapping("view", body.get("view"))
        if style not in EXPORTS:
            hint = f"one of {', '.join(EXPORTS)}; the page makes PNG and SVG of its charts itself"
            raise UsageError(f"format: {str(style)[:40]!r} is not made here", hint=hint)
        points = self._points(view)
        answered, estimate = self._estimate(view)
        report = _report(answered)
        if style == "csv":
            return ProcessReply(content=_csv(curves(estimate, points)), kind="text/csv")
        if style == "python":
            assert answered.request is not None
            text = None if hasattr(estimate, "techniques") else python_text(answered.request, estimate.load)
            if text is None:
                raise UsageError("inferplan.estimate_batch does not take this load", hint="format: command")
            return ProcessReply(content=text, kind="text/x-python")
        text = f"{answered.command}\n" if style == "command" else render(report, style)
        kind = {"json": "application/json", "markdown": "text/markdown"}.get(style, "text/plain")
        return ProcessReply(content=text, kind=kind)

    def tool(self, body: Mapping[str, Any]) -> ProcessReply:
        """A command by its ``name`` with ``options``: ``text`` and ``record`` of its report, ``error``, or both."""
        answered = self.commands.run(body["name"], body["options"], self.progress)
        found: dict[str, Any] = {"command": answered.command}
        if answered.report is not None:
            found |= {"text": render(answered.report, "table"), "record": _record(answered.report)}
            found["notes"] = [*answered.notes]
        elif answered.error is None:  # what is to be started is printed as it is
            found |= {"text": answered.printed, "record": {"text": answered.printed}, "notes": [*answered.notes]}
        if answered.error is not None:
            found |= error_record(answered.error)
        return ProcessReply(content=found)

    def job(self, kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """A job: ``result``, ``error`` or both, and of a plan the ``page`` to send on."""
        if kind == "loads":
            try:
                return {"result": {"loads": plain(run_loads(self.commands, options, self.progress))}}
            except InferplanError as error:
                return error_record(error)
        answered = self.commands.run(kind, options, self.progress)
        found: dict[str, Any] = {"command": answered.command}
        if answered.report is not None:
            found["result"] = _record(answered.report)
            found["opening"] = [*answered.report.opening]
            found["notes"] = [*answered.notes, *answered.report.notes]
            found["page"], found["page_why"] = _page(answered)
            behind = _behind(kind, options, answered.report.of, self.commands)
            if behind is not None:
                found["behind"] = plain(behind)
        if answered.error is not None:
            found |= error_record(answered.error)
        return found


QUESTIONS: dict[str, Callable[[Desk, Mapping[str, Any]], ProcessReply]] = {
    "catalog": Desk.catalogue,
    "view": Desk.view,
    "compare": Desk.compare,
    "explain": Desk.explain,
    "export": Desk.export,
    "tool": Desk.tool,
}
"""Question to what answers it."""


def _behind(kind: str, options: Mapping[str, Any], found: Any, commands: Commands) -> dict[str, Any] | None:
    """What the pictures of a job show beyond its JSON; ``None`` of replicas that come and go in a simulation, and of
    the models that fit, which have none."""
    if isinstance(found, Fits):
        return {"views": fit_views(str(options["model"]), found)}
    if found is None:
        return None
    of: dict[str, Callable[[Any], dict[str, Any]]] = {
        "simulate": simulation_behind,
        "day": day_behind,
        "plan": lambda plan: plan_behind(plan, commands),
    }
    return of[kind](found) if kind in of else None


def _page(answered: Answered) -> tuple[str | None, str | None]:
    """The page of a plan, or why there is none."""
    from inferplan.planning.plan import Plan

    found = answered.report.of if answered.report is not None else None
    if not isinstance(found, Plan):
        return None, None
    try:
        from inferplan.reports.plan_page import html_document

        return html_document(found, answered.command), None
    except InferplanError as error:
        return None, error.render()


def _report(answered: Answered) -> Report:
    if answered.error is not None:
        raise answered.error
    assert answered.report is not None
    return answered.report


def _record(report: Report) -> dict[str, Any]:
    """What ``--format json`` prints."""
    found: dict[str, Any] = plain({"schema_version": SCHEMA_VERSION, **report.record})
    return found


def _csv(found: dict[str, Any]) -> str:
    rows = {name: values for name, values in found.items() if isinstance(values, list)}
    columns = zip(*(plain(values) for values in rows.values()), strict=True)
    report = Report(record={}, rows=[dict(zip(rows, row, strict=True)) for row in columns])
    return render(report, "csv")


def _require_keys(body: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(set(body) - known)
    if unknown:
        raise UsageError(f"unknown key {unknown[0][:40]!r}", hint=f"known: {', '.join(sorted(known))}")


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{name}: options by name are missing", hint='{"model": "llama-3.1-8b", "gpu": "h100-sxm"}')
    return value
