"""Instances of Multi-Instance GPU: by hand from NVIDIA's tables, laws of parts and wholes, prices, refusals."""

from __future__ import annotations

from itertools import product

import pytest

from inferplan.answers.emit.nodes import resource
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import load_hardware, mig_table
from inferplan.catalog.price_lists import price_book
from inferplan.devices.mig import cuts
from inferplan.errors import MissingFactError, UsageError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.load import StaticLoad
from inferplan.work.parallel import Parallelism
from tests.cases import for_each
from tests.cli.conftest import Run, run  # noqa: F401

GIB = 2**30
EVERY = [(gpu, profile) for gpu, device in mig_table().gpus.items() for profile in device.profiles]
GUIDE = {
    "1g": (1, 1, 7),
    "1g wide": (2, 1, 4),
    "2g": (2, 2, 3),
    "3g": (4, 4, 2),
    "4g": (4, 4, 1),
    "7g": (8, 8, 1),
}
"""Memory slices, eighths of the L2 and instances of a GPU: MIG User Guide, tables 6 to 8."""


def test_an_instance_by_hand() -> None:
    """H100, 3g.40gb: 60 of 132 multiprocessors, so 989.4 x 60/132 = 449.7 TFLOP/s; half of 3.35 TB/s and of 50 MiB."""
    found = load_hardware("h100:3g.40gb")
    assert found.name == "h100-sxm:3g.40gb"
    assert found.peak["bf16"] == pytest.approx(449.727e12, rel=1e-5)
    assert found.memory.bandwidth == pytest.approx(1.675e12)
    assert found.memory.usable == 39.5 * GIB
    assert found.cache == 25 * 2**20
    assert (found.units, found.node, found.power, found.links) == (60, 16, None, [])
    assert found.part is not None
    assert found.part.stranded == "12 of 132 multiprocessors and 0 of 8 memory slices"


@for_each(("gpu", "profile"), EVERY)
def test_profiles_are_those_of_the_guide(gpu: str, profile: str) -> None:
    """The names say it: slices before the point, gigabytes after it, and which 1g has the memory of a 2g."""
    row, names = mig_table().gpus[gpu].profiles[profile], list(mig_table().gpus[gpu].profiles)
    compute, _, label = profile.partition(".")
    wide = compute == "1g" and f"2g.{label}" in names
    eighths, cache, instances = GUIDE["1g wide" if wide else compute]
    cache = 2 if wide and gpu == "b200-hgx" else cache  # its table 9
    assert (row.memory_slices, row.cache_slices, row.instances) == (eighths, cache, instances)
    assert 0.85 < row.memory / GIB / int(label.removesuffix("gb")) < 1.0
    if compute in ("7g", "4g", "3g"):
        units = load_hardware(gpu).units or 0
        assert row.units == pytest.approx(int(compute[0]) / 7 * units, rel=0.17)  # "roughly"


@for_each(("gpu", "profile"), EVERY)
def test_instances_sum_to_no_more_than_the_gpu(gpu: str, profile: str) -> None:
    whole, one = load_hardware(gpu), load_hardware(f"{gpu}:{profile}")
    assert one.part is not None
    count = one.part.instances
    assert count * (one.units or 0) <= (whole.units or 0)
    assert count * one.memory.bandwidth <= whole.memory.bandwidth * (1 + 1e-12)
    assert count * one.usable <= whole.usable
    assert count * (one.cache or 0) <= (whole.cache or 0)
    assert all(count * one.peak[math] <= whole.peak[math] * (1 + 1e-12) for math in whole.peak)


@for_each("gpu", ["h100-sxm:7g.80gb", "h200-sxm:7g.141gb"])
def test_the_largest_instance_is_the_gpu_without_its_links(gpu: str) -> None:
    """Of H100 and H200; an A100 has 98 of its 108 multiprocessors in MIG mode, so 0.907 of its peak."""
    whole, all_of_it = load_hardware(gpu.partition(":")[0]), load_hardware(gpu)
    assert all_of_it.peak == whole.peak
    assert all_of_it.memory.bandwidth == whole.memory.bandwidth
    assert all_of_it.usable == pytest.approx(whole.usable, rel=2e-3)
    assert (whole.links != [], all_of_it.links) == (True, [])
    assert load_hardware("a100:7g.80gb").peak["bf16"] == pytest.approx(312e12 * 98 / 108)


@for_each("ideal", [True, False])
def test_a_decode_step_of_half_the_bandwidth_takes_twice_as_long(ideal: bool) -> None:
    """Without overheads a small batch is bound by memory: 4/8 of it twice, 1/8 eight times the time."""
    times = {}
    for gpu in ("h100-sxm", "h100-sxm:3g.40gb", "h100-sxm:1g.10gb"):
        deployment = assemble(Request(model="llama-3.2-1b", gpu=gpu, ideal=ideal))
        times[gpu] = float(Estimate(deployment=deployment, load=StaticLoad(batch=1.0, prompt=128.0, output=8.0)).tpot)
    whole, half, eighth = times.values()
    if ideal:
        assert (half / whole, eighth / whole) == (pytest.approx(2.0, rel=1e-6), pytest.approx(8.0, rel=1e-6))
    assert whole < half < eighth


