"""Top-k, top-p and penalties: public times of kernels, numbers by hand, laws, and refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import load_hardware
from inferplan.catalog.filters import as_filed, asked_filters, blocks_of, filter_constants, with_filters
from inferplan.errors import UsageError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.graph import build
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.roofline import price
from inferplan.work.filters import Filters
from inferplan.work.step import Segment, Step
from tests.cases import for_each
from tools.fitting.filters import PASSES, _row_passes, fitted, passes, timed

VOCAB = 128_256


def seconds(kernel: str, filters: str, gpu: str, rows: float, vocabulary: int) -> float:
    hardware = load_hardware(gpu)
    chosen = as_filed(Filters(asked=tuple(filters.split("+")), kernel=kernel), blocks_of(hardware) or 1)
    (op,) = chosen.ops(rows, vocabulary, 1)
    return float(price(op, hardware, filter_constants()).time)


def estimated(batch: float = 64.0, **asked: str | None) -> Estimate:
    request = Request(**{"model": "llama-3.1-8b", "gpu": "h100-sxm", **asked})  # type: ignore[arg-type]
    return Estimate(deployment=assemble(request), load=StaticLoad(batch=batch, prompt=512.0, output=128.0))


def added(batch: float, sampling: str = "top-k,top-p", **asked: str) -> float:
    return float(estimated(batch, sampling=sampling, **asked).tpot - estimated(batch, **asked).tpot)


@for_each(
    ("kernel", "filters", "gpu", "rows", "vocabulary", "measured"),
    [
        ("sort", "top-p", "h200-sxm", 512, 131_072, 6.150e-3),  # vllm 40376
        ("triton", "top-k", "h200-sxm", 128, 131_072, 0.301e-3),  # vllm 40376
        ("flashinfer", "top-p", "h200-sxm", 512, 131_072, 0.372e-3),  # vllm 40376
        ("triton-8", "top-p", "mi350x", 512, 131_072, 0.795e-3),  # vllm 51507
        ("sort", "top-k+top-p", "h200-sxm", 128, 262_144, 4.913e-3),  # LightLLM 1573, in no fit
        ("triton-8", "top-k", "mi350x", 1024, 131_072, 0.640e-3),  # vllm 51507, in no fit
    ],
)
def test_published_times(kernel: str, filters: str, gpu: str, rows: int, vocabulary: int, measured: float) -> None:
    assert seconds(kernel, filters, gpu, float(rows), vocabulary) == pytest.approx(measured, rel=0.25)


def test_by_hand() -> None:
    """64 rows are fewer than 132 multiprocessors: one sweep of the vocabulary. 300 rows are 2.27 of them."""
    few = 18.7e-6 + 1.051e-9 * VOCAB + 8 * 64 * VOCAB / (0.2867 * 3.35e12)
    assert seconds("flashinfer", "top-k+top-p", "h100-sxm", 64.0, VOCAB) == pytest.approx(few)
    many = 18.7e-6 + 1.051e-9 * VOCAB * 300 / 132 + 8 * 300 * VOCAB / (0.2867 * 3.35e12)
    assert seconds("flashinfer", "top-k+top-p", "h100-sxm", 300.0, VOCAB) == pytest.approx(many)
    assert added(64.0) == pytest.approx(few)


def test_without_multiprocessors_on_file_those_of_a_relative_count() -> None:
    one, other = (seconds("flashinfer", "top-p", gpu, 512.0, VOCAB) for gpu in ("b300-hgx", "b200-hgx"))
    assert one == pytest.approx(other)


def test_penalties_by_hand() -> None:
    """fp32 logits read and written, int32 counts and a bit of the prompt: 12.125 bytes a logit."""
    bare = estimated(ideal=True, sampling="penalties").tpot - estimated(ideal=True).tpot  # type: ignore[arg-type]
    assert float(bare) == pytest.approx(12.125 * 64 * VOCAB / 3.35e12)


@for_each("engine", ["vllm", "vllm@0.20", "sglang"])
def test_more_rows_never_take_less(engine: str) -> None:
    times = [added(batch, engine=engine) for batch in (1.0, 8.0, 64.0, 132.0, 133.0, 256.0)]
    assert times == sorted(times) and times[0] > 0.0


def test_more_asked_for_never_takes_less() -> None:
    assert added(64.0, "penalties,top-p") > max(added(64.0, "penalties"), added(64.0, "top-p")) > 0.0


def test_each_engine_has_its_kernel() -> None:
    """vLLM took FlashInfer in between 0.20 and 0.33, which was faster than Triton, and that than a sort."""
    slow, middle, fast = (added(256.0, "top-p", engine=f"vllm@{one}") for one in ("0.12", "0.20", "0.33"))
    assert slow > middle > fast
    filters = assemble(Request(model="llama-3.1-8b", gpu="mi355x", sampling="top-p")).filters
    assert filters is not None and filters.kernel == "triton-8"


def test_a_step_without_logits_filters_nothing() -> None:
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", sampling="top-p"))
    step = Step(segments=(Segment(batch=1.0, new=512.0, past=0.0),), logits=0.0)
    ops = [op for stage in build(deployment, step) for op in stage.ops if op.name == "sampling.filter"]
    assert [float(op.count) for op in ops] == [0.0]


def test_service_of_public_arms() -> None:
    """vllm 11394: 47.40 requests/s without top-p, 40.20 with a sort, 47.15 with FlashInfer; model and GPU not told."""
    for engine, measured in (("vllm@0.12", 40.20 / 47.40), ("vllm@0.33", 47.15 / 47.40)):
        ratio = estimated(256.0, engine=engine).tpot / estimated(256.0, engine=engine, sampling="top-p").tpot
        assert float(ratio) == pytest.approx(measured, abs=0.03)


def test_constants_are_those_of_the_fit() -> None:
    on_file = filter_constants().constants["elementwise"]
    rows = [row for row in timed() if row.kernel in ("flashinfer", "sort")]
    for label, (overhead, swept, memory) in fitted(rows).items():
        fit = on_file[label]
        found = (fit.overhead, fit.terms["swept"], fit.memory)
        assert found == pytest.approx((overhead, swept, memory), rel=0.01, abs=1e-12)


def test_a_sort_goes_another_way_with_few_rows() -> None:
    """PyTorch's SortStable.cu: all rows in one sort below 128, each in a thread block of its own from there; eight of
    256 threads fit on a multiprocessor. In no fit: vllm 33538, H100, 1,024 rows in 16.312 and 14.857 ms."""
    few = 114.6e-6 + 8 * 127 * VOCAB / (0.0151 * 3.35e12)
    assert seconds("sort", "top-p", "h100-sxm", 127.0, VOCAB) == pytest.approx(few)
    many = 114.6e-6 + 5.77e-9 * VOCAB + 8 * 128 * VOCAB / (0.0207 * 3.35e12)
    assert seconds("sort", "top-p", "h100-sxm", 128.0, VOCAB) == pytest.approx(many)
    assert seconds("sort", "top-p", "h100-sxm", 1024.0, 131_072) == pytest.approx(16.312e-3, rel=0.05)
    assert seconds("sort", "top-k", "h100-sxm", 1024.0, 131_072) == pytest.approx(14.857e-3, rel=0.05)


def test_the_longest_row_of_a_rejecting_kernel_by_hand() -> None:
    """64 rows at once: (1 + 0.41 ln 64) mean rows; 300 rows: 300/132 of them, and the longest of 132."""
    for rows, longest in ((64.0, 1 + 0.41 * 4.1589), (300.0, 300 / 132 + 0.41 * 4.8828)):
        by_hand = 11.9e-6 + 0.351e-9 * VOCAB * longest + 8 * rows * VOCAB / (0.558 * 3.35e12)
        assert seconds("flashinfer", "top-k", "h100-sxm", rows, VOCAB) == pytest.approx(by_hand, rel=1e-4)


def test_passes_are_those_of_the_kernel_step_by_step() -> None:
    """k = 1 of four alike tokens: the first draw has none above it, and ends. Two tokens of 0.75 and 0.25 with k = 1:
    three of four draws end at once, the others go on with the larger one: 1 + 1/4 rounds, of which each reads up to
    what it draws, the first token or half of both."""
    draw = np.random.default_rng(1)
    assert all(_row_passes(np.full(4, 0.25), 1, draw) < 2.0 for _ in range(20))
    mean = np.mean([_row_passes(np.array([0.75, 0.25]), 1, draw) for _ in range(4000)])
    assert mean == pytest.approx(1.25 + 0.25 * 0.5, abs=0.03)


def test_passes_on_file_are_counted() -> None:
    """Of 60 rows, where the mean of 60 is some 5 % off."""
    for kept, deviation in ((50, None), (10, 1.0), (10, 5.0)):
        assert passes(128_512, kept, deviation, 60).mean == pytest.approx(PASSES[kept, deviation].mean, rel=0.15)


def test_parts_of_the_option() -> None:
    assert asked_filters(" top-p, TOP-K,top-p") == ("top-k", "top-p")
    for text in ("", "min-p", "top-p,beam"):
        with pytest.raises(UsageError, match="is not known"):
            asked_filters(text)


@for_each(
    ("asked", "because"),
    [
        ({"engine": "trtllm"}, "its kernels for top-k"),
        ({"engine": "sglang", "gpu": "mi300x"}, "its kernel on devices of AMD"),
        ({"engine": "vllm@0.12", "sampling": "top-k"}, "its kernel for top-k alone"),
        ({"engine": "vllm@0.20", "sampling": "penalties"}, "grows with the answer"),
        ({"gpu": "vr200-preliminary"}, "its multiprocessors"),
        ({"model": "bert-base-uncased"}, "it draws no token after token"),
    ],
)
def test_refusals(asked: dict[str, str], because: str) -> None:
    with pytest.raises(UsageError) as refused:
        estimated(**{"sampling": "top-p", **asked})
    assert because in str(refused.value.because)


def test_a_part_of_a_model_samples_nothing() -> None:
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm"))
    part = replace(deployment, model=deployment.model.model_copy(update={"bare": True}))
    with pytest.raises(UsageError, match="is part of a model"):
        with_filters(part, "top-p")


def test_what_it_rests_on() -> None:
    found = estimated(sampling="top-k").deployment.further()
    assert found["sampling"] == "top-k"
    assert (found["rests_on"]["sampling"]["kind"], found["rests_on"]["sampling"]["in_band"]) == ("published", False)
    bytes_alone = estimated(sampling="penalties").deployment.further()["rests_on"]["sampling"]["kind"]
    assert bytes_alone == "formula"
