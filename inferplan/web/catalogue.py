"""What can be chosen: the models, accelerators, engines, workloads and formats on file."""

from __future__ import annotations

from typing import Any

from inferplan import __version__
from inferplan.catalog.files import load, load_hardware, load_model, names
from inferplan.catalog.price_lists import PriceBook
from inferplan.devices.engine import EngineSpec
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import InferplanError
from inferplan.estimate.formats import native_precision
from inferplan.models.spec import ModelSpec
from inferplan.reports.glossary import WORDS
from inferplan.work.formats import FORMATS


def catalogue_record(prices: PriceBook) -> dict[str, Any]:
    """Everything on file by name, and what words mean. prices: those of an hour of each accelerator."""
    weights = [fmt.name for fmt in FORMATS.values() if not fmt.per_head]
    return {
        "version": __version__,
        "models": [_model(load_model(name)) for name in names("models")],
        "gpus": [_gpu(load_hardware(name), prices) for name in names("hardware")],
        "engines": [_engine(load("engines", name, EngineSpec)) for name in names("engines")],
        "workloads": names("workloads"),
        "profiles": names("profiles"),
        "weight_formats": weights,
        "kv_formats": list(FORMATS),
        "words": WORDS,
    }


def _model(spec: ModelSpec) -> dict[str, Any]:
    counts, native = spec.parameters, native_precision(spec)
    return {
        "name": spec.name,
        "title": spec.name,
        "aliases": spec.aliases,
        "family": spec.family,
        "parameters_total": counts["total"],
        "parameters_active": counts.get("active"),
        "context": spec.max_context,
        "licence": spec.licence or None,
        "experts": spec.has_experts,
        "generates": not spec.encodes,
        "formats": list(dict.fromkeys((native.weights.name, native.experts.name))),
        "native": {"weights": native.weights.name, "kv": native.kv.name, "base": native.base.name},
    }


def _gpu(spec: HardwareSpec, prices: PriceBook) -> dict[str, Any]:
    try:
        offers = prices.offers(spec.name)
    except InferplanError:
        offers = ()
    price = min((offer.per_device for offer in offers), default=None)
    return {
        "name": spec.name,
        "label": spec.product,
        "aliases": spec.aliases,
        "vendor": spec.vendor,
        "form_factor": spec.form_factor or None,
        "memory_bytes": spec.memory.usable,
        "bandwidth_byte_per_s": spec.memory.bandwidth,
        "peak_flop_per_s": spec.peak,
        "formats": [fmt.name for fmt in FORMATS.values() if fmt.math in spec.peak and not fmt.per_head],
        "price_usd_per_h": price if prices.currency == "USD" else None,
        "basis": spec.confidence,
        "preliminary": spec.preliminary,
    }


def _engine(spec: EngineSpec) -> dict[str, Any]:
    return {"name": spec.name, "versions": [one.version for one in spec.versions]}
