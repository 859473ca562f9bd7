"""Deployments side by side under one load: ratios to the first, and which resource moved (docs/planning.md)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

from inferplan.catalog.assemble import Deployed
from inferplan.catalog.quality import share_kept
from inferplan.errors import InfeasibleError, InferplanError, NotFiniteError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.phase import Phase
from inferplan.estimate.roofline import Bound
from inferplan.estimate.run import carrying, estimate
from inferplan.serving.techniques.applied import served_first_token
from inferplan.shown import Shown
from inferplan.table import frame
from inferplan.units import format_time

if TYPE_CHECKING:
    import pandas as pd

RESOURCES: dict[Bound, str] = {"math": "compute", "memory": "memory", "wire": "network", "overhead": "overhead"}
_TOLD = 0.1
"""Of a phase of the baseline: a resource that moves by so much is told beside the one that moves most."""
METRICS = {
    "ttft_s": "TTFT of the batch alone",
    "ttft_at_server_s": "TTFT at the server, one request, idle",
    "tpot_s": "TPOT",
    "e2el_s": "total latency",
    "output_tokens_per_s": "output tokens/s",
    "output_tokens_per_s_per_device": "output tokens/s per device",
    "requests_per_s": "requests/s",
    "requests_per_s_per_device": "requests/s per device",
    "max_batch": "largest batch",
    "weights_bytes": "weights per device",
    "kv_bytes_per_token": "KV per token per device",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """One deployment with its estimate, or the reason why it has none."""

    label: str
    estimate: Estimate | None = None
    refused: str = ""

    @cached_property
    def at_server(self) -> float | None:
        """TTFT of one request on an idle server, its prompt cut as the engine cuts it; ``None`` where not known."""
        first = None if self.estimate is None else served_first_token(self.estimate)
        return None if first is None else float(np.max(first.at_server))

    @property
    def kept(self) -> tuple[float | None, str]:
        """What its format keeps of published scores, and in words; of formats by role nothing is published."""
        made = None if self.estimate is None else self.estimate.deployment
        if not isinstance(made, Deployed):
            return None, "-"
        roles = any(role != "kv" for role, _ in made.request.roles)
        return (None, "none published") if roles else share_kept(made.model, made.request.quant)

    def metrics(self) -> dict[str, float]:
        """The figures that are compared, by their JSON keys; empty when refused."""
        result = self.estimate
        if result is None:
            return {}
        if result.deployment.model.encodes:
            return self._passes(result)
        rate = float(result.output_rate)
        return {
            "ttft_s": float(result.ttft),
            **({} if self.at_server is None else {"ttft_at_server_s": self.at_server}),
            "tpot_s": float(result.tpot),
            "e2el_s": float(result.e2el),
            "output_tokens_per_s": rate,
            "output_tokens_per_s_per_device": rate / result.deployment.parallel.devices,
            "max_batch": float(result.footprint.max_batch()),
            "weights_bytes": result.footprint.weights,
            "kv_bytes_per_token": result.footprint.kv_per_token,
        }

    def _passes(self, result: Estimate) -> dict[str, float]:
        """The figures of a model that generates nothing."""
        rate = float(result.request_rate)
        return {
            "e2el_s": float(result.e2el),
            "requests_per_s": rate,
            "requests_per_s_per_device": rate / result.deployment.parallel.devices,
            "max_batch": float(result.footprint.max_batch()),
            "weights_bytes": result.footprint.weights,
        }

    def resources(self, phase: str) -> dict[str, float]:
        """Seconds of a phase by the bottleneck of each operator, on the slowest stage; the rest as overhead."""
        result = self.estimate
        return {} if result is None else by_resource(result.prefill if phase == "prefill" else result.decode)


def by_resource(phase: Phase) -> dict[str, float]:
    """Seconds of a step by the resource that is each operator's bottleneck; they sum to the step's time."""
    totals: dict[str, float] = defaultdict(float)
    for bound, seconds in phase.by_bound().items():
        totals[RESOURCES[bound]] += seconds
    rest = float(phase.time) - sum(totals.values())
    if rest > 1e-12:
        totals["overhead"] += rest
    return dict(totals)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Comparison(Shown):
    """Candidates under one load; the first that has an estimate is the baseline."""

    load: StaticLoad
    candidates: Sequence[Candidate]

    @property
    def baseline(self) -> Candidate:
        """The first candidate that has an estimate; the others are compared with it."""
        return next((c for c in self.candidates if c.estimate is not None), self.candidates[0])

    def ratios(self, candidate: Candidate) -> dict[str, float]:
        """Each figure of a candidate over that of the baseline."""
        base = self.baseline.metrics()
        return {name: value / base[name] for name, value in candidate.metrics().items() if base[name]}

    def why(self, candidate: Candidate) -> str:
        """Which resources moved: the largest change in each phase, others of a tenth of the phase, and the causes."""
        base, own = self.baseline.estimate, candidate.estimate
        if base is None or own is None:
            return candidate.refused
        if own is base:
            return "baseline"
        phases = ("prefill",) if own.deployment.model.encodes else ("prefill", "decode")
        parts = [self._moved(candidate, phase) for phase in phases]
        causes = _causes(base.deployment, own.deployment)
        return "; ".join(part for part in [*parts, ", ".join(causes)] if part)

    def _moved(self, candidate: Candidate, phase: str) -> str:
        before, after = self.baseline.resources(phase), candidate.resources(phase)
        whole = sum(before.values())
        moves = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in {**before, **after}}
        largest, *others = sorted(moves, key=lambda name: -abs(moves[name]))
        if abs(moves[largest]) < 0.005 * whole:
            return f"{phase} unchanged"
        told = [largest, *(name for name in others if abs(moves[name]) >= _TOLD * whole)]
        times = ((name, before.get(name, 0.0), after.get(name, 0.0)) for name in told)
        return f"{phase}: " + ", ".join(
            f"{name} {format_time(old, 3)} -> {format_time(new, 3)}" for name, old, new in times
        )

    def to_frame(self) -> pd.DataFrame:
        """One row a candidate."""
        return frame(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """One flat record a candidate: figures, ratios, reason."""
        rows: list[dict[str, Any]] = []
        for candidate in self.candidates:
            row: dict[str, Any] = {
                "candidate": candidate.label,
                **candidate.metrics(),
                "quality_kept": candidate.kept[0],
            }
            row |= {f"{name}_ratio": value for name, value in self.ratios(candidate).items()}
            for phase in ("prefill", "decode"):
                row |= {f"{phase}_{name}_s": value for name, value in candidate.resources(phase).items()}
            rows.append({**row, "why": self.why(candidate)})
        return rows


def compare(deployments: Sequence[Deployment | InferplanError], labels: Sequence[str], load: StaticLoad) -> Comparison:
    """Estimate each deployment under ``load``; one that is refused or does not fit stays, with the reason.

    Raises ``InfeasibleError`` when none has an estimate, ``NotFiniteError`` for a price that is no number.
    """
    candidates = []
    for deployment, label in zip(deployments, labels):
        if isinstance(deployment, InferplanError):
            candidates.append(Candidate(label=label, refused=deployment.what))
            continue
        try:
            candidates.append(Candidate(label=label, estimate=estimate(*carrying(deployment, load))))
        except NotFiniteError:
            raise
        except InferplanError as error:
            candidates.append(Candidate(label=label, refused=error.what))
    if all(candidate.estimate is None for candidate in candidates):
        reasons = "; ".join(f"{candidate.label}: {candidate.refused}" for candidate in candidates)
        raise InfeasibleError("none of the candidates can run this load", because=reasons, hint="inferplan fit MODEL")
    return Comparison(load=load, candidates=candidates)


def _causes(base: Deployment, own: Deployment) -> list[str]:
    """What differs between two deployments, as factors on the resources."""
    causes = []
    facts = {
        "parameters": tuple(float(one.model.parameters.get("active", nan)) for one in (base, own)),
        "KV elements": (float(base.model.kv_elements_per_token), float(own.model.kv_elements_per_token)),
        "bandwidth": (base.hardware.memory.bandwidth, own.hardware.memory.bandwidth),
        "peak": (base.hardware.peak_of(base.math), own.hardware.peak_of(own.math)),
        "weight bytes": (base.precision.weights.width, own.precision.weights.width),
        "KV bytes": (base.precision.kv.width, own.precision.kv.width),
    }
    for name, (before, after) in facts.items():
        if before and abs(after / before - 1) > 1e-3:
            causes.append(f"{name} x {after / before:.3g}")
    for field in fields(base.parallel):
        old, new = getattr(base.parallel, field.name), getattr(own.parallel, field.name)
        if old != new:
            causes.append(f"{field.name} {old} -> {new}")
    return causes
