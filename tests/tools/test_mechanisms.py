"""Modules of DeepSeek-V4 that were measured, against the prices of the model on file; how their constants are added."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import inferplan
from inferplan.catalog.calibrations import load_calibration
from inferplan.catalog.files import config_root, load_hardware, read_yaml, validate
from inferplan.devices.constants import Calibration, Fit
from inferplan.estimate.roofline import price
from inferplan.models.layers import LayerContext
from inferplan.work.formats import find_format, uniform
from inferplan.work.ops import Elementwise, IndexSelect, Mask
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment
from tests.cases import for_each
from tools.fitting.tables.mechanism_fit import LABELS, held_out, measured, with_caches, without_mechanisms

H200 = load_hardware("h200-sxm")
FP8 = replace(uniform(), weights=find_format("fp8-block"), activations=find_format("fp8"), kv=find_format("fp8"))
ROWS = [
    # batch, cached tokens, heads of the rank, milliseconds
    (128, 2048, 8, 0.1322),
    (4, 32768, 16, 0.0895),
    (64, 8, 16, 0.0925),
    (1, 16384, 8, 0.0816),
    (8, 6144, 32, 0.0949),
    (16, 8192, 16, 0.0948),
    (2, 10240, 32, 0.0937),
    (4, 65536, 16, 0.0940),
    (8, 10240, 32, 0.0951),
    (1, 2048, 64, 0.1006),
    (1, 10240, 8, 0.0815),
    (1, 6144, 8, 0.0796),
]
"""aiconfigurator's ``dsv4_csa_generation_module``: vLLM 0.24.0 on H200 SXM, fp8 weights in blocks, fp8 cache, drawn at
random from its 204 rows."""


def module_seconds(batch: float, cached: float, heads: int) -> float:
    """One layer of DeepSeek-V4-Flash that chooses its entries, on one rank, without what ranks send each other."""
    model = inferplan.deploy("deepseek-v4-flash", "h200-sxm", tp=8).model
    layer = next(layer.mixer for layer in model.sequence if getattr(layer.mixer, "indexer", None) is not None)
    context = LayerContext(
        d_model=model.d_model,
        precision=FP8,
        parallel=Parallelism(tp=64 // heads),
        segments=(Segment(batch=batch, new=1.0, past=cached),),
        peaks=frozenset(H200.peak),
    )
    ops = [op for op in layer.ops(context) if op.kind != "collective"]
    constants = load_calibration(H200, None, False, "vllm")
    return sum(float(price(op, H200, constants).total) for op in ops)


def test_decodes_of_deepseek_v4_on_h200() -> None:
    """At least 80 % of rows lie in the band on file, and the median error is no more than that of its worst tenth."""
    fit = load_calibration(H200, None, False, "vllm").fit("mla.sparse.decode", "bf16-kv-fp8-compressed")
    assert fit is not None and fit.band is not None and fit.basis == "calibrated"
    predicted = np.array([module_seconds(*row[:3]) for row in ROWS])
    ratios = np.array([row[3] * 1e-3 for row in ROWS]) / predicted
    low, high = fit.band
    assert np.mean((ratios >= low) & (ratios <= high)) >= 0.8
    assert np.median(np.abs(1.0 / ratios - 1.0)) <= fit.error["p90"] < 0.2


@for_each(("tokens", "milliseconds"), [(16384, 0.579), (131072, 4.592)])
def test_streams_spread_on_h200(tokens: float, milliseconds: float) -> None:
    """aiconfigurator's ``mhc_module``, ``mhc_post`` of vLLM on H200 SXM: 4 streams of 4,096, two sites."""
    bf16 = find_format("bf16")
    op = Elementwise(
        name="s", tokens=tokens, width=16384, base=bf16, reads=1.25, flops=9.0, form="hyper-spread", count=2.0
    )
    priced = price(op, H200, load_calibration(H200, None, False, "vllm"))
    assert float(priced.total) == pytest.approx(milliseconds * 1e-3, rel=0.03)


def test_labels_of_the_mechanisms() -> None:
    bf16, fp8 = find_format("bf16"), find_format("fp8")
    entries, sizes = Mask(kind="compressed", size=128, rate=4, top=512), {"batch": 1.0, "new": 1.0, "past": 4096.0}
    index = IndexSelect(name="i", heads=64, key_dim=128, top_k=512, mask=entries, base=fp8, kv=fp8, **sizes)
    assert index.label == "fp8-compressed"
    assert replace(index, mask=Mask()).label == "fp8"
    assert replace(index, mask=Mask(), base=bf16, block=128).label == "bf16-blocks"


def on_file() -> Calibration:
    file = config_root() / "calibration" / "h200-sxm.yaml"
    return validate(file, read_yaml(file), Calibration)


def test_other_constants_stay_as_they_are() -> None:
    found = on_file()
    bare = without_mechanisms(found)
    for engine, constants in found.libraries.items():
        for kernel, formats in constants.items():
            others = {label: fit for label, fit in formats.items() if not label.endswith(LABELS)}
            assert bare.libraries[engine].get(kernel, {}) == others
    assert bare.constants == found.constants
    assert any(label.endswith(LABELS) for label in found.libraries["vllm"]["mla.sparse"])


def test_entries_of_16_bits_take_the_kernel_of_8() -> None:
    fit = Fit(memory=0.5, n=7)
    bare = Calibration(name="t", libraries={"vllm": {"mla.sparse": {"bf16-kv-fp8-compressed": fit}}})
    lent = with_caches(bare).libraries["vllm"]["mla.sparse"]["bf16-compressed"]
    assert (lent.memory, lent.n, lent.basis) == (0.5, 7, "transferred")
    assert "bf16-kv-fp8-compressed" in lent.source


def test_rows_become_measurements() -> None:
    """Of hyper-connections both sites are in a row: two runs of each operator, the second beside what is fitted."""
    columns = {"table": "mhc_module", "kernel_source": "tilelang_mhc_pre", "framework": "vllm", "gemm_type": "bfloat16"}
    columns |= {"kv_cache_dtype": "bfloat16"}
    frame = pd.DataFrame(
        [columns | {"num_heads": 0, "hidden_size": 4096, "batch_size": 1, "isl": 2.0**n, "step": 0, "seconds": 1e-5}
         for n in range(30)]
    )  # fmt: skip
    found = measured(frame, "hyper.collapse", H200)
    (key,) = found
    assert key == ("vllm", ("elementwise", "hyper-collapse"))
    names = [op.name for op in found[key][0].rest]
    assert names.count("hyper.collapse") == 1 and names.count("hyper.mix") == 2
    train, test = held_out(found[key])
    assert (len(train), len(test)) == (24, 6)
    assert not measured(frame[:24], "hyper.collapse", H200)
