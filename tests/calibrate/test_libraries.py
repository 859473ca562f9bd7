"""The libraries that engines call: exactly the calls of their sources, checked before they are timed, else the next."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from calibrate.kernels.builders import build  # noqa: E402
from calibrate.kernels.choice import passed_over  # noqa: E402
from calibrate.kernels.fp4_blocks import in_tiles  # noqa: E402
from calibrate.kernels.kernel import Kernel, check  # noqa: E402
from calibrate.kernels.libraries import LIBRARIES, find, of_torch, versions  # noqa: E402
from calibrate.kernels.operands import NoKernelError, OperandPool  # noqa: E402
from calibrate.kernels.target import Target  # noqa: E402
from calibrate.kernels.whole_attention import Heads, attention_of  # noqa: E402
from inferplan.catalog.files import load, names  # noqa: E402
from inferplan.devices.engine import EngineSpec  # noqa: E402
from inferplan.work.formats import find_format  # noqa: E402
from inferplan.work.ops import Attention, GroupedMatmul, Mask, Matmul  # noqa: E402
from tests.calibrate import kernel_libraries as fakes  # noqa: E402
from tests.calibrate.standin import dies_after, out_of_memory, standin  # noqa: E402
from tests.cases import for_each  # noqa: E402

BF16, FP8, FP8_BLOCK = (find_format(name) for name in ("bf16", "fp8", "fp8-block"))
HOPPER, AMPERE, ADA = (Target(kind="cuda", sm=sm) for sm in (90, 80, 89))


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever this machine has: each test installs its own."""
    for library in LIBRARIES.values():
        for name in library.modules:
            monkeypatch.setitem(sys.modules, name, None)
    fakes.calls.clear()
    yield


