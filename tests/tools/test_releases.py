"""Kernel tables by release: which rows count, and what a release gets of its own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("scipy")
pytest.importorskip("pandas")

from calibrate.fit import Measurement, stack
from inferplan.catalog.files import load_hardware
from inferplan.devices.constants import Fit
from tests.cases import for_each
from tools.fitting.tables.read import measurement_of, read_tables, refusal
from tools.fitting.tables.releases import FEWEST, changed, difference, off_the_fast_path, usable

H100 = load_hardware("h100-sxm")
ON_FILE = Fit(math=0.7, memory=0.8, overhead=3e-6, sharpness=2.0, terms={"depth": 5e-8})


def gemm(m: float = 16, n: int = 8192, ms: float = 0.05, **columns: object) -> SimpleNamespace:
    row = {"gpu": "h100-sxm", "framework": "VLLM", "kernel_source": "linear", "gemm_dtype": "bfloat16", "k": 8192}
    return SimpleNamespace(**(row | {"m": m, "n": n, "latency_ms": ms} | columns))


def rows(factor: float = 1.0, shapes: int = 200) -> list[Measurement]:
    """As many GEMMs as ``ON_FILE`` predicts them, times ``factor``."""
    found = [measurement_of("gemm", gemm(m=2.0 ** (i % 12), n=512 * (1 + i // 12))) for i in range(shapes)]
    predicted = stack(found, H100, ("depth",)).predict(ON_FILE)
    return [Measurement(op=m.op, seconds=float(t) * factor, source="linear") for m, t in zip(found, predicted)]


def test_rows_of_no_tokens_and_of_unknown_formats_say_why_they_are_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal("gemm", gemm(m=0)) == "m is 0"
    assert refusal("gemm", gemm(gemm_dtype="fp8_static")) == "gemm_dtype 'fp8_static' is no format on file"
    assert refusal("gemm", gemm()) is None
    header = "gpu,framework,version,kernel_source,gemm_dtype,m,n,k,latency_ms\n"
    good, odd = "h100-sxm,VLLM,0.1,linear,{},{},64,64,0.01\n", ("bfloat16", 0)
    text = header + good.format("bfloat16", 8) + good.format(*odd) + good.format("w4afp8", 8)
    (tmp_path / "gemm.csv").write_text(text, encoding="utf-8")
    assert len(read_tables(tmp_path)) == 1
    assert "gemm: 1 rows skipped, m is 0" in capsys.readouterr().err


def test_few_rows_and_kernels_launched_by_the_host_are_not_fitted() -> None:
    assert len(usable(rows(1.2), H100)) == 200
    assert usable(rows(1.2, FEWEST - 1), H100) == []
    launched = [Measurement(op=m.op, seconds=m.seconds + 60e-6, source="linear") for m in rows()]
    assert usable(launched, H100) == []


def test_a_release_is_compared_at_shapes_in_common() -> None:
    ratio, size, shared = difference(rows(1.3), rows(1.0, 150))
    assert (ratio, size, shared) == (pytest.approx(np.log(1.3)), pytest.approx(np.log(1.3)), 150)


@pytest.mark.parametrize(("middle", "slow"), [(2.0, ["0.18"]), (1.1, []), (0.5, [])])
def test_a_release_far_slower_than_those_around_it_ran_off_its_fast_path(middle: float, slow: list[str]) -> None:
    releases = {"0.24": rows(1.1), "0.14": rows(1.0), "0.18": rows(middle)}
    assert off_the_fast_path(releases) == slow


@for_each("factor", [0.8, 1.0, 1.5])
def test_a_release_has_the_constants_on_file_times_few_factors(factor: float) -> None:
    """All rows take ``factor`` times as long: every constant moves by it, and the shape of the law stays."""
    fit = changed(ON_FILE, stack(rows(factor), H100, ("depth",)))
    predicted = stack(rows(), H100, ("depth",)).predict(fit)
    assert predicted == pytest.approx([m.seconds * factor for m in rows()], rel=0.03)
    assert fit.sharpness == ON_FILE.sharpness
