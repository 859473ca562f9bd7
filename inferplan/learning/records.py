"""Files of a server's records, whoever wrote them: each is known by what it holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from inferplan.errors import InputFileError
from inferplan.estimate.deployment import Deployment
from inferplan.files import read_text
from inferplan.learning import benchmarks, iterations, logs, prometheus
from inferplan.learning.observed import Recorded, with_context

KINDS = "iteration records (JSON lines), logs of SGLang, vLLM and TensorRT-LLM, scrapes of /metrics"


def read_records(paths: Sequence[str], deployment: Deployment, context: float | None = None) -> list[Recorded]:
    """What files say of steps; scrapes of one server are one record, in the order in which its counters rise.

    deployment: of which a benchmark's runs are taken. context: tokens behind a decode where a record does not say.
    Raises ``InputFileError`` for a file that is of no known kind, that is broken, or that says nothing of a step.
    """
    texts = [(path, read_text(Path(path), encoding="utf-8-sig").lstrip()) for path in paths]
    scrapes = [(path, text) for path, text in texts if prometheus.matches(text)]
    found = [prometheus.read_all(scrapes)] if scrapes else []
    for path, text in texts:
        if prometheus.matches(text):
            continue
        reader = next((one for one in (iterations, logs) if one.matches(text)), None)
        found.append(reader.read(text, path) if reader else benchmarks.require_read(path, deployment, KINDS))
    for one in found:
        if not one.observed:
            reasons = ", ".join(f"{count} {why}" for why, count in one.passed_over.items())
            raise InputFileError(f"{one.kind} in {', '.join(paths)} time no step", because=reasons or "it is empty")
    return [with_context(one, context) for one in found]