def install(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
    for module in modules:
        parts = module.__name__.split(".")
        for end in range(1, len(parts)):  # a package for each part of the name
            package = fakes.module(".".join(parts[:end]))
            package.__path__ = []
            monkeypatch.setitem(sys.modules, package.__name__, package)
        monkeypatch.setitem(sys.modules, module.__name__, module)


def pool(target: Target) -> OperandPool:
    """Numbers on this CPU, kernels of another device."""
    return OperandPool("cpu", 8 << 20, target=target)


def attention(**changes: Any) -> Attention:
    values: dict[str, Any] = {
        "batch": 2.0, "new": 1.0, "past": 36.0, "heads": 8, "kv_heads": 2, "key_dim": 64, "value_dim": 64,
        "mask": Mask(), "base": BF16, "kv": BF16,
    }  # fmt: skip
    return Attention(name="attn", **(values | changes))


PROMPT = {"new": 19.0, "past": 6.0}
LATENT = {"heads": 16, "kv_heads": 1, "key_dim": 576, "value_dim": 512, "shared_value": True}
WINDOW = Mask(kind="window", size=7)


def right(kernel: Kernel, library: str) -> None:
    """The library runs it, and what it computes is right."""
    assert kernel.library == library
    assert check(kernel) <= kernel.tolerance


@for_each(
    "op",
    [
        attention(**PROMPT),
        attention(**PROMPT, mask=WINDOW),
        attention(),
        attention(new=3.0),
        attention(new=3.0, mask=WINDOW),
        attention(heads=32, kv_heads=8, key_dim=128, value_dim=128),
        attention(**PROMPT, kv_heads=8, key_dim=192, value_dim=128),
        attention(**LATENT),
        attention(**LATENT, new=2.0),
    ],
    ids=lambda op: f"{op.kernel}-{op.mask.kind}-{op.new:g}-{op.heads}-{op.key_dim}",
)
def test_flash_attention_3(op: Attention, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fakes.flash_attention_3())
    right(build(op, pool(HOPPER)), "flash-attention-3")


@for_each("op", [attention(**PROMPT), attention(), attention(**PROMPT, kv_heads=8, key_dim=96)])
def test_flash_attention_2_has_blocks_of_256_and_values_of_the_keys_width(
    op: Attention, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, fakes.flash_attention_2(), fakes.flashinfer())
    right(build(op, pool(AMPERE)), "flash-attention-2")


@for_each("op", [attention(**PROMPT, mask=WINDOW), attention(), attention(heads=2, mask=WINDOW)])
def test_flashinfer_is_planned_once(op: Attention, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is the engine's work of a step, not of a layer: it is no part of what is timed."""
    install(monkeypatch, fakes.flashinfer())
    kernel = build(op, pool(Target(kind="cuda", sm=100)))
    fakes.calls.clear()
    right(kernel, "flashinfer")
    kernel.run(*kernel.operands())
    assert fakes.calls["run"] == 2 and fakes.calls["plan"] == 0


def test_flash_mla(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fakes.flash_mla())
    right(build(attention(**LATENT), pool(HOPPER)), "flashmla")
    other = build(attention(**LATENT | {"key_dim": 160, "value_dim": 128}), pool(HOPPER))
    assert (other.library, other.name) == ("torch", "explicit attention, scores in memory")


BLACKWELL = Target(kind="cuda", sm=100)
IN_VLLM = "vllm.v1.attention.ops.flashmla"


@for_each(
    "op",
    [
        attention(**PROMPT),
        attention(**PROMPT, mask=WINDOW),
        attention(**PROMPT, kv_heads=8, key_dim=192, value_dim=128),
        attention(),
        attention(new=3.0, mask=WINDOW),
    ],
    ids=lambda op: f"{op.kernel}-{op.mask.kind}-{op.new:g}",
)
def test_flash_attention_as_vllm_ships_it(op: Attention, monkeypatch: pytest.MonkeyPatch) -> None:
    """One module with both versions: 3 on Hopper, 2 on Ampere, and before the packages of their authors."""
    install(monkeypatch, fakes.vllm_flash_attn(2, 3), fakes.flash_attention_3(), fakes.flash_attention_2())
    right(build(op, pool(HOPPER)), "flash-attention-3")
    right(build(op, pool(AMPERE)), "flash-attention-2")
    assert set(fakes.calls) == {"vllm fa3", "vllm fa2"}


@for_each("new", [1.0, 2.0])
def test_latent_decodes_as_vllm_runs_them(new: float, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fakes.vllm_flash_attn(2, 3), fakes.flash_mla(IN_VLLM))
    right(build(attention(**LATENT, new=new), pool(HOPPER)), "flash-attention-3")
    assert set(fakes.calls) == {"vllm fa3"}


def test_a_version_that_vllm_did_not_build_is_looked_for_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fakes.vllm_flash_attn(2), fakes.flash_attention_3(), fakes.flash_mla(IN_VLLM, there=False))
    assert find("flash-attention-3", HOPPER).__name__ == "flash_attn_interface"
    with pytest.raises(NoKernelError, match=r"vllm\._flashmla_C is missing; flash_mla is not installed"):
        find("flashmla", HOPPER)


@for_each("new, heads", [(1.0, 16), (19.0, 4)])
def test_sparse_latents_by_flash_mla(new: float, heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that an indexer chose: some queries have fewer than it may choose."""
    install(monkeypatch, fakes.flash_mla(IN_VLLM))
    op = attention(**LATENT | {"heads": heads}, new=new, past=30.0, mask=Mask(kind="top", size=33))
    for target in (HOPPER, BLACKWELL):
        right(build(op, pool(target)), "flashmla")
    right(build(op, pool(AMPERE)), "torch")
    assert op.kernel == ("mla.sparse" if new > 16 else "mla.sparse.decode")


@for_each(
    "op, called",
    [
        (attention(**PROMPT), "context"),
        (attention(**PROMPT, mask=WINDOW), "context"),
        (attention(), "decode"),
        (attention(new=3.0, mask=WINDOW), "decode"),
        (attention(**PROMPT, kv_heads=8, key_dim=192, value_dim=128), "ragged"),
        (attention(**LATENT, new=2.0), "latent"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.kernel,
)
def test_tensorrt_llm_inside_flashinfer(op: Attention, called: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fakes.trtllm_gen())
    fakes.calls.clear()
    right(build(op, pool(BLACKWELL)), "trtllm-gen")
    assert set(fakes.calls) == {f"trtllm {called}"}


def test_pages_lie_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}
    module = fakes.flash_attention_3()
    call = module.flash_attn_with_kvcache
    module.flash_attn_with_kvcache = lambda *a, **k: seen.update(k) or call(*a, **k)  # type: ignore[attr-defined]
    install(monkeypatch, module)
    kernel = build(attention(past=200.0), pool(HOPPER))
    kernel.run(*kernel.operands())
    table = seen["page_table"].flatten().tolist()
    assert sorted(table) == list(range(2 * 13)) and table != sorted(table), "201 tokens are 13 pages of 16"


def experts(weight: Any, source: Any, **changes: Any) -> GroupedMatmul:
    shape: dict[str, Any] = {"m": 40.0, "k": 256, "n": 128, "experts": 5, "touched": 4.0, "skew": 0.9}
    return GroupedMatmul(name="e", weight=weight, input=source, output=BF16, **(shape | changes))


def test_deep_gemm_on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fakes.deep_gemm())
    dense = Matmul(name="m", m=37.0, k=512, n=256, weight=FP8_BLOCK, input=FP8, output=BF16)
    right(build(dense, pool(HOPPER)), "deepgemm")
    right(build(experts(FP8_BLOCK, FP8), pool(HOPPER)), "deepgemm")
    assert fakes.calls["grouped"] == 2, "once at the small size, once here"


NARROW = {name: find_format(name) for name in ("int4", "int8", "nvfp4", "mxfp4")}


def linear(weight: Any, source: Any, **changes: Any) -> Matmul:
    return Matmul(name="m", **({"m": 37.0, "k": 256, "n": 128} | changes), weight=weight, input=source, output=BF16)


@for_each("name", NARROW)
def test_narrow_weights_as_vllm_multiplies_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machete of 4 and 8 bits on Hopper, Marlin elsewhere and of fp4. A CPU has torch's calls of integers alone."""
    install(monkeypatch, *fakes.vllm_ops())
    op, integers = linear(NARROW[name], BF16), name.startswith("int")
    right(build(op, pool(AMPERE)), "marlin")
    right(build(op, pool(HOPPER)), "machete" if integers else "marlin")
    if integers:
        assert build(op, pool(Target(kind="cpu"))).library == "torch"
    else:
        with pytest.raises(NoKernelError, match=rf"a CPU has no matmul of {name} weights and 16-bit inputs"):
            build(op, pool(Target(kind="cpu")))


@for_each("name", ["nvfp4", "mxfp4"])
def test_fp4_by_torch_and_by_cutlass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.functional, "scaled_mm", fakes.scaled_mm)
    op = linear(NARROW[name], NARROW[name], n=64)
    fakes.calls.clear()
    right(build(op, pool(BLACKWELL)), "cublas")
    assert fakes.calls[f"scaled_mm 1x{16 if name == 'nvfp4' else 32}"] >= 1
    install(monkeypatch, *fakes.vllm_ops())
    right(build(op, pool(BLACKWELL)), "cutlass" if name == "nvfp4" else "cublas")
    for target in (HOPPER, Target(kind="cpu"), Target(kind="cuda", gfx="gfx942")):
        with pytest.raises(NoKernelError, match=f"has no {name} arithmetic"):
            build(op, pool(target))


def test_scales_of_fp4_lie_where_tensor_cores_read_them() -> None:
    """Row 161 and block 6 of 200 x 7: tile (1, 1) of 2 x 2, in it row 33 and block 2: 3*512 + 1*16 + 1*4 + 2."""
    scales = torch.zeros(200, 7, dtype=torch.uint8)
    scales[161, 6] = 77
    flat = in_tiles(scales).flatten()
    assert flat.shape == (2 * 2 * 512,) and flat.nonzero().tolist() == [[1558]] and int(flat[1558]) == 77


@for_each("name", ["fp8", "int8"])
def test_scales_in_the_same_pass_as_vllm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, *fakes.vllm_ops())
    right(build(linear(find_format(name), find_format(name)), pool(HOPPER)), "cutlass")
    assert build(linear(NARROW["int8"], NARROW["int8"]), pool(BLACKWELL)).library == "torch", "int8 left it with SM100"


