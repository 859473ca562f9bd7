"""Dense quantised matmuls by the fastest library of a device, shape by shape.

The libraries' benchmarks time different things beside the matmul: TensorRT-LLM's nvfp4 rows hold a quantisation that
takes 0.19 us for each 128 columns (0.05 in the others), SGLang's block-fp8 rows on B200 launches from the host (12.7
us). In an engine the quantisation is fused into its neighbours and a graph launches, so of each shape the library
counts that the fits say is the fastest, for all engines. Matmuls of 16 bits keep their own library: all were timed
alike.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from calibrate.fit import TERMS_OF, Measurement, fit_stack, stack
from inferplan.devices.releases import FASTEST
from tools.fitting.tables.choose import ENGINES, FEWEST, DeviceTables, Pool

KERNEL, WIDE = "matmul", "bf16"


def with_fastest(device: DeviceTables) -> DeviceTables:
    """The device's rows with those of the fastest library for the dense matmuls of every quantised format that several
    libraries timed."""
    libraries: dict[str, Pool] = {name: dict(pool) for name, pool in device.libraries.items()}
    sources = {name: dict(kernels) for name, kernels in device.sources.items()}
    labels = {label for pool in libraries.values() for kernel, label in pool if kernel == KERNEL and label != WIDE}
    for label in sorted(labels):
        group = (KERNEL, label)
        timed = {name: libraries[name][group] for name in ENGINES if group in libraries.get(name, {})}
        rows = fastest(timed, device) if len(timed) > 1 else []
        if len(rows) < FEWEST:
            continue
        called = ", ".join(f"{name} {sources[name]['/'.join(group)]}" for name in timed)
        for name in timed:
            libraries[name][group], sources[name]["/".join(group)] = rows, f"{FASTEST}{called}"
    return replace(device, libraries=libraries, sources=sources)


def fastest(timed: dict[str, list[Measurement]], device: DeviceTables) -> list[Measurement]:
    """The rows of each library that its own fit says take no longer than by the fit of any other."""
    stacks = {name: stack(rows, device.hardware, TERMS_OF[KERNEL]) for name, rows in timed.items()}
    fits = {name: fit_stack(stacked) for name, stacked in stacks.items()}
    kept: list[Measurement] = []
    for name, rows in timed.items():
        own = stacks[name].predict(fits[name])
        others = [stacks[name].predict(fit) for other, fit in fits.items() if other != name]
        kept += [row for row, first in zip(rows, np.all(own <= np.array(others), axis=0)) if first]
    return kept
