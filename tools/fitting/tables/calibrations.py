"""The constants of a measured device from its rows, and those that stand in where nothing was timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calibrate.fit import TERMS_OF, HeldOut, Ranges, Stack, fit_all, fit_stack, join, stack, stack_errors
from inferplan.catalog.calibrations import shared_step
from inferplan.devices.constants import ANY, Calibration, Constants, Fit
from tools.fitting.tables.choose import ENGINES, DeviceTables
from tools.fitting.tables.exchanges import LIBRARY

BEYOND = {"scale_out": 0.73, "sharpness": 4.0}
"""Collectives over nodes: 36.5 of the 50 GB/s of each port in a 4 GiB all-reduce on 4 nodes of 8 B200 (377 GB/s of bus
bandwidth; nccl-tests as quoted in ml-engineering, "Network", August 2026), the levels pipelined behind each other."""
VECTOR = ("norm", "elementwise", "copy", "gather")
"""Kernels bound by memory that no table times."""


IN_MODULES = ("mla.sparse", "mla.sparse.decode", "index_select.decode")
"""Kernels that some libraries' rows time inside a whole module, in the order of their fits: the modules of each are
priced with those before it."""


ALONE = 3.6e-5
"""Seconds: the fixed part of FlashMLA's sparse attention over 2,048 keys where it is timed alone, one thread block."""


def vector_constants(devices: Sequence[DeviceTables]) -> Fit:
    """Constants of kernels that only move data, from the short convolutions of one token that the tables time.

    Fitted on the single-token kernel over all devices, and their error is that on the kernel for many tokens: a kernel
    they were not fitted to.
    """
    few: list[Stack] = []
    many: list[Stack] = []
    for device in devices:
        measured = [m for name in ("vllm", "sglang") for m in device.libraries.get(name, {}).get(("conv", ANY), [])]
        for part, chosen in ((few, True), (many, False)):
            rows = [m for m in measured if (m.source.endswith("update")) == chosen]
            if rows:
                part.append(stack(rows, device.hardware, ()))
    if not few or not many:
        return Fit(basis="transferred", source="none measured")
    fit = fit_stack(join(few))
    error = stack_errors(join(many), fit)
    error |= {"low": min(error["low"], 1.0), "high": max(error["high"], 1.0)}
    update: dict[str, Any] = {"error": error, "basis": "transferred", "source": "short convolutions"}
    return fit.model_copy(update=update | {"flop_range": None, "bytes_range": None})


def rest_calibration(vector: Fit) -> Calibration:
    """What prices the copies and pointwise operators that a measurement includes."""
    return Calibration(name="vector", constants={kernel: {ANY: vector} for kernel in VECTOR})


def beyond_the_node(devices: Sequence[DeviceTables]) -> Constants:
    """The constants of exchanges on the devices that were measured over several nodes."""
    found: Constants = {}
    for device in devices:
        for group, rows in device.libraries.get(LIBRARY, {}).items():
            stacked = stack(rows, device.hardware, TERMS_OF[group[0]])
            if any(np.any(asked.outer > 0) for asked in stacked.demands):
                found.setdefault(group[0], {})[group[1]] = fit_stack(stacked)
    return found


def carried_beyond(constants: Constants, beyond: Constants) -> Constants:
    """A device's exchanges with what those measured over several nodes say of the network: its share of the bandwidth,
    how it hides behind the links inside, the time for each doubling of the nodes and for what is passed on between."""

    def carried(kernel: str, label: str, fit: Fit) -> Fit:
        other = beyond.get(kernel, {}).get(label)
        if other is None or "nodes" in fit.terms or fit.scale_out < 1.0:
            return fit
        terms = fit.terms | {name: other.terms[name] for name in ("nodes", "forwarded") if name in other.terms}
        own = {} if "copied" in fit.terms else {"sharpness": other.sharpness}
        return fit.model_copy(update={"scale_out": other.scale_out, "terms": terms} | own)

    return {
        kernel: {label: carried(kernel, label, fit) for label, fit in formats.items()}
        for kernel, formats in constants.items()
    }


