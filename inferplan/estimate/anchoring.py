"""A deployment with measured runs of its own: which system they are of, and what they make of its latencies."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from inferplan.devices.anchors import METRICS, Anchor, AnchorLoad, System
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import Band
from inferplan.units import Num

_UNKNOWN_USERS = 24
_UNKNOWN_OUTPUTS = (16.0, 64.0, 256.0, 1024.0, 4096.0)
"""Loads among which the widest band is taken where the load is not known."""


NEWEST = "the newest"
"""Whose kernels price where no release and no backend was asked for."""


class Correction(NamedTuple):
    """Measured over predicted latencies at a load; 1 where nothing was measured."""

    ttft: Num = 1.0
    tpot: Num = 1.0

    @property
    def any(self) -> bool:
        """Whether it changes anything."""
        return not np.all(np.equal(self.ttft, 1.0) & np.equal(self.tpot, 1.0))


def system_of(deployment: Deployment) -> System:
    """What an anchor of this deployment's runs is of."""
    precision, experts = deployment.precision, deployment.model.has_experts
    return System(
        model=deployment.model.name,
        gpu=deployment.hardware.name,
        engine=deployment.engine.name,
        weights=precision.weights.name,
        experts=precision.experts.name if experts else None,
        kv=precision.kv.name,
        release=deployment.engine.release or None,
    )


def fingerprint(deployment: Deployment) -> str:
    """A digest of the constants behind its prices: what was measured over what they predict holds for them alone."""
    calibration, serving = deployment.calibration, deployment.engine.serving
    facts = calibration.model_dump(
        mode="json", include={"constants", "step", "fused", "basis"}, exclude_defaults=True
    )  # a constant that is new tomorrow changes no price at its default
    facts["serving"] = serving.model_dump(mode="json", exclude={"source"}, exclude_defaults=True)
    if deployment.step != calibration.step:
        facts["step"] = deployment.step.model_dump(mode="json", exclude_defaults=True)
    if deployment.engine.attention.joined(deployment.hardware, deployment.precision.kv.name):
        facts["attention"] = "one call"
    facts["routing"] = repr(deployment.routing)
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def with_anchor(deployment: Deployment, anchor: Anchor, name: str) -> Deployment:
    """The deployment with its measured runs; name: the file that they are from, for messages.

    Raises ``UsageError`` for runs of another system, or predicted with other constants.
    """
    own = system_of(deployment)
    if not own.same(anchor.system):
        raise UsageError(
            f"{name} is anchored to {anchor.system.describe()}, not to {own.describe()}",
            hint="inferplan anchor suggest says which runs of this one to measure",
        )
    if fingerprint(deployment) != anchor.priced_with:
        raise UsageError(
            f"{name} was fitted to predictions of other constants",
            because="the measured runs correct only the constants that they were compared with; kernels of its runs: "
            f"{anchor.provenance.get('kernels', 'not said')}; here: {deployment.calibration.note or NEWEST}",
            hint="the same --engine NAME@VERSION, --backend and --calibration here and at inferplan anchor fit RESULTS",
        )
    return replace(deployment, calibration=deployment.calibration.model_copy(update={"anchor": anchor}))


def correction(deployment: Deployment, users: Num, prompt: Num, output: Num) -> Correction:
    """What its anchor makes of the latencies of ``users`` of one replica; scalars or arrays."""
    anchor = deployment.calibration.anchor
    if anchor is None:
        return Correction()
    load = AnchorLoad(np.maximum(users, 1.0), prompt, output, deployment.parallel)
    return Correction(*(anchor.factor(metric, load) for metric in METRICS))


def anchored_bands(
    deployment: Deployment, users: Num | None, prompt: Num, output: Num | None = None
) -> dict[str, Band]:
    """The 80 % bands of the latencies that it corrects; the widest over usual loads where the load is not known.

    They were measured on devices whose own error is known: where that is not, neither are they.
    """
    anchor = deployment.calibration.anchor
    if anchor is None:
        return {}
    if users is None or output is None:
        most = deployment.engine.defaults.tier(deployment.hardware).max_sequences * deployment.parallel.dp
        users = np.geomspace(1.0, float(most), _UNKNOWN_USERS)[:, None]
        output = np.array(_UNKNOWN_OUTPUTS)
    load = AnchorLoad(np.maximum(users, 1.0), prompt, output, deployment.parallel)
    return {metric: anchor.band(metric, load) for metric in METRICS if len(anchor.measured(metric)[1])}