@for_each("rows", [40.0, 90.0])
def test_experts_by_vllms_cutlass(rows: float, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, *fakes.vllm_ops())
    right(build(experts(FP8, FP8, m=rows), pool(HOPPER)), "cutlass")
    assert fakes.calls["cutlass moe"] >= 2


@for_each("way, slices", [("shrink", 1), ("expand", 1), ("expand", 3)])
def test_adapters_each_row_by_its_own(way: Any, slices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"k": 192, "n": 48} if way == "shrink" else {"k": 16, "n": 200}
    op = experts(BF16, BF16, **sizes, adapter=way, slices=slices)
    right(build(op, pool(Target(kind="cpu"))), "torch")
    right(build(op, pool(AMPERE)), "torch")
    install(monkeypatch, fakes.triton_lora())
    right(build(op, pool(AMPERE)), "vllm-lora")
    assert op.kernel == "grouped_matmul.adapter" and fakes.calls[way] >= 2
    with pytest.raises(NoKernelError, match="adapters of fp8"):
        build(experts(FP8, BF16, **sizes, adapter=way), pool(AMPERE))


@for_each("weight", [BF16, FP8, FP8_BLOCK], ids=lambda f: f.name)
def test_fused_experts(weight: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fakes.fused_moe())
    source = BF16 if weight == BF16 else FP8
    right(build(experts(weight, source), pool(HOPPER)), "triton")


