"""llama.cpp's ``--split-mode layer``: every GPU has layers of its own, and a token passes them in turn."""

from dataclasses import replace

import pytest

from inferplan.answers.fit import FitAsked, fewest_devices
from inferplan.answers.fit_owned import fit_owned
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.price_lists import price_book
from inferplan.errors import InfeasibleError, UsageError
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate
from inferplan.planning.space import Rejections, Space, candidates
from inferplan.work.parallel import Parallelism
from tests.cases import for_each
from tests.cli.conftest import Run

TWO = Request(model="llama-3.1-70b", gpu="2x-rtx-4090", quant="q4_k_m", engine="llama.cpp")
FILE = 42.52e9
"""Bytes of Meta-Llama-3.1-70B-Instruct-Q4_K_M.gguf, as Hugging Face lists it."""
TABLE = 128_256 * 8192 * 4.5 / 8
"""Of the embedding, of which a token reads one row."""
ONE_CARD = 1008e9
"""Bytes per second of one RTX 4090 (NVIDIA, Ada GPU architecture)."""


def test_a_token_reads_the_whole_file_at_the_rate_of_one_card() -> None:
    """41.9 GB / 1008 GB/s = 41.6 ms, half of it on each card; tensor parallelism would take half the time."""
    found = estimate(assemble(replace(TWO, ideal=True)), StaticLoad(batch=1.0, prompt=64.0, output=2.0))
    assert float(found.tpot) == pytest.approx((FILE - TABLE) / ONE_CARD, rel=0.005)
    real = estimate(assemble(TWO), StaticLoad(batch=1.0, prompt=1024.0, output=256.0))
    assert float(real.tpot) > (FILE - TABLE) / ONE_CARD


def test_a_number_of_gpus_is_stages() -> None:
    assert TWO.parallel == Parallelism(pp=2)
    assert replace(TWO, engine="vllm", quant="w4a16").parallel == Parallelism(tp=2)  # nobody named a division
    assert replace(TWO, gpu="4x-rtx-4090").parallel == Parallelism(pp=4)
    assert replace(TWO, gpu="rtx-4090", parallel=Parallelism(tp=2)).parallel == Parallelism(tp=2)
    assert Request(model="llama-3.1-70b", gpu="2x-rtx-4090").parallel == Parallelism(tp=2)
    with pytest.raises(UsageError) as other:
        Request(model="llama-3.1-70b", gpu="4x-rtx-4090", engine="llama.cpp", parallel=Parallelism(pp=2))
    assert other.value.hint.startswith("--pp 4")


@for_each(
    ("degrees", "hint"),
    [({"tp": 2}, "--pp 2"), ({"tp": 2, "pp": 2}, "--pp 4"), ({"dp": 2}, "--pp 2"), ({"cp": 2}, "--pp")],
)
def test_other_divisions_are_refused(degrees: dict[str, int], hint: str) -> None:
    with pytest.raises(UsageError, match="divides a model by layers") as refused:
        assemble(replace(TWO, gpu="rtx-4090", parallel=Parallelism(**degrees)))
    assert refused.value.hint.startswith(hint)


@for_each(
    "line",
    [
        "estimate llama-3.1-70b --gpu rtx-4090 --tp 2 --quant q4_k_m --engine llama.cpp",
        "emit llama.cpp llama-3.1-70b --gpu rtx-4090 --tp 2 --quant q4_k_m --checkpoint own.gguf",
        "fit llama-3.1-70b --have 2x-rtx-4090 --tp 2 --engine llama.cpp",
        "fit llama-3.1-70b --gpu rtx-4090 --tp 2 --engine llama.cpp",
        "plan llama-3.1-70b --gpu rtx-4090 --tp 2 --quant q4_k_m --engine llama.cpp --workload chat --rate 0.05",
        "compare llama-3.1-70b --gpu 2x-rtx-4090 --quant q4 --vs engine=llama.cpp,quant=q4,tp=2",
    ],
)
def test_every_command_says_so(run: Run, line: str) -> None:
    said = run(*line.split())
    assert "llama.cpp divides a model by layers: --pp 2, not --tp 2" in said.out + said.err


def test_candidates_of_a_plan_have_stages_alone() -> None:
    space = Space(base=replace(TWO, gpu="rtx-4090", parallel=Parallelism()), gpus=("rtx-4090",), engines=("llama.cpp",))
    found = {one.parallel for one, _ in candidates(space, Rejections())}
    assert found == {Parallelism(pp=pp) for pp in (1, 2, 4, 8)}


def test_fit_cuts_into_stages() -> None:
    """23.1 of 25.8 GB are taken on each card (21.3 GB of weights): two hold the load, one does not."""
    (best,) = fit_owned("llama-3.1-70b", "2x-rtx-4090", FitAsked(engine="llama.cpp"), price_book()).fitting
    assert best.fitting is not None and best.fitting.deployment.parallel == Parallelism(pp=2)
    fewest = fewest_devices(replace(TWO, gpu="rtx-4090", parallel=Parallelism()), 8192, 1)
    assert not isinstance(fewest, str) and fewest.deployment.parallel == Parallelism(pp=2)


def test_what_does_not_fit_names_stages() -> None:
    with pytest.raises(InfeasibleError) as refused:
        estimate(
            assemble(replace(TWO, gpu="rtx-4090", parallel=Parallelism())), StaticLoad(prompt=1024.0, output=256.0)
        )
    assert "--pp 2" in refused.value.hint and "--tp" not in refused.value.hint


def test_a_card_that_is_too_small_is_told_a_narrower_format() -> None:
    """70.55e9 weights: of 25.8 GB usable 1.5 GB are set aside and 2.7 GB are the cache of 8,192 tokens. That leaves
    21.6 GB, 2.45 bits per weight: iq2_xs has 2.3125 (ggml-common.h), iq2_s 2.5625."""
    with pytest.raises(InfeasibleError) as refused:
        fit_owned("llama-3.1-70b", "1x-rtx-4090", FitAsked(), price_book())
    assert "q4_k_m comes nearest: the weights do not fit, 18." in refused.value.because  # 42.5 + 1.5 - 25.8 GB
    assert "in iq2_xs-pure (quality: none published; so few bits may make answers worse): " in refused.value.hint
    held = fit_owned("llama-3.1-70b", "1x-rtx-4090", FitAsked(engine="llama.cpp", quant="iq2_xs-pure"), price_book())
    assert len(held.fitting) == 1
    with pytest.raises(InfeasibleError) as larger:  # 405e9 weights in 2 bits are 101 GB
        fit_owned("llama-3.1-405b", "1x-rtx-4090", FitAsked(), price_book())
    assert "-pure" not in larger.value.hint


@for_each(
    ("quant", "hint"),
    [
        ("iq2_xs", "iq2_xs-pure"),
        ("IQ2_XS", "iq2_xs-pure"),
        ("q4_k", "q4_k-pure"),
        ("int2-g64b", "--weights int2-g64b"),
        ("iq2_m", "its mix"),
    ],
)
def test_a_format_of_matrices_says_how_it_is_asked_for(quant: str, hint: str) -> None:
    with pytest.raises(UsageError, match="cannot read the precision") as refused:
        assemble(Request(model="llama-3.1-8b", gpu="rtx-4090", quant=quant, engine="llama.cpp"))
    assert refused.value.hint.startswith(hint)
