"""The formats that a checkpoint stores, and the narrower ones in which a device and an engine run its model."""

from __future__ import annotations

from dataclasses import replace

from inferplan.devices.engine import Engine
from inferplan.devices.hardware import HardwareSpec
from inferplan.models.spec import ModelSpec
from inferplan.work.formats import Precision, find_format, parse_precision, uniform

ROLES = ("weights", "activations", "kv", "experts", "embedding", "head")
NATIVE = "native"
"""The word for the formats that the released checkpoint stores; the same as none."""


def native_precision(model: ModelSpec) -> Precision:
    """The formats that the released checkpoint stores."""
    native = model.native
    wide = uniform(native.base)
    given = {role: getattr(native, role, None) for role in ROLES}
    chosen = {role: find_format(name) for role, name in given.items() if name}
    if "weights" in chosen and "experts" not in chosen:
        chosen["experts"] = chosen["weights"]
    exceptions = tuple(
        (tensor, find_format(entry.format), frozenset(entry.layers))
        for entry in native.exceptions
        for tensor in entry.tensors
    )
    return replace(wide, exceptions=exceptions, **chosen)


def names_cache(model: ModelSpec, precision: Precision) -> bool:
    """Whether an engine is told the format of the cache, which else is that of the activations."""
    return precision.kv != precision.base or model.native.kv not in (None, precision.base.name)


def is_file(quant: str | None) -> bool:
    """Whether formats are those of a GGUF file."""
    from inferplan.models.gguf_formats import is_file_type

    return is_file_type((quant or NATIVE).lower().strip())


def quantised(model: ModelSpec, quant: str, hardware: HardwareSpec, base: str) -> Precision:
    """The formats of a ``--quant``: of a GGUF file of the model, or a shorthand. base: those of what stays wide."""
    from inferplan.models.gguf_formats import file_precision

    if is_file(quant):
        return file_precision(model, quant.lower().strip())
    return parse_precision(quant, frozenset(hardware.peak), base)


_PACKED = "w4a16"
"""4-bit weights that kernels widen to 16 bits: AWQ and GPTQ. They need no 4-bit arithmetic."""


def default_quants(model: ModelSpec, hardware: HardwareSpec, engine: Engine) -> tuple[str | None, ...]:
    """The checkpoint's own formats and the narrower ones that device and engine run: fp8 and the maker's 4 bits where
    the device computes in them; where it has no 4-bit arithmetic, int8 and 4-bit weights (AWQ, GPTQ) that the engine
    loads there; the usual GGUF files of eight and four bits where it reads those.

    Whether an answer in a narrower format is good enough is not counted here: that is the user's to judge.
    """
    native, peaks = native_precision(model), hardware.peak
    bits = min(native.weights.bits, native.experts.bits)
    fourth, files = "fp4" in peaks, engine.files_alone
    found = {
        "fp8": "fp8" in peaks and bits >= 16 and not files,
        "int8": "int8" in peaks and bits >= 16 and not fourth and engine.loads("int8", hardware),
        hardware.four_bits: fourth and bits >= 8,
        _PACKED: not fourth and bits >= 8 and engine.loads(_PACKED, hardware),
        "q8_0": bits >= 16 and files,
        "q4_k_m": bits >= 8 and files,
    }
    return (None, *(name for name, tried in found.items() if tried))
