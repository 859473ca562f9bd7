"""What a Prometheus server kept of ``/metrics``: the JSON of its queries, as scrapes of each server that it scraped.

The forms are those of prometheus.io/docs/prometheus/latest/querying/api: the answer of ``/api/v1/query_range`` and of
``/api/v1/query`` for a range (``resultType`` matrix, ``values`` of each series) or for a moment (vector, ``value``),
its ``data`` alone, or the list of series that ``promtool query range -o json`` prints. A value is ``[seconds since
1970, "number"]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from inferplan.errors import InputFileError
from inferplan.files import parse_json
from inferplan.measuring.exposition import Sample

_HEAD = 10_000
"""Characters in which an export shows what it is."""
_EXPORT = re.compile(r'"metric"\s*:\s*\{|"resultType"\s*:|"errorType"\s*:')
ENGINES = ("vllm:", "sglang:", "llamacpp:", "tgi_", "trtllm_", "atom:")
"""How the metrics of engines begin; other series of an export are passed over."""
_SERVER = ("pod", "instance")
"""Labels that Prometheus gives to each server that it scrapes; a server has one value of each."""
_DEPLOYMENT = ("model_name", "cluster", "namespace", "job", "prometheus", "prometheus_replica")
"""Labels that all servers of one deployment share, and all that one Prometheus kept."""
_END = 253_402_300_800
"""Seconds since 1970 at which the year 10000 begins, which no calendar here has."""
_HOW = (
    'curl -sG http://prometheus:9090/api/v1/query_range --data-urlencode \'query={__name__=~"vllm:.+",job="vllm"}\' '
    "-d start=... -d end=... -d step=15s"
)


@dataclass(kw_only=True)
class Exported:
    """What was kept of one server. where: file and server, for messages. moments: seconds since 1970, and the samples
    of that scrape; in the order of time. names: of all its metrics."""

    where: str
    moments: list[tuple[float, list[Sample]]] = field(default_factory=list)
    names: frozenset[str] = frozenset()

    def at(self, seconds: float) -> str:
        """A moment of it in words."""
        return f"{self.where}, {datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"


def is_export(text: str) -> bool:
    """Whether a text, or its first lines, is the JSON of a Prometheus server."""
    head = text[:_HEAD].lstrip()
    return head.startswith(("{", "[")) and _EXPORT.search(head) is not None


def read_exports(files: Sequence[tuple[str, str]]) -> list[Exported]:
    """The servers of some exports, which may each hold a part of the metrics or of the time; files: paths and texts.

    Raises ``InputFileError`` for what is no export, for series without the name of a metric (of ``rate()`` or
    ``sum()``), for native histograms, and for series of several deployments.
    """
    kept: dict[str, dict[float, dict[tuple[str, str], str]]] = {}
    shared: dict[str, set[str]] = {}
    for path, text in files:
        for labels, values in _series(path, text):
            name = labels.pop("__name__")
            if not name.startswith(ENGINES):
                continue
            for label in _DEPLOYMENT:
                if label in labels:
                    shared.setdefault(label, set()).add(labels[label])
            moments = kept.setdefault("/".join(labels[one] for one in _SERVER if one in labels), {})
            key = name, _written(labels)
            for at, value in values:
                moments.setdefault(at, {})[key] = value
    where = ", ".join(path for path, _ in files)
    if not kept:
        raise InputFileError(
            f"{where} has no series of an engine", because=f"names begin with {', '.join(ENGINES)}", hint=_HOW
        )
    _require_one(shared, where)
    return [_exported(f"{where}: {server}" if server else where, kept[server]) for server in sorted(kept)]


def _exported(where: str, kept: Mapping[float, Mapping[tuple[str, str], str]]) -> Exported:
    moments = [(at, [Sample(name, labels, value) for (name, labels), value in kept[at].items()]) for at in sorted(kept)]
    return Exported(where=where, moments=moments, names=frozenset(name for at in kept for name, _ in kept[at]))


def _require_one(shared: Mapping[str, set[str]], where: str) -> None:
    for label, values in shared.items():
        if len(values) > 1:
            raise InputFileError(
                f"{where} has series of several deployments",
                because=f"{label} is {', '.join(sorted(values)[:5])}; only servers of one are taken together",
                hint=f'a query for one of them: {{__name__=~"vllm:.+",{label}="{min(values)}"}}',
            )


def _series(path: str, text: str) -> Iterator[tuple[dict[str, str], list[tuple[float, str]]]]:
    """Labels and values of each series of a file."""
    for number, one in enumerate(_result(path, text), 1):
        labels = one.get("metric") if isinstance(one, dict) else None
        if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
            raise InputFileError(f"{path}: series {number} has no labels", hint=_HOW)
        if "__name__" not in labels:
            raise InputFileError(
                f"{path}: series {number} has no name of a metric",
                because=f"its labels are {_written(labels)[:200]}; rate(), increase() and sum() take the name away",
                hint="export the metrics themselves: counters are read here, with their resets",
            )
        if "histograms" in one or "histogram" in one:
            raise InputFileError(
                f"{path}: {labels['__name__']} is a native histogram",
                because="only classic ones are read, of which _sum, _count and _bucket are series of their own",
                hint="a Prometheus that keeps classic histograms: always_scrape_classic_histograms",
            )
        points = one.get("values", [one["value"]] if "value" in one else None)
        if not isinstance(points, list):
            raise InputFileError(f"{path}: {labels['__name__']} has no values", hint=_HOW)
        yield dict(labels), [_point(point, f"{path}: {labels['__name__']}") for point in points]


def _result(path: str, text: str) -> list[Any]:
    """The series of an answer, of its data, or of a list of them."""
    said, _ = parse_json(text, path, InputFileError)
    if isinstance(said, dict) and said.get("status") == "error":
        raise InputFileError(
            f"{path} is an error of Prometheus", because=str(said.get("error", ""))[:300], hint="mend the query"
        )
    data = said.get("data", said) if isinstance(said, dict) else said
    kind = data.get("resultType", "matrix") if isinstance(data, dict) else "matrix"
    result = data.get("result") if isinstance(data, dict) else data
    if kind not in ("matrix", "vector") or not isinstance(result, list):
        raise InputFileError(f"{path} holds no series", because=f"its result is a {str(kind)[:40]}", hint=_HOW)
    return result


def _point(point: Any, where: str) -> tuple[float, str]:
    if isinstance(point, list) and len(point) == 2 and isinstance(point[1], str):
        at = point[0]
        if isinstance(at, (int, float)) and not isinstance(at, bool) and 0 <= at < _END:
            return float(at), point[1]
    because = f"{str(point)[:80]}; seconds are counted from 1970, the number is text"
    raise InputFileError(f"{where} has a value that is no [seconds, number]", because=because, hint=_HOW)


def _written(labels: Mapping[str, str]) -> str:
    """Labels as Prometheus' text format writes them."""
    escaped = {
        name: value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for name, value in labels.items()
    }
    return "{" + ",".join(f'{name}="{escaped[name]}"' for name in sorted(escaped)) + "}"
