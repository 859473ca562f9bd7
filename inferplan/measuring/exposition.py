"""Prometheus' text format, sample by sample.

The format is that of prometheus.io/docs/instrumenting/exposition_formats (0.0.4): ``name{label="value"} number``, with
a time behind it where a server writes one; in OpenMetrics (1.0) an example, ``# {trace_id="a"} number``, behind both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_LABELS = r'\{(?:[^"{}\n]|"(?:[^"\\\n]|\\.)*")*\}'
_SAMPLE = re.compile(
    rf"^([a-zA-Z_:][\w:]*)({_LABELS})?[ \t]+([-+\w.]+)(?:[ \t]+-?[\d.]+)?(?:[ \t]+#[^\n]*)?[ \t]*$", re.MULTILINE
)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Sample(NamedTuple):
    """One line: the metric, its labels as they are written, and its value as text."""

    name: str
    labels: str
    value: str

    @property
    def known(self) -> dict[str, str]:
        """The labels by name."""
        return dict(_LABEL.findall(self.labels))


def samples(text: str) -> Iterator[Sample]:
    """The samples of a text in their order; lines that are none are passed over."""
    return (Sample(match[1], match[2] or "", match[3]) for match in _SAMPLE.finditer(text))