def calibrate_device(
    device: DeviceTables, vector: Fit, provenance: dict[str, Any], beyond: Constants | None = None
) -> Calibration:
    """The constants of one device: by library, and those that all libraries share.

    beyond: what exchanges take where they leave the node, for a device measured in one (:func:`carried_beyond`).
    """
    rest = rest_calibration(vector)
    libraries: dict[str, Constants] = {}
    held_out: dict[str, HeldOut] = {}
    ranges: dict[str, Ranges] = {}
    for library, pool in device.libraries.items():
        measured = [m for rows in pool.values() for m in rows]
        alone = [m for m in measured if m.op.kernel not in IN_MODULES]
        libraries[library], held_out[library], ranges[library] = fit_all(alone, device.hardware, rest=rest)
        libraries[library] = noted(libraries[library], library, device)
    for kernel in IN_MODULES:
        for library, pool in device.libraries.items():
            measured = [m for (name, _), rows in pool.items() if name == kernel for m in rows]
            beside = module_rest(libraries, rest, library)
            fitted, figures, spans = fit_all(measured, device.hardware, rest=beside)
            libraries[library] |= without_launches(fitted)
            held_out[library] |= figures
            ranges[library] |= spans
    shared = {kernel: {ANY: vector} for kernel in VECTOR} | with_fallbacks(libraries.pop("nccl", {}))
    shared |= with_fallbacks(carried_beyond(libraries.pop(LIBRARY, {}), beyond or {}))
    return Calibration(
        name=device.hardware.name,
        provenance=provenance
        | {
            "rows": device.rows,
            "rows_faster_than_the_roofline": device.impossible,
            "rows_of_very_large_groups": device.fallbacks,
            "kernels": {name: device.sources[name] for name in sorted(device.sources)},
            "refused": {f"{name} {'/'.join(group)}": note for (name, group), note in device.refused.items()},
        },
        constants=shared,
        libraries=with_exchanged({name: with_fallbacks(libraries[name]) for name in ENGINES if name in libraries}),
        held_out=held_out,
        range=ranges,
    )


def noted(constants: Constants, library: str, device: DeviceTables) -> Constants:
    """The same with what stands in for a refused kernel as the source of its constants."""
    return {
        kernel: {
            label: fit.model_copy(update={"source": device.refused.get((library, (kernel, label)), fit.source)})
            for label, fit in formats.items()
        }
        for kernel, formats in constants.items()
    }


def without_launches(constants: Constants) -> Constants:
    """The same with no more overhead than a sparse kernel has that is timed alone.

    What a module takes beyond it are launches from the host, which a step prices by itself; the errors are those with
    them.
    """
    kept = {"overhead": ALONE, "source": "whole modules, without their launches"}
    return {
        kernel: {label: fit.model_copy(update=kept) if fit.overhead > ALONE else fit for label, fit in formats.items()}
        for kernel, formats in constants.items()
    }


def module_rest(libraries: Mapping[str, Constants], rest: Calibration, engine: str) -> Calibration:
    """What prices the other kernels of a whole module of ``engine``, with their overheads as in a step."""
    known = {name: with_fallbacks(dict(libraries[name])) for name in ENGINES if name in libraries}
    return rest.model_copy(update={"libraries": known}).for_engine(engine).with_step(shared_step())


def with_exchanged(libraries: dict[str, Constants]) -> dict[str, Constants]:
    """The same with SGLang's kernels for exchanged experts lent to vLLM, which runs them too: DeepGEMM, masked and
    contiguous (vLLM ``fused_moe/experts/deep_gemm_moe.py``, ``batched_deep_gemm_moe.py``)."""
    kernel = "grouped_matmul.exchanged"
    measured = libraries.get("sglang", {}).get(kernel)
    if measured is None or "vllm" not in libraries:
        return libraries
    lent = {
        label: fit.model_copy(update={"basis": "transferred", "source": "sglang's kernel"})
        for label, fit in measured.items()
    }
    return libraries | {"vllm": libraries["vllm"] | {kernel: lent}}


def with_fallbacks(constants: Constants) -> Constants:
    """``any`` for each kernel (the 16-bit constants, or the first format's) and the patterns that move as much."""
    filled: Constants = {}
    for kernel, formats in constants.items():
        if not formats:
            continue
        if kernel.endswith(".exchanged"):  # a format without such a kernel has that of experts whose rows stay
            filled[kernel] = formats
            continue
        usual = formats.get(ANY) or formats.get("bf16") or next(iter(formats.values()))
        name = next(label for label, fit in formats.items() if fit is usual)
        spare = usual.model_copy(update={"basis": "transferred", "source": f"{name} kernel"})
        filled[kernel] = formats | ({} if ANY in formats else {ANY: spare})
    if "collective.all_gather" in filled:
        gathered = filled["collective.all_gather"][ANY]
        for kernel in ("collective.reduce_scatter", "collective.all_to_all", "collective.send"):
            filled[kernel] = {ANY: gathered.model_copy(update={"source": "timed together with all-gather"})}
        filled["collective.all_reduce"] = filled.get("collective.all_reduce", {}) | {
            ANY: gathered.model_copy(update={"basis": "transferred", "source": "all-gather, twice the bytes"})
        }
    over_nodes = {kernel: fits for kernel, fits in filled.items() if kernel.startswith("collective")}
    return filled | {
        kernel: {label: fit.model_copy(update=BEYOND) for label, fit in fits.items()}
        for kernel, fits in over_nodes.items()
    }
