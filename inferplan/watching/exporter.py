"""What is watched, as metrics of its own in Prometheus' text format, and a dashboard of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from inferplan.errors import UsageError
from inferplan.watching.minutes import Minute

_TYPE = "text/plain; version=0.0.4; charset=utf-8"
METRICS = {
    "inferplan_requests_per_second": "Requests per second.",
    "inferplan_prompt_tokens": "Mean tokens of a prompt.",
    "inferplan_output_tokens": "Mean tokens of an answer.",
    "inferplan_prefix_hit_ratio": "Share of prompt tokens found in the prefix cache.",
    "inferplan_servers": "Servers that answer.",
    "inferplan_requests_running": "Requests that run.",
    "inferplan_requests_waiting": "Requests that wait.",
    "inferplan_kv_cache_ratio": "Share of the KV cache in use, of the fullest server.",
    "inferplan_ttft_seconds": "Mean time to first token, seen and predicted.",
    "inferplan_gap_seconds": "Mean time between tokens, seen and predicted.",
    "inferplan_latency_seconds": "Latency at the limit's percentile, seen and predicted.",
    "inferplan_latency_limit_seconds": "The limit on it.",
    "inferplan_load_left_ratio": "Load that keeps every limit, over the present load.",
    "inferplan_step_time_ratio": "Time of a step, over the model's.",
    "inferplan_drift": "1 for each cause that is off at present.",
    "inferplan_minutes_total": "Minutes watched.",
}


def exposition(minute: Minute) -> str:
    """A minute as metrics."""
    by_name: dict[str, list[str]] = {}
    for name, labels, value in _samples(minute):
        if value is not None:
            shown = ",".join(f'{key}="{said}"' for key, said in labels.items())
            by_name.setdefault(name, []).append(f"{name}{{{shown}}} {value:.9g}" if shown else f"{name} {value:.9g}")
    lines: list[str] = []
    for name, samples in by_name.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# HELP {name} {METRICS[name]}", f"# TYPE {name} {kind}", *samples]
    return "\n".join(lines) + "\n"


def _samples(minute: Minute) -> Iterator[tuple[str, dict[str, str], float | None]]:
    span, predicted = minute.span, minute.as_seen
    yield "inferplan_requests_per_second", {}, span.rate
    yield "inferplan_prompt_tokens", {}, span.prompt_tokens
    yield "inferplan_output_tokens", {}, span.output_tokens
    yield "inferplan_prefix_hit_ratio", {}, span.hits
    yield "inferplan_servers", {}, span.servers
    yield "inferplan_requests_running", {}, span.running
    yield "inferplan_requests_waiting", {}, span.waiting
    yield "inferplan_kv_cache_ratio", {}, span.cache
    yield "inferplan_ttft_seconds", {"of": "seen"}, span.ttft.mean
    yield "inferplan_ttft_seconds", {"of": "predicted"}, predicted.ttft if predicted else None
    yield "inferplan_gap_seconds", {"of": "seen"}, span.gap.mean
    yield "inferplan_gap_seconds", {"of": "predicted"}, predicted.gap if predicted else None
    for one in minute.limits:
        yield "inferplan_latency_seconds", {"of": "seen", "latency": one.name}, one.seen
        should = predicted.latencies.get(one.name) if predicted else None
        yield "inferplan_latency_seconds", {"of": "predicted", "latency": one.name}, should
        yield "inferplan_latency_limit_seconds", {"latency": one.name}, one.limit
    yield "inferplan_load_left_ratio", {}, minute.room.times if minute.room else None
    yield "inferplan_step_time_ratio", {}, minute.pace.step
    for cause in minute.now:
        yield "inferplan_drift", {"cause": cause}, 1.0
    yield "inferplan_minutes_total", {}, float(minute.number)


class Exporter:
    """Serves the last minute at ``/metrics`` of an address. Raises ``UsageError`` where that cannot be had."""

    def __init__(self, host: str, port: int) -> None:
        self.text = "\n"
        exporter = self

        class Answers(BaseHTTPRequestHandler):
            """One document, and nothing else."""

            timeout = 10

            def do_GET(self) -> None:
                """Answer ``/metrics``."""
                if self.path.partition("?")[0] != "/metrics":
                    self.send_error(404)
                    return
                body = exporter.text.encode()
                self.send_response(200)
                self.send_header("Content-Type", _TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing on stderr."""

        try:
            self._server = ThreadingHTTPServer((host, port), Answers)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"cannot listen at {host}:{port}", because=str(error), hint="--listen 127.0.0.1:9108"
            ) from None
        self._server.daemon_threads = True
        Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        """The port; that which the system chose, where 0 was asked for."""
        return int(self._server.server_address[1])

    def show(self, minute: Minute) -> None:
        """A minute, from now on."""
        self.text = exposition(minute)

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()


_PANELS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Load left under the limits", "percentunit", ("inferplan_load_left_ratio",)),
    ("Latency at the limit's percentile", "s", ("inferplan_latency_seconds", "inferplan_latency_limit_seconds")),
    ("Time to first token, mean", "s", ("inferplan_ttft_seconds",)),
    ("Time between tokens, mean", "s", ("inferplan_gap_seconds",)),
    ("Requests per second", "reqps", ("inferplan_requests_per_second",)),
    ("Tokens of a request", "short", ("inferplan_prompt_tokens", "inferplan_output_tokens")),
    ("Requests that run and wait", "short", ("inferplan_requests_running", "inferplan_requests_waiting")),
    ("Prefix hits and KV cache", "percentunit", ("inferplan_prefix_hit_ratio", "inferplan_kv_cache_ratio")),
    ("Step time over the model's", "short", ("inferplan_step_time_ratio",)),
    ("What is off", "short", ("inferplan_drift", "inferplan_servers")),
)


def dashboard() -> str:
    """A dashboard for Grafana (JSON of its schema 39), of the Prometheus that scrapes the exporter."""
    source = {"type": "prometheus", "uid": "${source}"}
    panels = [
        {
            "id": number + 1,
            "type": "timeseries",
            "title": title,
            "datasource": source,
            "gridPos": {"h": 8, "w": 12, "x": 12 * (number % 2), "y": 8 * (number // 2)},
            "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
            "targets": [
                {"refId": chr(65 + place), "expr": metric, "datasource": source} for place, metric in enumerate(metrics)
            ],
        }
        for number, (title, unit, metrics) in enumerate(_PANELS)
    ]
    return json.dumps(
        {
            "title": "inferplan watch",
            "schemaVersion": 39,
            "refresh": "1m",
            "time": {"from": "now-6h", "to": "now"},
            "templating": {"list": [{"name": "source", "type": "datasource", "query": "prometheus"}]},
            "panels": panels,
        },
        indent=1,
    )