def test_a_library_that_is_wrong_raises_or_has_another_signature_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FlashAttention 3 gives noise, FlashInfer takes no ``head_dim_vo``: FlashAttention 2 runs, and it is said why."""

    def noise(q: Any, *_: Any, **__: Any) -> Any:
        return torch.randn_like(q)

    class Old:
        def __init__(self, *_: Any) -> None: ...

        def plan(self, *_: Any, causal: bool = False) -> None: ...

    older = fakes.module("flashinfer", BatchPrefillWithRaggedKVCacheWrapper=Old)
    install(monkeypatch, fakes.module("flash_attn_interface", flash_attn_varlen_func=noise), older)
    install(monkeypatch, fakes.flash_attention_2())
    operands = pool(HOPPER)
    right(build(attention(**PROMPT), operands), "flash-attention-2")
    reasons = {name: why for (name, _), why in operands.passed_over.items()}
    assert "off its float64 reference" in reasons["flash-attention-3"]
    assert reasons["flashinfer"].startswith("TypeError") and "head_dim_vo" in reasons["flashinfer"]


def test_a_choice_is_made_once_for_all_shapes_of_a_format(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fakes.flash_attention_3())
    operands = pool(HOPPER)
    for past in (36.0, 50.0, 90.0):
        build(attention(past=past), operands)
    assert fakes.calls["kvcache"] == 1


def test_without_libraries_torch_runs_and_says_which_are_missing() -> None:
    operands = pool(HOPPER)
    kernel = build(attention(base=find_format("fp16"), kv=find_format("fp16")), operands)
    assert kernel.library in ("flash-attention-2", "torch"), "torch's copy of flash attention, which a CPU has not"
    told = passed_over(operands)
    assert set(told) >= {"flash-attention-3", "flashinfer", "flash-attention-2"}
    assert told["flashinfer"].startswith("no flashinfer (flashinfer is not installed), for attention.decode fp16")
    build(attention(key_dim=32, value_dim=32), operands)
    assert passed_over(operands)["flashinfer"].endswith("for 2 operators and formats")


def test_a_library_is_not_imported_where_it_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fakes.flash_attention_3())
    with pytest.raises(NoKernelError, match="runs on SM90, not on SM80"):
        find("flash-attention-3", AMPERE)
    assert find("flash-attention-3", HOPPER).__name__ == "flash_attn_interface"


def test_a_library_that_does_not_import_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("flash_attn_interface", "flash_mla", "sgl_kernel", "sgl_kernel.flash_attn"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    class Broken:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "flash_attn_interface":
                raise ModuleNotFoundError("No module named 'flash_attn_3'", name="flash_attn_3")
            if name == "sgl_kernel":
                raise ImportError("libcuda.so.1: cannot open shared object file")
            if name == "flash_mla":
                raise RuntimeError("undefined symbol")

    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(NoKernelError, match=r"needs flash_attn_3; sgl_kernel\.flash_attn does not import: .*libcuda"):
        find("flash-attention-3", HOPPER)
    with pytest.raises(NoKernelError, match="does not import: RuntimeError: undefined symbol"):
        find("flashmla", HOPPER)


def test_versions_are_of_the_libraries_that_are_there_and_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of one of them is another kernel: a run is not resumed with it."""
    there = {"flash_attn": ["flash-attn"], "vllm": ["vllm"], "flashinfer": ["flashinfer-python"], "numpy": ["numpy"]}
    numbers = {"flash-attn": "2.8.3", "vllm": "0.20.2", "flashinfer-python": "0.6.1"}
    monkeypatch.setattr("calibrate.kernels.libraries._packages", lambda: there)
    monkeypatch.setattr("calibrate.kernels.libraries.version", numbers.__getitem__)
    assert versions(HOPPER) == numbers
    assert versions(Target(kind="cuda", gfx="gfx942")) == {"vllm": "0.20.2"}
    assert versions(Target(kind="cuda", sm=75)) == {"flashinfer-python": "0.6.1", "vllm": "0.20.2"}
    assert versions(Target(kind="cuda", sm=70)) == {}


