"""Kernel libraries: those that are used when they are installed, what each runs on, and which of them an engine runs.

The one table of optional libraries. Signatures are taken from the sources named here; whatever a version has changed is
found by the check against float64 that comes before any timing, and the next library is taken.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType

from calibrate.kernels.operands import NoKernelError
from calibrate.kernels.target import Target


@dataclass(frozen=True, kw_only=True)
class Library:
    """An optional library. modules: what may be imported for it, the first that is there. where: the devices, in words.

    runs_on: the same as a rule. calls: what is called, and how. source: where the signatures were read.
    """

    name: str
    modules: tuple[str, ...]
    where: str
    runs_on: Callable[[Target], bool]
    calls: str
    source: str


LIBRARIES = {
    library.name: library
    for library in (
        Library(
            name="flash-attention-3",
            modules=("flash_attn_interface", "sgl_kernel.flash_attn"),
            where="SM90",
            runs_on=lambda target: target.sm == 90,
            calls="flash_attn_func(q, k, v, causal, window_size); flash_attn_with_kvcache(q, k_cache, v_cache, "
            "cache_seqlens, page_table, causal, window_size), with qv for latent attention",
            source="Dao-AILab/flash-attention 01afd16 hopper/flash_attn_interface.py",
        ),
        Library(
            name="flash-attention-2",
            modules=("flash_attn",),
            where="SM80 and later",
            runs_on=lambda target: target.sm >= 80,
            calls="flash_attn_func(q, k, v, causal, window_size); flash_attn_with_kvcache(q, k_cache, v_cache, "
            "cache_seqlens, block_table, causal, window_size), in blocks of 256",
            source="Dao-AILab/flash-attention flash_attn/flash_attn_interface.py (2.5 to 2.8)",
        ),
        Library(
            name="flashinfer",
            modules=("flashinfer",),
            where="SM75 and later",
            runs_on=lambda target: target.sm >= 75,
            calls="BatchPrefillWithRaggedKVCacheWrapper and BatchDecodeWithPagedKVCacheWrapper: plan once, then run",
            source="flashinfer-ai/flashinfer 002752a flashinfer/decode.py and prefill.py",
        ),
        Library(
            name="flashmla",
            modules=("flash_mla",),
            where="SM90",
            runs_on=lambda target: target.sm == 90,
            calls="get_mla_metadata; flash_mla_with_kvcache(q, k_cache, block_table, cache_seqlens, head_dim_v, ...)",
            source="deepseek-ai/FlashMLA 02fe0d0 flash_mla/flash_mla_interface.py",
        ),
        Library(
            name="deepgemm",
            modules=("deep_gemm",),
            where="SM90 and SM100",
            runs_on=lambda target: target.sm in (90, 100, 103),
            calls="fp8_gemm_nt((x, scales), (w, scales), out); m_grouped_fp8_gemm_nt_contiguous with a row's expert",
            source="deepseek-ai/DeepGEMM 0274ad7 csrc/apis/gemm.hpp and deep_gemm/__init__.py",
        ),
        Library(
            name="triton",
            modules=("vllm.model_executor.layers.fused_moe.fused_moe",),
            where="a GPU that Triton compiles for (SM80 and later, CDNA)",
            runs_on=lambda target: target.sm >= 80 or target.gfx.startswith("gfx9"),
            calls="invoke_fused_moe_triton_kernel over rows sorted by expert",
            source="vllm-project/vllm vllm/model_executor/layers/fused_moe/fused_moe.py (0.15 and later)",
        ),
    )
}
"""Every optional library by its name (:attr:`calibrate.kernels.kernel.Kernel.library`)."""


def find(name: str, target: Target) -> ModuleType:
    """The module of a library. Raises :class:`NoKernelError` where it does not run, or is not there."""
    library = LIBRARIES[name]
    if not library.runs_on(target):
        raise NoKernelError(f"{name} runs on {library.where}, not on {target}")
    reasons = []
    for module in library.modules:
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as missing:
            there = missing.name is not None and not module.startswith(missing.name)
            reasons.append(f"{module} needs {missing.name}" if there else f"{module} is not installed")
        except Exception as broken:  # a library built for another torch or CUDA fails in any way it likes
            reasons.append(f"{module} does not import: {type(broken).__name__}: {broken}")
    raise NoKernelError(f"no {name}", because="; ".join(reasons))


def of_torch(target: Target) -> str:
    """Whose kernel ``F.linear`` runs: the vendor's library, called by engines as well."""
    if target.kind != "cuda":
        return {"cpu": "blas", "mps": "mps", "xpu": "onednn"}[target.kind]
    return "hipblaslt" if target.gfx else "cublas"


def of_torch_flash(target: Target) -> str:
    """Whose kernel torch's own flash attention is (torch is built with a copy of it)."""
    return "aotriton" if target.gfx else "flash-attention-2"


@dataclass(frozen=True, kw_only=True)
class Runs:
    """What an engine runs. kernels: operators as constants name them. weights: formats of the weights (of the queries,
    for attention); none: any. sm: compute capabilities, from and to; 0 stands for AMD. source: where it was read."""

    kernels: tuple[str, ...]
    weights: tuple[str, ...]
    sm: tuple[int, int]
    libraries: tuple[str, ...]
    source: str


