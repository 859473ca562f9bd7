"""Timing on this CPU, and whole models: that they run and mean what they say."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from calibrate.designs import THIN, TINY  # noqa: E402
from calibrate.device.collective_rank import messages  # noqa: E402
from calibrate.device.device import identify  # noqa: E402
from calibrate.device.memory import block_bytes  # noqa: E402
from calibrate.device.timing import Laps, waited, wall_laps  # noqa: E402
from calibrate.device.torch_measurer import TorchMeasurer  # noqa: E402
from calibrate.device.whole_models import shortened, wanted  # noqa: E402
from calibrate.kernels.decoder import FusedMaps, WholeModel  # noqa: E402
from calibrate.kernels.operands import Block, OperandPool  # noqa: E402
from calibrate.shapes import small  # noqa: E402
from inferplan.catalog.files import load_model  # noqa: E402
from inferplan.models.layers import parse_layer  # noqa: E402
from inferplan.models.spec import LayerGroup, ModelSpec  # noqa: E402
from inferplan.work.formats import FORMATS  # noqa: E402
from tests.calibrate.test_kernels import FP8, INT4, SAMPLES, attention, grouped, matmul  # noqa: E402
from tests.cases import for_each  # noqa: E402


@pytest.fixture(scope="module")
def measurer() -> TorchMeasurer:
    return TorchMeasurer(identify("cpu"), seed=0, block=32 << 20)


def test_laps_time_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only the call and the reader advance: what else runs on this machine decides nothing."""
    now = [0.0]

    def passes(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr("calibrate.device.timing.time.perf_counter", lambda: now[0])
    monkeypatch.setattr("calibrate.device.timing.waited", lambda: 0.0)
    laps = wall_laps(lambda: passes(2e-3), [()], 0.1, lambda: passes(1e-3), lap=0.03)
    # A call and its wait take 3 ms, so a lap of 30 ms has ten calls. Their one wait is shared: 21 ms over ten. The
    # trial of 3 ms and five laps of 21 ms are the first to pass 100 ms.
    assert laps.calls == 10
    assert laps.sample("call").seconds == pytest.approx(2.1e-3)
    assert len(laps.seconds) == 5


def test_laps_are_three_where_the_time_is_up_at_once() -> None:
    assert len(wall_laps(lambda: time.sleep(1e-3), [()], 0.0, lambda: None).seconds) == 3


def test_waiting_is_a_clock() -> None:
    assert 0.0 <= waited() <= waited()


def test_disturbed_laps_are_left_out() -> None:
    sample = Laps(seconds=[1.0, 1.1, 0.9, 5.0, 6.0], waiting=[0.0, 0.01, 0.0, 0.6, 0.9], calls=1).sample("x")
    assert sample.seconds == pytest.approx(1.0)
    assert sample.waited == 0.0
    assert Laps(seconds=[5.0, 6.0, 7.0], waiting=[0.5, 0.6, 0.7], calls=1).sample("x").waited == pytest.approx(0.6)


def test_an_operator_is_measured(measurer: TorchMeasurer) -> None:
    sample = measurer.measure(SAMPLES["matmul bf16"], 0.01)
    assert 0 < sample.seconds < 1
    assert sample.kernel == "F.linear"
    assert sample.method == "wall"


def test_operands_fill_the_cache_three_times(measurer: TorchMeasurer) -> None:
    op = matmul(FORMATS["bf16"], FORMATS["bf16"], m=1.0)
    sets, _ = measurer._sets(lambda: (object(),), replace(op, k=1024, n=1024), 1.0)
    assert len(sets) * 2 * 1024 * 1024 >= min(3 * measurer.device.cache, 256 * 2 * 1024 * 1024) * 0.99


def test_what_cannot_run_is_refused_with_a_reason(measurer: TorchMeasurer) -> None:
    assert measurer.refusal(SAMPLES["matmul int4 weights"]) is None
    assert "no nvfp4 arithmetic" in str(measurer.refusal(grouped(FORMATS["nvfp4"], FORMATS["nvfp4"])))
    assert "no matmul" in str(measurer.refusal(grouped(FORMATS["nvfp4"], FORMATS["bf16"])))
    assert "multiples of 128" in str(measurer.refusal(replace(matmul(INT4, FORMATS["bf16"]), k=100)))
    assert "no attention" in str(measurer.refusal(attention(kv=FP8)))


def test_a_wrong_kernel_is_refused(measurer: TorchMeasurer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibrate.device.torch_measurer.check", lambda kernel: 0.5)
    assert "float64 reference" in str(measurer.refusal(SAMPLES["matmul bf16"]))


@for_each("name", SAMPLES)
def test_small_operators_are_of_the_same_kernel(name: str) -> None:
    op = SAMPLES[name]
    assert (small(op).kernel.split(".")[0], small(op).label) == (op.kernel.split(".")[0], op.label)


MOE = {"kind": "moe", "experts": 4, "top_k": 2, "d_ff": 32, "shared_d_ff": 16}


def tiny(mixer: dict[str, object], ffn: dict[str, object]) -> ModelSpec:
    layer = LayerGroup.model_validate({"repeat": 2, "mixer": parse_layer(mixer), "ffn": parse_layer(ffn)})
    return ModelSpec(name="tiny", source="test", d_model=64, vocab=50, layers=[layer])


HEADS = {"kind": "attention", "heads": 4, "kv_heads": 2, "head_dim": 16}
LATENT = {"kind": "mla", "heads": 2, "kv_lora": 16, "nope_dim": 16, "rope_dim": 8, "value_dim": 16}
MODELS = {
    "dense": tiny(HEADS, {"kind": "mlp", "d_ff": 96}),
    "window": tiny(HEADS | {"window": 5, "qk_norm": "head"}, {"kind": "mlp", "d_ff": 96, "gated": False}),
    "experts": tiny(HEADS, MOE),
    "latent": tiny(LATENT, {"kind": "mlp", "d_ff": 96}),
    "latent queries": tiny(LATENT | {"q_lora": 24}, MOE),
}


@for_each("name", MODELS)
def test_a_decode_step_continues_a_prefill(name: str) -> None:
    """The cache is used: the state after twenty tokens at once equals that after nineteen and then one."""
    model = WholeModel(MODELS[name], "cpu", "fp32", FusedMaps())
    for _, mixer, ffn in model.layers:  # large enough weights for differences to show
        for part in (mixer, ffn):
            for value in vars(part).values():
                if isinstance(value, torch.Tensor):
                    value.mul_(8.0)
    tokens = torch.randint(50, (3, 20), generator=torch.Generator().manual_seed(1))
    seen: list[torch.Tensor] = []

    def states(parts: list[tuple[int, int]]) -> torch.Tensor:
        model.prepare(3, 20, 0)
        lengths = model.caches
        for start, stop in parts:
            model.caches = [_cut(cache, stop) for cache in lengths]
            seen.append(model.hidden(tokens[:, start:stop], start)[:, -1])
        return seen[-1]

    together, apart = states([(0, 20)]), states([(0, 19), (19, 20)])
    torch.testing.assert_close(apart, together, rtol=2e-3, atol=2e-4)


def _cut(cache: object, length: int) -> object:
    return tuple(part[:, :length] for part in cache) if isinstance(cache, tuple) else cache[:, :length]  # type: ignore[index]


def test_whole_models_are_timed(measurer: TorchMeasurer) -> None:
    asked = replace(next(s for s in wanted("cpu", 1e9) if s.new == 1 and s.batch == 1), layers=1)
    timed = measurer.step(asked)
    assert 0 < timed.seconds < 10
    assert timed.key == asked.key


def test_a_large_model_is_cut_to_what_fits() -> None:
    steps = wanted("cuda", 24e9)
    eight = next(step for step in steps if step.model == "llama-3.1-8b")
    assert 1 <= eight.layers < 32
    assert next(s.layers for s in wanted("cuda", 150e9) if s.model == "llama-3.1-8b") == 32
    assert len(shortened(load_model("llama-3.1-8b"), eight.layers).sequence) == eight.layers
    assert {"graph", "eager"} == {step.mode for step in steps}
    assert {step.model for step in wanted("cpu", 8e9)} == {*TINY, THIN}


def test_a_model_of_ones_own_is_timed_first_on_a_cpu_four_layers_of_it() -> None:
    on_a_cpu = [step for step in wanted("cpu", 8e9, own=("qwen2.5-0.5b",)) if step.model != THIN]
    assert on_a_cpu[0].model == "qwen2.5-0.5b"
    assert {step.layers for step in on_a_cpu if step.model == "qwen2.5-0.5b"} == {4}
    assert {step.layers for step in wanted("cuda", 150e9, own=("qwen2.5-0.5b",)) if step.model == "qwen2.5-0.5b"} == {
        24
    }
    once = [step.key for step in wanted("cuda", 150e9, own=("llama-3.1-8b",))]
    assert len(once) == len(set(once)) == len(wanted("cuda", 150e9))


def test_messages_span_sizes() -> None:
    sizes = [float(op.elements) for op in messages("cpu", 2) if op.pattern == "all_reduce"]
    assert max(sizes) / min(sizes) >= 1000


def test_pool_gives_scales_and_integers() -> None:
    pool = OperandPool("cpu", 1 << 20)
    assert float(pool.positive((100,)).min()) >= 0.5
    assert int(pool.integers((100,), 7).max()) < 7
    assert pool.typed((100,), torch.int8).dtype is torch.int8


def test_a_block_is_filled_only_as_far_as_it_is_handed_out() -> None:
    """Four slices of 256 elements of a block of 1000, in tiles of 300: three fit, the fourth begins again."""
    block = Block(torch.zeros(1000), torch.arange(1.0, 301.0))
    starts, filled = [], []
    for _ in range(4):
        taken = block.take(256)
        starts.append(int(taken.storage_offset()))
        filled.append(block.filled)
        assert bool((taken > 0).all()), "handed out before it was filled"
    assert starts == [0, 256, 512, 0]
    assert filled == [300, 600, 900, 900]


@for_each(
    ("rate", "budget", "short", "size"),
    [
        (0.4e9, 30.0, True, 1.2e9),  # a tenth of 30 s at 0.4 GB/s
        (0.4e9, 4.0, True, 160e6),
        (0.4e9, 1.0, True, 64 << 20),  # never less than two operands of 32 MB
        (0.4e9, 300.0, False, 8 * 480e6),  # a long run is not short of time
        (20e9, 30.0, True, 4 * 480e6),
    ],
)
def test_a_block_is_as_large_as_a_cpu_can_fill_in_a_tenth_of_the_run(
    rate: float, budget: float, short: bool, size: float
) -> None:
    """A virtual machine that reports its host's cache of 480 MB."""
    device = replace(identify("cpu"), cache=480e6, memory=24e9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("calibrate.device.memory.fill_rate", lambda kind: rate)
        assert block_bytes(device, budget, short) == pytest.approx(size)