def test_no_error_is_known() -> None:
    """The constants of the whole stand for it, and nobody knows how far off they are."""
    found = assemble(Request(model="llama-3.2-1b", gpu="h100-sxm:3g.40gb")).calibration
    assert found.name == "h100-sxm"
    assert found.basis == "transferred"
    assert not any(fit.error for formats in found.constants.values() for fit in formats.values())
    assert "no MIG instance was measured" in found.note


def test_whole_gpus_are_bought() -> None:
    """An instance of 8 GPUs at 55.04 is 16 of 3g.40gb; a GPU at 2.00 is two of them, one by one as it is sold."""
    (eight,) = price_book(stated=("h100-sxm=55.04/8",)).offers("h100-sxm:3g.40gb")
    assert (eight.size, eight.per_hour, eight.per_device) == (16, 55.04, pytest.approx(3.44))
    (single,) = price_book(stated=("h100-sxm=2.00",)).offers("h100-sxm:1g.10gb")
    assert (single.size, single.per_hour) == (7, 2.00)
    assert "20 of 132 multiprocessors and 1 of 8 memory slices are in none of them" in single.note
    (own,) = price_book(stated=("h100-sxm=2.00", "h100-sxm:1g.10gb=0.30")).offers("h100-sxm:1g.10gb")
    assert (own.gpus, own.per_hour) == (None, 0.30)


@for_each(
    ("gpu", "says"),
    [
        ("l40s:1g.10gb", "no MIG profiles of l40s are on file"),
        ("h100-sxm:5g.50gb", "h100-sxm has no MIG profile 5g.50gb on file"),
        ("b200-hgx:3g.90gb", "b200-hgx has no MIG profile 3g.90gb on file"),
    ],
)
def test_what_is_not_on_file_is_refused(gpu: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        load_hardware(gpu)


def test_a_replica_is_one_instance() -> None:
    request = Request(model="llama-3.2-1b", gpu="h100-sxm:3g.40gb")
    for parallel in (Parallelism(tp=2), Parallelism(pp=2)):
        with pytest.raises(UsageError, match=r"MIG instances .* and a replica of several devices"):
            assemble(Request(model="llama-3.2-1b", gpu="h100-sxm:3g.40gb", parallel=parallel))
    assemble(Request(model=request.model, gpu=request.gpu, parallel=Parallelism(replicas=2)))
    with pytest.raises(MissingFactError, match=r"the power of h100-sxm:3g\.40gb"):
        _ = load_hardware(request.gpu).tdp
    assert resource(load_hardware(request.gpu)) == "nvidia.com/mig-3g.40gb"
    assert resource(load_hardware("h100-sxm")) == "nvidia.com/gpu"


def test_a_plan_and_a_fleet_of_instances(run: Run) -> None:  # noqa: F811
    """Instances are counted where GPUs are; two of them are one GPU to buy."""
    asked = ("--rate", "100", "--prompt", "512", "--output", "64", "--ttft", "1s", "--tpot", "50ms", "--most", "2")
    words = ("plan", "llama-3.2-1b", "--gpu", "h100-sxm:3g.40gb", "--quant", "native", "--aggregated", *asked)
    record = run(*words, "--price", "h100-sxm=2.00", "--format", "json").json
    assert (record["plan"]["gpu"], record["plan"]["tp"]) == ("h100-sxm:3g.40gb", 1)
    assert (record["cost"]["instances"], record["cost"]["instance_gpus"], record["cost"]["per_hour"]) == (1, 2, 2.00)


@for_each(
    "names", [("1g.10gb", "3g.40gb"), ("1g.10gb", "2g.20gb", "4g.40gb"), ("1g.20gb", "2g.20gb", "3g.40gb", "7g.80gb")]
)
def test_cuts_are_those_that_have_a_place(names: tuple[str, ...]) -> None:
    """Against every number of each profile, tried with every place of every instance."""
    rows = [mig_table().gpus["h100-sxm"].profiles[name] for name in names]

    def fits(wanted: list[int], taken: frozenset[int]) -> bool:
        if not wanted:
            return True
        size = rows[wanted[0]].memory_slices
        places = [frozenset(range(at, at + size)) for at in rows[wanted[0]].starts]
        return any(fits(wanted[1:], taken | one) for one in places if not taken & one and max(one) < 8)

    every = product(*(range(one.instances + 1) for one in rows))
    able = {one for one in every if fits([place for place, count in enumerate(one) for _ in range(count)], frozenset())}
    more = [tuple(int(at == place) for at in range(len(rows))) for place in range(len(rows))]
    full = {one for one in able if not any(tuple(map(sum, zip(one, step))) in able for step in more)}
    assert set(cuts(rows)) == full
    alone = [cuts([one]) for one in rows]
    assert alone == [[(one.instances,)] for one in rows]  # "instances" of nvidia-smi mig -lgip


def test_cuts_by_hand() -> None:
    """Seven of one slice, or four beside one of four, or two of four."""
    profiles = mig_table().gpus["h100-sxm"].profiles
    assert sorted(cuts([profiles["1g.10gb"], profiles["3g.40gb"]])) == [(0, 2), (4, 1), (7, 0)]
