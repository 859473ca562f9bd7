"""Layers and experts in host memory: two sides, one price, checked against sums done by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inferplan.answers.emit import command, launch
from inferplan.answers.explain import Explainer
from inferplan.answers.fit import FitAsked, fewest_devices, fit_everywhere, fit_on
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import load_hardware
from inferplan.catalog.offload import OffloadAsked
from inferplan.catalog.price_lists import price_book
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import InfeasibleError, InferplanError, MissingFactError, UsageError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.phase import by_place
from inferplan.estimate.run import estimate, estimate_unchecked
from inferplan.reports.estimate import estimate_report
from inferplan.reports.fit import memory_report
from inferplan.serving.flags import Flags, rules_of
from inferplan.work.parallel import Parallelism
from inferplan.work.routing import UNIFORM
from tests.cases import for_each

LOAD = StaticLoad(batch=1.0, prompt=512.0, output=128.0)
PCIE_4 = 31e9
"""Bytes a second of the slot of an RTX 4090, as docs/hardware.md states it."""
DDR5 = 12 * 8 * 4.8e9
"""Twelve channels of 64 bits at 4.8 GT/s."""
GDDR6X = 384 / 8 * 21e9
"""384 pins at 21 Gb/s."""


def deploy(model: str = "llama-3.1-70b", quant: str | None = "q4_0", gpu: str = "rtx-4090", **asked: Any) -> Deployment:
    """A model under llama.cpp, with layers on a host of 384 GB where ``asked`` names any."""
    ideal, host = asked.pop("ideal", False), {"host": "epyc-9654", "host_memory": "384GB"} if asked else {}
    offload = OffloadAsked(**{**host, **asked})
    return assemble(Request(model=model, gpu=gpu, quant=quant, engine="llama.cpp", ideal=ideal, offload=offload))


def priced(load: StaticLoad = LOAD, **asked: Any) -> Estimate:
    return estimate_unchecked(deploy(**asked), load)


def alone(load: StaticLoad = LOAD, **asked: Any) -> Estimate:
    """The same on the host alone."""
    request = Request(model="llama-3.1-70b", gpu="epyc-9654", quant="q4_0", engine="llama.cpp", memory="384GB", **asked)
    return estimate_unchecked(assemble(request), load)


@for_each("ideal", [True, False])
def test_all_layers_on_the_device_are_the_plain_estimate(ideal: bool) -> None:
    """80 layers and the head: bit for bit, more than there are too."""
    plain = priced(ideal=ideal)
    for layers in (81, 99):
        found = priced(ideal=ideal, gpu_layers=layers)
        assert (found.ttft, found.tpot, found.footprint.total) == (plain.ttft, plain.tpot, plain.footprint.total)
        assert found.deployment.offload is None and found.footprint.host is None


@for_each("ideal", [True, False])
def test_no_layer_on_the_device_is_the_host_alone(ideal: bool) -> None:
    """Nothing crosses the link below 32 rows: the two are equal to the bit; what the device holds is the runtime's own.
    A longer prompt is computed on the device, to which the weights are copied."""
    short = StaticLoad(batch=1.0, prompt=31.0, output=128.0)
    few, few_there = priced(short, ideal=ideal, gpu_layers=0), alone(short, ideal=ideal)
    assert (few.ttft, few.tpot) == (few_there.ttft, few_there.tpot)
    found, there = priced(ideal=ideal, gpu_layers=0), alone(ideal=ideal)
    assert found.ttft < there.ttft and found.tpot == there.tpot
    assert found.decode.wire == 0.0
    host = found.footprint.host
    assert (
        host is not None and host.total == there.footprint.total and host.kv_per_token == there.footprint.kv_per_token
    )
    assert (found.footprint.weights, found.footprint.state, found.footprint.activations) == (0.0, 0.0, 0.0)


def test_half_of_a_70b_in_ddr5_by_hand() -> None:
    """An ideal decode step reads every weight and every cached token once, each from the memory where it lies.

    A layer of Llama 3.1 70B: q and o 8192 x 8192, k and v 8192 x 1024, three matmuls 8192 x 28672; q4_0 is 18 bytes for
    32 weights. Its cache: 2 x 8 heads x 128 in 16 bits. ``-ngl 40`` leaves 39 layers and the head on the GPU.
    """
    layer = (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672) * 18 / 32
    past = 512 + 126 / 2
    cached = 2 * 8 * 128 * 2 * past
    head = 128256 * 8192 * (210 / 256 if deploy().precision.head.name == "q6_k" else 18 / 32)
    by_hand = 41 * (layer + cached) / DDR5 + 39 * (layer + cached) / GDDR6X + head / GDDR6X + 8192 * 2 / PCIE_4
    assert priced(ideal=True, gpu_layers=40).tpot == pytest.approx(by_hand, rel=1e-3)
    assert by_hand == pytest.approx(62.5e-3, rel=0.01)


def test_the_hidden_row_crosses_once() -> None:
    """``8192`` numbers of 16 bits for each token, over the slot; the logits stay where the head is."""
    found = priced(StaticLoad(batch=1.0, prompt=31.0, output=128.0), ideal=True, gpu_layers=40)
    assert by_place(found.decode)["link"] == pytest.approx(8192 * 2 / PCIE_4)
    assert by_place(found.prefill)["link"] == pytest.approx(31 * 8192 * 2 / PCIE_4)
    assert sum(by_place(found.decode).values()) == pytest.approx(found.decode.time - found.decode.host)


@for_each("ideal", [True, False])
def test_fewer_layers_on_a_faster_device_are_never_faster(ideal: bool) -> None:
    found = [priced(ideal=ideal, gpu_layers=layers) for layers in range(0, 82, 3)]
    for times in ([one.tpot for one in found], [one.ttft for one in found]):
        assert np.all(np.diff(times) < 0.0)


@for_each("layers", [0, 1, 2, 17, 40, 80])
def test_every_byte_lies_on_one_side(layers: int) -> None:
    """Weights and cache of both sides are those of the whole."""
    whole, found = priced().footprint, priced(gpu_layers=layers).footprint
    assert found.host is not None
    assert found.weights + found.host.weights == pytest.approx(whole.weights, rel=1e-12)
    assert found.kv_per_token + found.host.kv_per_token == pytest.approx(whole.kv_per_token, rel=1e-12)
    assert found.host.kv_per_token == min(81 - layers, 80) * 2 * 8 * 128 * 2


def test_a_tied_table_lies_on_both_sides() -> None:
    """llama.cpp keeps the table for lookups in host memory and a copy of it as the head on the device."""
    whole, found = priced(model="llama-3.2-1b").footprint, priced(model="llama-3.2-1b", gpu_layers=8).footprint
    assert found.host is not None
    table = 128256 * 2048 * deploy(model="llama-3.2-1b").precision.embedding.width
    assert found.weights + found.host.weights == pytest.approx(whole.weights + table, rel=1e-12)


@for_each("layers", [1, 12, 36])
def test_experts_on_the_host_by_hand(layers: int) -> None:
    """gpt-oss-120b: 36 layers of 128 experts, three matrices of 2880 x 2880, mxfp4 with a scale of 8 bits for 32.

    Each layer sends the rows there and their sums back: twice 2880 numbers of 16 bits a token.
    """
    whole = priced(model="gpt-oss-120b", quant=None, ideal=True)
    found = priced(model="gpt-oss-120b", quant=None, ideal=True, cpu_moe_layers=layers)
    experts = layers * 128 * 3 * 2880 * 2880 * 4.25 / 8
    table = 201088 * 2880 * 2
    assert found.footprint.host is not None
    assert found.footprint.host.weights == pytest.approx(experts + table)
    assert found.footprint.weights + found.footprint.host.weights == pytest.approx(whole.footprint.weights)
    assert found.footprint.host.kv_per_token == 0.0 and found.footprint.kv_per_token == whole.footprint.kv_per_token
    crossed = (2 * layers + 1) * 2880 * 2
    assert by_place(found.decode)["link"] == pytest.approx(crossed / PCIE_4)
    weights = 4 * 3 * 2880 * 2880 * 4.25 / 8  # four of the experts for one token
    rows = 4 * (2880 + 2 * 2880 + 2880 + 2880) * 2  # what goes into gate and up, out of them, into down, out of it
    looked_up = 2 * 2880 * 2
    assert by_place(found.decode)["host"] == pytest.approx((layers * (weights + rows) + looked_up) / DDR5)


@for_each("prompt", [31, 512, 513, 543, 544, 1024, 1025, 4096])
def test_prompts_copy_the_experts_of_the_host_by_hand(prompt: int) -> None:
    """26 layers of 128 experts of 3 x 2880 x 2880 weights in 4.25 bits. Each 512 rows copy the experts that they reach,
    and so does a remainder of 32 rows or more; the host computes a smaller one, whose rows cross twice a layer.

    Each of R rows has 4 of the 128 experts, all as popular: they reach 128 (1 - (124/128)^R), for 32 rows
    81.7.
    """
    asked = deploy(model="gpt-oss-120b", quant=None, ideal=True, gpu="rtx-3090", cpu_moe_layers=26)
    found = estimate_unchecked(
        replace(asked, routing=UNIFORM), StaticLoad(batch=1.0, prompt=float(prompt), output=128.0)
    )
    whole, rest = divmod(prompt, 512)
    reached = sum(128 * (1 - (124 / 128) ** rows) for rows in [512] * whole + [rest] * (rest >= 32))
    crossing = (prompt + (2 * 26 * rest if rest < 32 else 0)) * 2880 * 2  # from the table, and to the experts and back
    by_hand = (26 * reached * 3 * 2880 * 2880 * 4.25 / 8 + crossing) / PCIE_4
    assert by_place(found.prefill)["link"] == pytest.approx(by_hand, rel=1e-6)


@for_each("prompt", [512, 513, 543, 544, 1024])
def test_prompts_copy_the_layers_of_the_host_by_hand(prompt: int) -> None:
    """41 layers of Llama 3.1 70B in q4_0 are copied whole for 512 rows and for a remainder of 32 or more, beside the
    cache, once; the host reads all of them for a smaller remainder."""
    layer = (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672) * 18 / 32
    found = by_place(priced(StaticLoad(prompt=float(prompt), output=2.0), ideal=True, gpu_layers=40).prefill)
    copies = {512: 1, 513: 1, 543: 1, 544: 2, 1024: 2}[prompt]
    cached, hidden = prompt * 2 * 8 * 128 * 2, prompt * 8192 * 2
    assert found["link"] == pytest.approx((41 * (copies * layer + cached) + hidden) / PCIE_4, rel=1e-6)
    if prompt == 513:
        assert found["host"] == pytest.approx(41 * layer / DDR5, rel=0.01)
    elif prompt % 512 in (0, 32):
        assert found["host"] < 1e-3  # the table's rows


def test_one_row_over_a_physical_batch_takes_hardly_longer() -> None:
    """513 rows: the host computes the last one, with 4 experts of each of 36 layers (about 6 ms of 2 s); 4 ms more for
    a kernel of each layer there."""
    first, second = (
        float(priced(StaticLoad(prompt=rows, output=2.0), model="gpt-oss-120b", quant=None, cpu_moe_layers=36).ttft)
        for rows in (512.0, 513.0)
    )
    assert 0.002 < second - first < 0.02 < first


def test_prompts_with_experts_on_the_host_take_what_was_measured() -> None:
    """380 tokens/s of a prompt of 4096 in physical batches of 512, 25 to 28 layers of experts beside an RTX 3090
    (ai-maestro.online, "Drastically improve prompt processing speed")."""
    load = StaticLoad(batch=1.0, prompt=4096.0, output=16.0)
    found = priced(load, model="gpt-oss-120b", quant=None, gpu="rtx-3090", cpu_moe_layers=26)
    assert 4096 / found.ttft == pytest.approx(380.0, rel=0.15)


def test_layers_of_the_host_are_copied_for_a_prompt_by_hand() -> None:
    """41 layers of Llama 3.1 70B in q4_0 once for 512 rows, with the cache that they read; then the device computes."""
    layer = (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672) * 18 / 32
    cached, hidden = 512 * 2 * 8 * 128 * 2, 512 * 8192 * 2
    found = by_place(priced(ideal=True, gpu_layers=40).prefill)
    assert found["link"] == pytest.approx((41 * (layer + cached) + hidden) / PCIE_4, rel=1e-6)
    assert found["host"] < 1e-3  # the table's rows


def test_a_host_reads_as_much_of_its_memory_as_was_measured() -> None:
    """In sample: llama.cpp issue 11744 is a source of the 0.75 (4.31 tokens/s of a 70B in bf16 on 16 channels of
    DDR5-6400, 0.74 of their peak), so that this shows only that the constant arrives in TPOT.

    By hand 80 layers of 855.6 M weights and a head of 128,256 x 8,192 at 2 bytes are 139.0 GB a token, at 0.75 of
    16 x 8 B x 6.4 GT/s = 819.2 GB/s: 4.42 tokens/s; the cache and the host's work take a little more.
    """
    host = load_hardware("epyc-9654")
    memory = host.memory.model_copy(update={"bandwidth": 16 * 8 * 6.4e9, "kind": "DDR5-6400 x 16ch"})
    wide = host.model_copy(update={"memory": memory})
    request = Request(model="llama-3.1-70b", gpu="epyc-9654", quant="bf16", engine="llama.cpp", memory="384GB")
    found = estimate_unchecked(
        assemble(request, hardware_loader=lambda name: wide), StaticLoad(prompt=32.0, output=32.0)
    )
    weights = 2 * (80 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672) + 128256 * 8192)
    assert 1.0 / found.tpot == pytest.approx(0.75 * 819.2e9 / weights, rel=0.03)
    assert 1.0 / found.tpot < 0.75 * 819.2e9 / weights
    assert found.deployment.calibration.fit("matmul", "bf16").memory == 0.75  # type: ignore[union-attr]


def test_experts_on_a_host_read_less_of_its_memory_than_dense_layers() -> None:
    """By hand: 4 of 128 experts in each of 36 layers of gpt-oss-120b are 4 x 36 x 3 x 2,880 x 2,880 weights at
    4.25 bits, 1.90 GB, at 0.51 of 460.8 GB/s 8.1 ms; the rows of experts and their sums take a little more."""
    asked = OffloadAsked(cpu_moe_layers=36, host="epyc-9654", host_memory="384GB")
    found = estimate_unchecked(
        assemble(Request(model="gpt-oss-120b", gpu="rtx-4090", engine="llama.cpp", offload=asked)),
        StaticLoad(prompt=32.0, output=32.0),
    )
    weights = 4 * 36 * 3 * 2880 * 2880 * 4.25 / 8
    assert float(by_place(found.decode)["host"]) == pytest.approx(weights / (0.51 * 460.8e9), rel=0.03)


def test_layers_and_experts_together() -> None:
    """``-ngl 31 -ncmoe 20`` of 36 layers: six layers whole and the experts of fourteen more on the host."""
    both = priced(model="gpt-oss-120b", quant=None, ideal=True, gpu_layers=31, cpu_moe_layers=20)
    six = priced(model="gpt-oss-120b", quant=None, ideal=True, gpu_layers=31)
    twenty = priced(model="gpt-oss-120b", quant=None, ideal=True, cpu_moe_layers=20)
    footprints = [one.footprint.host for one in (both, six, twenty)]
    weights = [0.0 if one is None else one.weights for one in footprints]
    assert max(weights[1:]) < weights[0] < sum(weights[1:])
    assert by_place(both.decode)["link"] == pytest.approx((2 * 14 + 1) * 2880 * 2 / PCIE_4)
    assert both.tpot > max(six.tpot, twenty.tpot)


def test_a_load_must_fit_on_both_sides() -> None:
    """With 640 tokens behind a layer the card holds 48 layers beside its head, buffers and 1 GiB: ``-ngl 49``."""
    layer = (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672) * 18 / 32 + 640 * 2 * 8 * 128 * 2
    head, buffers = 128256 * 8192 * deploy().precision.head.width, 2048 * (2 * 8192 + 3 * 28672) * 2
    assert int((24563.5 * 2**20 - 2**30 - buffers - head) // layer) + 1 == 49
    with pytest.raises(InfeasibleError, match="not on rtx-4090\n") as error:
        estimate(deploy(gpu_layers=60), LOAD)
    assert error.value.hint == "--gpu-layers 49"
    assert estimate(deploy(gpu_layers=49), LOAD).footprint.fits
    with pytest.raises(InfeasibleError):
        estimate(deploy(gpu_layers=50), LOAD)
    with pytest.raises(InfeasibleError, match="not on epyc-9654\n") as error:
        estimate(deploy(gpu_layers=40, host_memory="18GB"), LOAD)
    there = 41 * layer + 128256 * 8192 * 18 / 32 + buffers + 2**30  # with the embedding, which stays on the host
    assert 21.9e9 < there < 22e9
    assert error.value.hint == "--gpu-layers 49, or --host-memory 22GB"
    assert estimate(deploy(gpu_layers=40, host_memory="22GB"), LOAD).footprint.fits
    with pytest.raises(InfeasibleError, match="not on rtx-4090 nor on epyc-9654") as error:
        estimate(deploy(gpu_layers=60, host_memory="4GB"), LOAD)
    assert error.value.hint == "a GPU and a host with more memory, or a narrower --quant"


def test_the_largest_batch_is_that_of_the_smaller_side() -> None:
    """41 layers of cache on a host with room for 5.5 sequences of 640 tokens beyond weights and buffers."""
    roomy = priced(gpu_layers=40).footprint
    assert roomy.host is not None
    each = 41 * 2 * 8 * 128 * 2 * 640
    tight = roomy.host.weights + roomy.host.reserve + float(roomy.host.activations) + 5.5 * each
    found = priced(gpu_layers=40, host_memory=f"{tight:.0f}B").footprint
    assert float(roomy.max_batch()) > float(found.max_batch()) == 5.0
    assert found.max_context() == int(5.5 * 640) < roomy.max_context()


def test_the_bandwidth_of_the_link_may_be_stated() -> None:
    found = priced(gpu="h100-sxm", ideal=True, gpu_layers=40, host_link="63GB/s")
    assert by_place(found.decode)["link"] == pytest.approx(8192 * 2 / 63e9)


@for_each(
    ("name", "gigabytes"),
    [("gh200-96gb", 450), ("gh200-144gb", 450), ("gb200", 225), ("gb300", 225), ("rtx-4090", 31), ("h100-pcie", 63)],
)
def test_links_to_the_host_on_file(name: str, gigabytes: float) -> None:
    """NVLink-C2C: 900 GB/s both ways of one Grace CPU, which GB200 and GB300 share between two GPUs."""
    assert deploy(gpu=name).hardware.to_host.bandwidth == gigabytes * 1e9


def test_a_host_link_is_one_of_the_links() -> None:
    with pytest.raises(ValueError, match="host_link: none of the links is named 'PCIe 9'"):
        HardwareSpec.model_validate(
            {
                "name": "own",
                "vendor": "own",
                "product": "own",
                "source": "own",
                "confidence": "low",
                "memory": {"label": "own", "bandwidth": "1 TB/s"},
                "peak": {},
                "host_link": "PCIe 9",
            }
        )


@for_each(
    ("change", "error", "words"),
    [
        ({"gpu_layers": 40, "host": None}, UsageError, "need a host"),
        ({"gpu_layers": 40, "host_memory": None}, MissingFactError, "--host-memory 384GB"),
        ({"host_link": "63GB/s"}, UsageError, "no option places weights on the host"),
        ({"cpu_moe_layers": 4}, UsageError, "expert"),
        ({"gpu_layers": 40, "host_link": "0B/s"}, UsageError, "not a positive rate"),
        ({"gpu_layers": 40, "host_link": "fast"}, UsageError, "--host-link"),
        ({"gpu_layers": 40, "gpu": "b200-hgx"}, MissingFactError, "--host-link 63GB/s"),
        ({"gpu_layers": 4, "model": "whisper-large-v3", "quant": None}, InferplanError, "decoder of text"),
        ({"cpu_moe_layers": 37, "model": "gpt-oss-120b", "quant": None}, UsageError, "36 layers"),
    ],
)
def test_what_is_not_known_is_refused(change: dict[str, Any], error: type[InferplanError], words: str) -> None:
    with pytest.raises(error, match=words):
        deploy(**change)


def test_other_engines_and_divisions_are_refused() -> None:
    offload = OffloadAsked(gpu_layers=40, host="epyc-9654", host_memory="384GB")
    request = Request(model="llama-3.1-70b", gpu="rtx-4090", quant="w4a16", offload=offload)
    with pytest.raises(UsageError, match=r"vllm .* computes no layers on the host"):
        assemble(request)
    with pytest.raises(UsageError, match="one device and a decoder of text"):
        assemble(Request(**{**vars(request), "quant": "q4_0", "engine": "llama.cpp", "parallel": Parallelism(pp=2)}))


def test_the_command_says_where_layers_lie() -> None:
    """``-ngl`` as it was asked for, all where no layer is the host's; copies for prompts are the engine's default."""

    def words(**asked: Any) -> str:
        there = OffloadAsked(host="epyc-9654", host_memory="384GB", **asked)
        request = Request(model="gpt-oss-20b", gpu="rtx-4090", engine="llama.cpp", offload=there)
        return " ".join(command(launch(request, context=2048, checkpoint="m.gguf")))

    assert "-ngl 9 -b" in words(gpu_layers=9)
    assert "-ngl 9 -ncmoe 20 -b" in words(gpu_layers=9, cpu_moe_layers=20)
    assert "-ngl all -ncmoe 20 -b" in words(cpu_moe_layers=20)
    assert "-ngl all -b" in words(gpu_layers=25)


def test_fit_shows_both_sides() -> None:
    """Requests are those that the smaller side holds; the most layers that fit are the answer of ``-ngl``."""
    offload = OffloadAsked(gpu_layers=40, host="epyc-9654", host_memory="384GB")
    asked = FitAsked(quant="q4_0", engine="llama.cpp", context=640, offload=offload)
    found = fit_on("llama-3.1-70b", "rtx-4090", asked, price_book())
    record = memory_report(found).record
    assert record["most_gpu_layers"] == 49 and record["host"]["weights_bytes"] > record["weights_bytes"]
    assert found.requests == int(float(found.footprint.max_batch()))
    with pytest.raises(InfeasibleError, match="not on rtx-4090"):
        fit_on("llama-3.1-70b", "rtx-4090", replace(asked, users=found.requests + 1), price_book())
    with pytest.raises(UsageError, match="need one GPU"):
        fit_everywhere("llama-3.1-70b", asked, price_book())


def test_explain_names_the_files_of_both_sides() -> None:
    offload = OffloadAsked(gpu_layers=40, host="epyc-9654", host_memory="384GB")
    request = Request(model="llama-3.1-70b", gpu="rtx-4090", quant="q4_0", engine="llama.cpp", offload=offload)
    explainer = Explainer(request=request, load=LOAD)
    told = explainer.explain("decode.ffn.down")
    places = [given.origin for given in told.inputs if given.symbol == "bandwidth"]
    assert [place.partition(".yaml")[0] for place in places] == [
        f"configs/hardware/{name}" for name in ("epyc-9654", "rtx-4090")
    ]
    shares = {given.origin.partition(":")[0] for given in told.inputs if given.symbol == "share of bandwidth"}
    assert "configs/engines/llama.cpp.yaml" in shares
    crossing = explainer.explain("decode.offload.hidden")
    assert any("rtx-4090.yaml" in given.origin and "links.0" in given.origin for given in crossing.inputs)
    host = explainer.estimate.footprint.host
    assert host is not None and explainer.explain("host.memory.total").value == host.total
    for name in explainer.names():
        assert explainer.explain(name).formula


def streaming(gib: float, gpu: str = "gh200-96gb", tp: int = 1, **more: Any) -> Estimate:
    """Llama 3.1 70B in fp8 under vLLM with so many GiB of each device's layers in the host's memory."""
    given = {"host": "epyc-9654", "host_memory": "384GB"} | more
    offload = OffloadAsked(cpu_offload_gb=gib, **given) if gib else OffloadAsked()
    parallel = Parallelism(tp=tp)
    request = Request(model="llama-3.1-70b", gpu=gpu, quant="fp8", ideal=True, offload=offload, parallel=parallel)
    return estimate_unchecked(assemble(request), LOAD)


@for_each("gib", [4.0, 20.0, 32.0])
def test_streamed_weights_take_their_bytes_over_the_link(gib: float) -> None:
    """A decode step on an ideal GH200 reads them at 450 GB/s and not at 4 TB/s; all but norms, 0.01 %, are matmuls."""
    plain, found = streaming(0.0), streaming(gib)
    away = gib * 2**30
    assert found.tpot - plain.tpot == pytest.approx(away / 450e9 - away / 4e12, rel=2e-3)
    assert plain.footprint.weights - found.footprint.weights == pytest.approx(away, rel=1e-12)
    assert found.footprint.streamed == pytest.approx(away, rel=1e-12)
    assert found.footprint.kv_per_token == plain.footprint.kv_per_token


def test_all_layers_streamed_by_hand() -> None:
    """More than there is: every layer over the link, table and head on the device; a step is bytes over bandwidths."""
    layer = 2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672 + 2 * 8192 * 2
    cached = 80 * 2 * 8 * 128 * 2 * (512 + 126 / 2)
    head = 128256 * 8192 * 2
    found = streaming(100.0)
    assert found.tpot == pytest.approx(80 * layer / 450e9 + (cached + head) / 4e12, rel=2e-3)
    assert found.footprint.streamed == pytest.approx(80 * layer)


def test_devices_share_the_memory_of_their_host() -> None:
    """Eight cards of 63 GB/s before one socket of 307.2 GB/s: 38.4 GB/s reach each while all read."""
    plain, found = (streaming(gib, "h100-nvl", tp=8, host="xeon-8480plus") for gib in (0.0, 2.0))
    away, own = 2 * 2**30, plain.deployment.hardware.memory.bandwidth
    assert found.tpot - plain.tpot == pytest.approx(away / 38.4e9 - away / own, rel=2e-3)
    assert found.footprint.streamed == pytest.approx(8 * away)


def test_more_on_the_host_is_never_faster() -> None:
    found = [streaming(gib) for gib in (0.0, 0.5, 1.0, 8.0, 16.0, 40.0)]
    assert np.all(np.diff([one.tpot for one in found]) > 0.0)
    assert np.all(np.diff([one.ttft for one in found]) >= 0.0)


def test_experts_are_read_as_far_as_they_are_touched() -> None:
    """gpt-oss-120b, all layers on the host: one token reads four experts of 128 a layer, not all of them."""
    offload = OffloadAsked(cpu_offload_gb=100.0, host="epyc-9654", host_memory="384GB")
    request = Request(model="gpt-oss-120b", gpu="gh200-96gb", ideal=True, offload=offload)
    found = estimate_unchecked(assemble(request), LOAD)
    plain = estimate_unchecked(assemble(replace(request, offload=OffloadAsked())), LOAD)
    attention = 2880 * (64 + 2 * 8) * 64 + 64 * 64 * 2880 + 128 * 2880
    read = 36 * (4 * 3 * 2880 * 2880 * 4.25 / 8 + 2 * attention)
    assert found.decode.time - plain.decode.time == pytest.approx(read / 450e9 - read / 4e12, rel=1e-3)


@for_each(
    ("change", "error", "words"),
    [
        ({"host": None}, UsageError, "need a host"),
        ({"host_memory": None}, MissingFactError, "--host-memory 384GB"),
        ({"host_memory": "16GB"}, InfeasibleError, "21.47 GB of all devices > 16.00 GB"),
        ({"gpu": "b200-hgx"}, MissingFactError, "--host-link 63GB/s"),
        ({"gpu_layers": 4}, UsageError, "llama.cpp's"),
    ],
)
def test_what_streaming_needs(change: dict[str, Any], error: type[InferplanError], words: str) -> None:
    with pytest.raises(error, match=words):
        streaming(20.0, **change)


def test_other_engines_stream_nothing() -> None:
    offload = OffloadAsked(cpu_offload_gb=4.0, host="epyc-9654", host_memory="384GB")
    with pytest.raises(UsageError, match=r"sglang .* reads no weights from the host"):
        assemble(Request(model="llama-3.1-8b", gpu="gh200-96gb", engine="sglang", offload=offload))


def test_the_host_holds_what_every_gpu_of_a_fit_leaves_there() -> None:
    """70B in bf16 needs four GPUs of 48 GB beside 20 GiB of each on the host: 4 x 21.47 = 85.9 GB there."""
    request = Request(model="llama-3.1-70b", gpu="l40s", ideal=True)
    away = OffloadAsked(cpu_offload_gb=20.0, host="epyc-9654", host_memory="90GB")
    found = fewest_devices(replace(request, offload=away), 8192, 1)
    assert not isinstance(found, str) and found.footprint.streamed == pytest.approx(4 * 20 * 2**30)
    assert "does not fit" in str(fewest_devices(replace(request, offload=replace(away, host_memory="50GB")), 8192, 1))


@for_each("replicas", [1, 2])
def test_replicas_are_said_to_have_a_host_each(replicas: int) -> None:
    asked = Request(
        model="llama-3.1-70b",
        gpu="gh200-96gb",
        quant="fp8",
        offload=OffloadAsked(cpu_offload_gb=20.0, host="epyc-9654", host_memory="384GB"),
        parallel=Parallelism(replicas=replicas),
    )
    notes = " ".join(estimate_report(estimate(assemble(asked), LOAD)).notes)
    assert ("its own host" in notes) is (replicas > 1)


def test_streaming_is_explained_and_emitted() -> None:
    offload = OffloadAsked(cpu_offload_gb=20.0, host="epyc-9654", host_memory="384GB")
    request = Request(model="llama-3.1-70b", gpu="gh200-96gb", quant="fp8", offload=offload)
    explainer = Explainer(request=request, load=LOAD)
    told = explainer.explain("decode.ffn.down")
    assert any("gh200-96gb.yaml" in given.origin and "host_link" in given.origin for given in told.inputs)
    weights = explainer.explain("memory.weights")
    assert weights.value == explainer.estimate.footprint.weights and "all weights" in weights.formula
    for name in explainer.names():
        assert explainer.explain(name).formula
    words = " ".join(command(launch(request, context=2048)))
    assert "--cpu-offload-gb 20 " in words


def test_a_simulated_batch_is_the_estimated_one() -> None:
    """Four users who decode together on both sides: the table's step is the estimate's, and the host admits no more."""
    deployment = deploy(gpu_layers=40, host_memory="22.8GB")
    host = estimate_unchecked(deployment, LOAD).footprint.host
    assert host is not None
    rules = rules_of(deployment, Flags(), 512.0, 128.0)
    room = 22.8e9 - host.weights - host.reserve - float(host.activations)
    assert rules.capacity == pytest.approx(room / (41 * 2 * 8 * 128 * 2), rel=1e-3)


def test_no_error_is_claimed_of_weights_that_nobody_measured_over_a_link() -> None:
    """With 20 GiB on the host most of a step is their matmuls; without any the constants on file have an error."""
    held = OffloadAsked(cpu_offload_gb=20.0, host="epyc-9654", host_memory="480GB")
    asked = Request(model="llama-3.1-70b", gpu="gh200-96gb", quant="fp8", offload=held)
    away, here = (estimate(assemble(one), StaticLoad()) for one in (asked, replace(asked, offload=OffloadAsked())))
    assert away.decode.band is None and away.prefill.band is None
    assert here.decode.band is not None
    assert away.band("tpot") is None and here.band("tpot") is None, "no system of a GH200 was measured under load"
