"""Whether measured systems stand behind an error band: of the engine on the device in its form, of the kind of model.

Bands come from systems (a model on a device under an engine) that were left out one after another. They say nothing of
a pipeline where none of those was one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from inferplan.devices.constants import BeginsAs, Calibration, LateTokens, MeasuredCell
from inferplan.estimate.deployment import Deployment, found_once
from inferplan.models.spec import ModelSpec

FEWEST_SYSTEMS = 3
"""Fewer than so many say nothing of the spread between systems: two are one difference."""
DRAFTS, POOLS = "drafts", "pools apart"
"""Forms that are not of a deployment: with drafts (MTP among them), and prompts computed elsewhere."""
ANY_DEVICE = "any"
"""Where constants were fitted to all devices of a class together, the devices that were left out one at a time."""

Systems = Mapping[str, Mapping[str, int]]
"""How many systems were measured of each ``device``, ``form`` and ``family``."""


def lacking(deployment: Deployment, forms: Sequence[str] = ()) -> dict[str, int]:
    """Of what fewer than :data:`FEWEST_SYSTEMS` systems were measured, or of a kind of layer so many models, in words,
    with how many; empty for nothing.

    forms: further ones, such as :data:`DRAFTS`. Of constants that have no band whatever runs, nothing is said.
    """
    return dict(_lacking(deployment, tuple(forms)))


@found_once
def _lacking(deployment: Deployment, forms: tuple[str, ...]) -> dict[str, int]:
    """The same, looked up once: a plan asks it at every confidence."""
    if not deployment.calibration.has_bands:
        return {}
    own, families = _counts(deployment, (*forms_of(deployment), *forms))
    what = "{} models" if deployment.calibration.measured is not None else "{}"
    known = own | {what.format(family): families.get(family, 0) for family in families_of(deployment.model)}
    return {name: count for name, count in known.items() if count < FEWEST_SYSTEMS}


def _counts(deployment: Deployment, forms: Sequence[str]) -> tuple[dict[str, int], Mapping[str, int]]:
    """How many systems are like a deployment in all but their model, in words; and how many models, of constants with
    counts of their own systems, hold each kind of layer."""
    calibration, device = deployment.calibration, deployment.hardware.name
    if calibration.measured is not None:
        cell = measured_cell(deployment, forms)
        name = cell_name(device, deployment.engine.name, forms)
        name += f" by the constants of {_own_constants(calibration)}" if _own_constants(calibration) else ""
        return {name: cell.systems if cell else 0}, calibration.measured.families
    devices, counted = calibration.systems.get("device", {}), calibration.systems.get("form", {})
    own = {device: devices.get(device, devices.get(ANY_DEVICE, 0))} | {form: counted.get(form, 0) for form in forms}
    return own, calibration.systems.get("family", {})


def measured_cell(deployment: Deployment, forms: Sequence[str]) -> MeasuredCell | None:
    """What was measured of its engine on its device in exactly these forms; ``None`` for nothing. By how much serving
    was off was measured of the constants on file, and says nothing of those of a file that was asked for."""
    measured = deployment.calibration.measured
    if measured is None or _own_constants(deployment.calibration):
        return None
    key = deployment.hardware.name, deployment.engine.name, frozenset(forms)
    return next((one for one in measured.cells if (one.device, one.engine, frozenset(one.forms)) == key), None)


def measured_tail(deployment: Deployment, load: BeginsAs, forms: Sequence[str] = ()) -> LateTokens | None:
    """How late first tokens were at the 99th percentile, of its engine in exactly its form and ``forms`` beyond it, on
    any device; ``None`` where fewer than :data:`FEWEST_SYSTEMS` systems were measured so, and for constants of a file
    that was asked for."""
    tails = deployment.calibration.tails
    if tails is None or _own_constants(deployment.calibration):
        return None
    key = deployment.engine.name, load, frozenset((*forms_of(deployment), *forms))
    found = next((one for one in tails.kinds if (one.engine, one.load, frozenset(one.forms)) == key), None)
    return None if found is None or not found.seconds else found


def _own_constants(calibration: Calibration) -> str:
    """The file whose constants price a kernel in the place of those on file; empty for none, and for those of an
    anchor, whose own runs say how far off they are."""
    overlay = calibration.overlay
    return overlay.file if overlay is not None and overlay.used and calibration.anchor is None else ""


def cell_name(device: str, engine: str, forms: Sequence[str]) -> str:
    """A kind of serving in words: ``"vllm on b200-hgx with expert parallelism"``."""
    return f"{engine} on {device}" + (f" with {' and '.join(forms)}" if forms else "")


def too_few(missing: Mapping[str, int]) -> str:
    """What :func:`lacking` found, in words: ``"a band needs 3 measured systems or models of each; there are 0 of vllm
    on rtx-4090"``."""
    counts = ", ".join(f"{count} of {name}" for name, count in missing.items())
    return f"a band needs {FEWEST_SYSTEMS} measured systems or models of each; there are {counts}"


def forms_of(deployment: Deployment) -> Iterator[str]:
    """What a deployment has beyond ranks of tensor parallelism in one node."""
    parallel, link = deployment.parallel, None
    if parallel.ranks > 1:
        link = deployment.hardware.link(parallel.ranks)
    forms = {
        "pipeline parallelism": parallel.pp > 1,
        "expert parallelism": parallel.ep > 1,
        "attention data parallelism": parallel.dp > 1,
        "context parallelism": parallel.cp > 1,
        "several nodes": link is not None and link.domain is None and len(deployment.hardware.links) > 1,
        "redundant experts": parallel.redundant > 0,
        "two-batch overlap": deployment.two_batches is not None,
        "a cadence of prompts": deployment.cadence.any,
        "weights in host memory": bool(deployment.elsewhere),
        "media": deployment.media is not None,
    }
    return (form for form, has in forms.items() if has)


def families_of(model: ModelSpec) -> Iterator[str]:
    """The kinds of its layers, as their YAML names them (``gated delta net``), and what it is where that is no decoder
    of text."""
    parts = {part.kind: part for layer, _ in model.distinct for part in layer.parts}
    yield from (kind.replace("_", " ") for kind in parts)
    if any(getattr(part, "indexer", None) is not None for layer, _ in model.distinct for part in layer.parts):
        yield "sparse attention"
    if model.encoder is not None or model.encodes:
        yield "encoders"
    if model.generation.kind == "diffusion":
        yield "diffusion"