def test_engines_name_the_libraries_that_are_measured() -> None:
    """A name that no kernel carries would never be found."""
    known = {*LIBRARIES, "nccl", "torch", *(of_torch(target) for target in (HOPPER, Target(kind="cuda", gfx="gfx942")))}
    for name in names("engines"):
        runs = load("engines", name, EngineSpec).libraries.runs
        assert {row.library for row in runs} <= known


def test_whole_models_take_the_library_of_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fakes.flash_attention_3())
    sizes = Heads(heads=4, kv_heads=2, key_dim=16, value_dim=16, dtype=torch.bfloat16)
    here = Target(kind="cpu")
    assert attention_of(here, sizes)[0] == "torch"
    real = torch.randn

    def on_the_cpu(*shape: int, device: str, dtype: Any) -> Any:
        return real(*shape, dtype=dtype)

    monkeypatch.setattr(torch, "randn", on_the_cpu)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    name, call = attention_of(HOPPER, sizes)
    assert name == "flash-attention-3"
    install(monkeypatch, fakes.vllm_flash_attn(3))
    assert attention_of(HOPPER, sizes)[0] == "flash-attention-3" and fakes.calls["vllm fa3"] == 1
    monkeypatch.setitem(sys.modules, "vllm.vllm_flash_attn", None)
    q, k, v = (real(1, n, heads, 16).bfloat16() for n, heads in ((5, 4), (9, 2), (9, 2)))
    found = call(q, k, v, Mask(kind="window", size=3))
    expected = fakes.attend(q[0], k[0], v[0], True, 2, 0.25)
    assert float((found[0].double() - expected).norm() / expected.norm()) < 1e-2
    wrong = fakes.module("flash_attn_interface", flash_attn_with_kvcache=lambda q, *_, **__: q)
    install(monkeypatch, wrong)
    assert attention_of(HOPPER, sizes)[0] == "flash-attention-2", "torch's copy"


def test_an_error_that_sticks_ends_the_search() -> None:
    """A lost device is no reason to pass a library over: what comes next could not run either."""
    op = attention(base=find_format("fp16"), kv=find_format("fp16"))
    with standin("h200-sxm", dies_after(3)):
        operands = OperandPool("cuda", 8 << 20)
        with pytest.raises(RuntimeError, match="illegal memory access"):
            build(op, operands)
        assert not operands.choices
    with standin("h200-sxm", out_of_memory(after=1)):
        operands = OperandPool("cuda", 8 << 20)
        with pytest.raises(torch.OutOfMemoryError):
            build(op, operands)
        assert build(op, operands).library == "flash-attention-2"