_WIDE = ("bf16", "fp16", "fp32", "tf32")
_HEADS = ("attention.prefill", "attention.decode")
_VLLM_ATTENTION = "vLLM docs/design/attention_backends.md at 0013943: backend priority, versions of FlashAttention"
_SGLANG_ATTENTION = "SGLang docs, attention backends: fa3 on Hopper, trtllm (FlashInfer) on Blackwell, else flashinfer"
_LINEAR = "dense layers that are not quantised are torch's F.linear"
ENGINES: dict[str, tuple[Runs, ...]] = {
    "vllm": (
        Runs(kernels=("matmul",), weights=_WIDE, sm=(70, 129), libraries=("cublas",), source=_LINEAR),
        Runs(kernels=("matmul",), weights=_WIDE, sm=(0, 0), libraries=("hipblaslt",), source=_LINEAR),
        Runs(
            kernels=("matmul",),
            weights=("fp8-block",),
            sm=(90, 109),
            libraries=("deepgemm",),
            source="vLLM quantization/utils/fp8_utils.py W8A8BlockFp8LinearOp: DeepGEMM where it is supported",
        ),
        Runs(
            kernels=("grouped_matmul",),
            weights=("bf16", "fp16", "fp8"),
            sm=(80, 99),
            libraries=("triton",),
            source="vLLM docs/design/moe_kernel_features.md: fused_experts on Triton unless another is chosen",
        ),
        Runs(
            kernels=("grouped_matmul", "grouped_matmul.exchanged"),
            weights=("fp8-block",),
            sm=(90, 109),
            libraries=("deepgemm", "triton"),
            source="vLLM fused_moe/triton_deep_gemm_moe.py: DeepGEMM for large batches, Triton for small ones",
        ),
        Runs(
            kernels=(*_HEADS, "mla.prefill"),
            weights=(),
            sm=(80, 89),
            libraries=("flash-attention-2",),
            source=_VLLM_ATTENTION,
        ),
        Runs(
            kernels=(*_HEADS, "mla.prefill"),
            weights=(),
            sm=(90, 90),
            libraries=("flash-attention-3",),
            source=_VLLM_ATTENTION,
        ),
        Runs(kernels=_HEADS, weights=(), sm=(100, 109), libraries=("flashinfer",), source=_VLLM_ATTENTION),
        Runs(kernels=_HEADS, weights=(), sm=(120, 129), libraries=("flash-attention-2",), source=_VLLM_ATTENTION),
        Runs(
            kernels=("mla.decode",),
            weights=(),
            sm=(90, 90),
            libraries=("flash-attention-3", "flashmla"),
            source=_VLLM_ATTENTION,
        ),
        Runs(kernels=("gather",), weights=(), sm=(0, 129), libraries=("torch",), source="F.embedding, as here"),
    ),
    "sglang": (
        Runs(kernels=("matmul",), weights=_WIDE, sm=(70, 129), libraries=("cublas",), source=_LINEAR),
        Runs(kernels=("matmul",), weights=_WIDE, sm=(0, 0), libraries=("hipblaslt",), source=_LINEAR),
        Runs(
            kernels=("matmul", "grouped_matmul.exchanged"),
            weights=("fp8-block",),
            sm=(90, 109),
            libraries=("deepgemm",),
            source="SGLang layers/quantization/fp8_utils.py and moe/ep_moe: DeepGEMM where it is supported",
        ),
        Runs(
            kernels=("grouped_matmul",),
            weights=("bf16", "fp16", "fp8", "fp8-block"),
            sm=(80, 99),
            libraries=("triton",),
            source="SGLang layers/moe/fused_moe_triton: the same kernel as vLLM's",
        ),
        Runs(kernels=_HEADS, weights=(), sm=(75, 89), libraries=("flashinfer",), source=_SGLANG_ATTENTION),
        Runs(
            kernels=(*_HEADS, "mla.prefill", "mla.decode"),
            weights=(),
            sm=(90, 90),
            libraries=("flash-attention-3",),
            source=_SGLANG_ATTENTION,
        ),
        Runs(kernels=_HEADS, weights=(), sm=(100, 109), libraries=("flashinfer",), source=_SGLANG_ATTENTION),
    ),
    "trtllm": (Runs(kernels=("matmul",), weights=_WIDE, sm=(70, 129), libraries=("cublas",), source=_LINEAR),),
    "llama.cpp": (),
}
"""What each engine runs, of the libraries measured here. The rest is run by kernels of the engine's own (norms,
activations, int4, TensorRT-LLM's attention, all of llama.cpp): a measurement stands for them at a distance only."""


def stands_for(engine: str, group: tuple[str, str], library: str, sm: int | None) -> bool:
    """Whether a measured library is the one that an engine runs for an operator and format (``group``: the kernel and
    label of :func:`calibrate.shapes.group_of`).

    sm: :func:`generation` of the device; ``None`` where it is not known: then any generation's counts. With no engine
    (``none``), torch's own steps are what is predicted: every library stands.
    """
    if engine == "none":
        return True
    kernel, label = group
    return any(
        library in row.libraries
        and kernel in row.kernels
        and (not row.weights or any(label == name or label.startswith(f"{name}x") for name in row.weights))
        and (sm is None or row.sm[0] <= sm <= row.sm[1])
        for row in ENGINES.get(engine, ())
    )


def generation(software: Mapping[str, str]) -> int | None:
    """The compute capability times ten (90 for ``SM90``) in a device's record of software, 0 on AMD (``gfx942``);
    ``None`` for a record without it, or of another kind of device."""
    told = software.get("architecture", "")
    if told.startswith("gfx"):
        return 0
    return int(told[2:]) if told.startswith("SM") else None
