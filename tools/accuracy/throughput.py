"""Published maximum throughput."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from inferplan.errors import InferplanError
from inferplan.serving.simulator import simulate
from inferplan.validation.deploy import deployment_of
from tools.accuracy.scores import HEADS, markdown, scored_lines
from tools.fitting.published.peaks import Peak, read_peaks

_GROUPS: dict[str, Callable[[Peak], str]] = {
    "GPU": lambda peak: peak.run.gpu,
    "model": lambda peak: peak.run.model,
    "format": lambda peak: str(peak.run.weights),
    "devices": lambda peak: str(peak.run.tp),
    "prompt and output": lambda peak: f"{peak.run.prompt:.0f}, {peak.run.output:.0f}",
}


def predicted_rate(peak: Peak) -> float:
    """Output tokens a second of all devices."""
    return simulate(deployment_of(peak.run)[0], peak.traffic(), peak.flags()).output_rate


def throughput_section(path: Path, every: int) -> str:
    """Errors of every ``every``-th row, by GPU, model, format, devices and lengths."""
    groups: dict[str, dict[str, list[tuple[float, float]]]] = {name: defaultdict(list) for name in ("all", *_GROUPS)}
    refused = 0
    for peak in read_peaks(path)[::every]:
        try:
            pair = predicted_rate(peak), peak.rate
        except InferplanError:
            refused += 1
            continue
        groups["all"]["over PCIe (L40S, 4 and 8)" if peak.over_pcie else "all others"].append(pair)
        if not peak.over_pcie:
            for name, group in _GROUPS.items():
                groups[name][group(peak)].append(pair)
    tables = [
        markdown((f"{name} (host of a sequence in sample)", *HEADS), scored_lines(dict(sorted(found.items()))))
        for name, found in groups.items()
    ]
    return "\n".join(
        [
            "## Maximum throughput\n",
            "TensorRT-LLM 0.17, all requests at once: output tokens/s, simulated with the flags that its "
            "benchmark chose. One constant was fitted to these rows, the host's time for a sequence of a step; with "
            "any GPU left out of that fit the figures are the same ([calibration](calibration.md#the-host-of-a-step)). "
            "Where sums go over PCIe, the host that the devices stand in decides how fast.\n",
            *tables,
            f"{refused} rows cannot be answered.\n",
        ]
    )
