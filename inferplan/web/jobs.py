"""Fits, simulations, plans and days: each in a process that is ended when it is cancelled or takes too long."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping
from typing import Any

from inferplan.errors import UsageError
from inferplan.web.tasks import error_record
from inferplan.web.worker import WorkerProcess, WorkerSetting

KINDS = {"fit": "fit", "simulate": "simulate", "loads": "simulate", "plan": "plan", "day": "day"}
"""Kind of a job to the command that has its options."""
BESIDE = "loads"
"""What the page asks for by itself, one at a time: it takes nobody's place."""


class Job:
    """One job, and the process that runs it."""

    def __init__(self, kind: str, options: Mapping[str, Any], setting: WorkerSetting, person: str = "") -> None:
        self.id, self.kind, self.options, self.person = secrets.token_hex(8), kind, dict(options), person
        self.state, self.progress = "running", {"done": 0, "total": None, "text": ""}
        self.found: dict[str, Any] = {}
        self._limit, self._started = setting.limits.job_seconds, time.monotonic()
        self._lock = threading.Lock()
        self.process = WorkerProcess(setting)
        self.process.pipe.send(("job", {"kind": kind, "options": self.options}))
        threading.Thread(target=self._follow, daemon=True).start()

    def record(self) -> dict[str, Any]:
        """Its state as JSON; the page of a plan is asked for by itself."""
        own = {"id": self.id, "kind": self.kind, "options": self.options}
        own |= {"state": self.state, "progress": self.progress}
        return {**own, "report": bool(self.found.get("page")), **{k: v for k, v in self.found.items() if k != "page"}}

    def cancel(self) -> None:
        """End its process, if it has not ended."""
        self._finish("cancelled", {})

    def _follow(self) -> None:
        """Read what the process says until it ends, or its time has."""
        try:
            self.process.await_start()
        except (EOFError, OSError) as error:  # a TimeoutError is one of the latter
            late = UsageError("the process of this job did not start", because=type(error).__name__)
            return self._finish("failed", error_record(late))
        while self.state == "running":
            left = self._started + self._limit - time.monotonic()
            try:
                if not self.process.pipe.poll(max(left, 0.0)):
                    late = UsageError(
                        f"not done within {self._limit:g} s", hint=f"inferplan {KINDS[self.kind]} has no limit"
                    )
                    return self._finish("failed", error_record(late))
                what, said = self.process.pipe.recv()
            except (EOFError, OSError):
                gone = UsageError(
                    "this needs more than the server gives to a job", hint=f"inferplan {KINDS[self.kind]}"
                )
                return self._finish("failed", error_record(gone))
            if what == "progress":
                self.progress = said
            else:
                return self._finish("done" if "result" in said else "failed", said)
        return None

    def _finish(self, state: str, found: dict[str, Any]) -> None:
        with self._lock:
            if self.state != "running":
                return
            self.found = found
            self.state = state
            self.process.end()


class Jobs:
    """The jobs that run, and the last ones that did."""

    def __init__(self, setting: WorkerSetting) -> None:
        self.setting = setting
        self._all: dict[str, Job] = {}
        self._lock = threading.Lock()

    def start(self, kind: str, options: Mapping[str, Any], person: str = "") -> Job | str:
        """A new job of a person; what there is too much of where as many run as may."""
        limits = self.setting.limits
        with self._lock:  # requests that come together are counted one after another
            running = [job for job in self._all.values() if job.state == "running"]
            beside = kind == BESIDE
            mine = sum(job.person == person and (job.kind == BESIDE) == beside for job in running)
            if mine >= (1 if beside else limits.jobs):
                return f"{mine} jobs are running already"
            if len(running) >= limits.jobs_of_all:
                return f"{len(running)} jobs of all people are running already"
            ended = [name for name, job in self._all.items() if job.state != "running" and job.person == person]
            for name in ended[: max(len(ended) - limits.kept + 1, 0)]:
                del self._all[name]
            job = Job(kind, options, self.setting, person)
            self._all[job.id] = job
            return job

    def find(self, name: str, person: str = "") -> Job | None:
        """The job of that name; another person's is as if there were none."""
        job = self._all.get(name)
        return job if job is not None and job.person == person else None

    def stop(self) -> None:
        """End every process."""
        for job in list(self._all.values()):
            job.cancel()
