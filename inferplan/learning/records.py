"""Files of a server's records, whoever wrote them: each is known by what it holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from inferplan.errors import InputFileError
from inferplan.estimate.deployment import Deployment
from inferplan.files import read_text
from inferplan.learning import benchmarks, iterations, llama_log, logs, prometheus
from inferplan.learning.observed import Recorded, with_context
from inferplan.measuring.range_export import is_export, read_exports

KINDS = (
    "iteration records (JSON lines), logs of SGLang, vLLM, TensorRT-LLM and llama.cpp, scrapes of /metrics or what a "
    f"Prometheus server kept of them, {benchmarks.KIND}"
)


def read_records(
    paths: Sequence[str],
    deployment: Deployment,
    context: float | None = None,
    scraped: Sequence[tuple[str, str]] = (),
) -> list[Recorded]:
    """What files say of steps; scrapes are one record, those that a Prometheus server kept too.

    scraped: addresses and what was read there just now, as a file would have it. deployment: of which a benchmark's
    runs are taken. context: tokens behind a decode where a record does not say. Raises ``InputFileError`` for a file
    that is of no known kind, that is broken, that is of another engine than the deployment's, or that says nothing of
    a step.
    """
    texts = [(path, read_text(Path(path), encoding="utf-8-sig").lstrip()) for path in paths]
    texts += scraped
    exports = [(path, text) for path, text in texts if is_export(text)]
    scrapes = [(path, text) for path, text in texts if (path, text) not in exports and prometheus.matches(text)]
    found = []
    if scrapes or exports:
        record = prometheus.read_all(scrapes, read_exports(exports) if exports else ())
        found.append((", ".join(path for path, _ in (*scrapes, *exports)), record))
    for path, text in texts:
        if (path, text) in scrapes or (path, text) in exports:
            continue
        reader = next((one for one in (iterations, logs, llama_log) if one.matches(text)), None)
        if reader is not None:
            found.append((path, reader.read(text, path)))
        elif (path, text) in scraped:
            raise InputFileError(
                f"{path} says nothing of a server's steps",
                because="its metrics belong to no engine that can be read: vLLM, SGLang, TensorRT-LLM, llama.cpp, TGI",
                hint="the address of the server itself, or /api/v1/query of a Prometheus server that scrapes it",
            )
        else:
            found.append((path, benchmarks.require_read(path, deployment, KINDS)))
    for path, one in found:
        _require_engine(one, path, deployment)
        if not one.observed:
            raise InputFileError(f"{one.kind} in {path} time no step", because=one.reasons or "it is empty")
    return [with_context(one, context) for _, one in found]


def _require_engine(one: Recorded, path: str, deployment: Deployment) -> None:
    own = deployment.engine.name
    if one.engine and one.engine != own:
        raise InputFileError(
            f"{path} is a record of another engine than {own}: {one.kind}",
            because="one file holds the constants of one engine",
            hint=f"--engine {one.engine}",
        )
