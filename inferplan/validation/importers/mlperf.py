"""MLPerf LoadGen ``mlperf_log_summary.txt``: ``key : value`` lines, nanoseconds.

Old files say "time to output token", new ones "time per output token". The summary names neither model nor hardware nor
lengths: they come by flags. Percentiles are the 99th.
"""

from __future__ import annotations

import re

from inferplan.validation.rows import Facts

TOOL = "mlperf loadgen"
_LINE = re.compile(r"^([^:]+?)\s*:\s*(.+?)\s*$", re.MULTILINE)


def matches(text: str) -> bool:
    return "MLPerf Results Summary" in text or ("SUT name" in text and "Scenario" in text)


def read(text: str) -> Facts:
    lines = {key.strip().lower(): value for key, value in _LINE.findall(text)}
    facts: Facts = {"statistic": "p99"}
    ttft = _first(lines, "99.00 percentile first token latency (ns)", "99.00 percentile time to first token (ns)")
    tpot = _first(lines, "99.00 percentile time to output token (ns)", "99.00 percentile time per output token (ns)")
    facts |= {name: _milliseconds(value) for name, value in (("ttft_ms", ttft), ("tpot_ms", tpot)) if value}
    rate = _first(lines, "completed tokens per second", "tokens per second")
    if rate:
        facts["output_tokens_per_s"] = rate
    if lines.get("scenario", "").lower() == "server":
        offered = _first(lines, "completed samples per second", "target_qps")
        facts |= {"rate_per_s": offered, "duration_s": "600"} if offered else {}
    if not lines.get("result is", "").upper().startswith("VALID"):
        facts["suspect"] = "invalid"
    return facts


def _first(lines: dict[str, str], *names: str) -> str:
    return next((lines[name] for name in names if name in lines), "")


def _milliseconds(text: str) -> str:
    try:
        return repr(float(text) * 1e-6)
    except ValueError:
        return text
