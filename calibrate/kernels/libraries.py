"""Kernel libraries: those that are used when they are installed, what each runs on and how it is called.

The one table of optional libraries; which of them an engine runs stands in its file (``libraries`` of configs/engines).
Signatures are taken from the sources named here; whatever a version has changed is found by the check against float64
that comes before any timing, and the next library is taken.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import packages_distributions, version
from types import ModuleType

from calibrate.kernels.operands import NoKernelError
from calibrate.kernels.target import Target


@dataclass(frozen=True, kw_only=True)
class Library:
    """An optional library. modules: what may be imported for it, the first that is there. where: the devices, in words.

    runs_on: the same as a rule. calls: what is called, and how. source: where the signatures were read. lacks: why a
    module that imports cannot be used, empty where it can.
    """

    name: str
    modules: tuple[str, ...]
    where: str
    runs_on: Callable[[Target], bool]
    calls: str
    source: str
    lacks: Callable[[ModuleType], str] = lambda module: ""


FLASH_VERSIONS = {"flash-attention-3": 3, "flash-attention-2": 2}
"""The version of FlashAttention that each library is."""


def is_vllm_flash(module: ModuleType) -> bool:
    """Whether it is vLLM's build of FlashAttention, which holds versions and has no ``flash_attn_with_kvcache``."""
    return hasattr(module, "is_fa_version_supported")


def _lacks_version(version: int) -> Callable[[ModuleType], str]:
    def lacks(module: ModuleType) -> str:
        if not is_vllm_flash(module) or module.is_fa_version_supported(version):
            return ""
        return str(module.fa_version_unsupported_reason(version) or f"version {version} is not built")

    return lacks


def _lacks_flash_mla(module: ModuleType) -> str:
    """vLLM's module is there without its kernels, and says so."""
    asked = getattr(module, "is_flashmla_sparse_supported", None)
    there, why = asked() if asked is not None else (True, "")
    return "" if there else str(why)


LIBRARIES = {
    library.name: library
    for library in (
        Library(
            name="flash-attention-3",
            modules=("vllm.vllm_flash_attn", "flash_attn_interface", "sgl_kernel.flash_attn"),
            where="SM90",
            runs_on=lambda target: target.sm == 90,
            calls="flash_attn_func(q, k, v, causal, window_size); flash_attn_with_kvcache(q, k_cache, v_cache, "
            "cache_seqlens, page_table, causal, window_size), with qv for latent attention; vLLM's build: "
            "flash_attn_varlen_func(..., seqused_k, block_table, fa_version=3), with q_v",
            source="Dao-AILab/flash-attention 01afd16 hopper/flash_attn_interface.py; the wheel of vLLM 0.32.0, "
            "vllm_flash_attn/flash_attn_interface.py",
            lacks=_lacks_version(3),
        ),
        Library(
            name="flash-attention-2",
            modules=("vllm.vllm_flash_attn", "flash_attn"),
            where="SM80 and later",
            runs_on=lambda target: target.sm >= 80,
            calls="flash_attn_func(q, k, v, causal, window_size); flash_attn_with_kvcache(q, k_cache, v_cache, "
            "cache_seqlens, block_table, causal, window_size), in blocks of 256; vLLM's build as above, of 16",
            source="Dao-AILab/flash-attention flash_attn/flash_attn_interface.py (2.5 to 2.8); vLLM 0.32.0 as above",
            lacks=_lacks_version(2),
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
            name="trtllm-gen",
            modules=("flashinfer",),
            where="SM100",
            runs_on=lambda target: target.sm in (100, 103),
            calls="trtllm_batch_context_with_kv_cache, trtllm_batch_decode_with_kv_cache over pages with heads first; "
            "trtllm_ragged_attention_deepseek and trtllm_batch_decode_with_kv_cache_mla of latent attention",
            source="the wheel of FlashInfer 0.7.4, prefill.py, decode.py, mla/_core.py; calls as in vLLM 0.32.0",
            lacks=lambda module: "" if hasattr(module, "trtllm_batch_decode_with_kv_cache") else "it is too old",
        ),
        Library(
            name="flashmla",
            modules=("vllm.v1.attention.ops.flashmla", "flash_mla"),
            where="SM90 and SM100",
            runs_on=lambda target: target.sm in (90, 100, 103),
            calls="get_mla_metadata; flash_mla_with_kvcache(q, k_cache, block_table, cache_seqlens, head_dim_v, ...), "
            "SM90 alone; flash_mla_sparse_fwd(q, kv, indices, sm_scale, d_v)",
            source="deepseek-ai/FlashMLA 02fe0d0 flash_mla/flash_mla_interface.py; vLLM 0.32.0 "
            "v1/attention/backends/mla/flashmla.py and flashmla_sparse.py",
            lacks=_lacks_flash_mla,
        ),
        Library(
            name="machete",
            modules=("vllm._custom_ops",),
            where="SM90",
            runs_on=lambda target: target.sm == 90,
            calls="machete_prepack_B, then machete_mm: 4 and 8 bit weights with 16-bit inputs",
            source="the wheel of vLLM 0.32.0, _custom_ops.py and kernels/linear/mixed_precision/machete.py",
        ),
        Library(
            name="marlin",
            modules=("vllm._custom_ops",),
            where="SM80 and later",
            runs_on=lambda target: target.sm >= 80,
            calls="gptq_marlin_repack and marlin_permute_scales, then marlin_gemm: weights in 4 and 8 bits and in fp4",
            source="the wheel of vLLM 0.32.0, _custom_ops.py and layers/quantization/utils/marlin_utils*.py",
        ),
        Library(
            name="cutlass",
            modules=("vllm._custom_ops",),
            where="SM75 and later",
            runs_on=lambda target: target.sm >= 75,
            calls="cutlass_scaled_mm (fp8 and int8), cutlass_scaled_fp4_mm (nvfp4), cutlass_moe_mm (experts in fp8)",
            source="the wheel of vLLM 0.32.0, _custom_ops.py and fused_moe/experts/cutlass_moe.py",
        ),
        Library(
            name="vllm-lora",
            modules=("vllm.lora.ops.triton_ops",),
            where="a GPU that Triton compiles for (SM80 and later, CDNA)",
            runs_on=lambda target: target.sm >= 80 or target.gfx.startswith("gfx9"),
            calls="LoRAKernelMeta.prepare_tensors once a step, then lora_shrink and lora_expand",
            source="the wheel of vLLM 0.32.0, lora/ops/triton_ops and lora/punica_wrapper/punica_gpu.py",
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
            found = importlib.import_module(module)
            lack = library.lacks(found)
            if not lack:
                return found
            reasons.append(f"{module}: {lack}")
        except ModuleNotFoundError as missing:
            there = missing.name is not None and not module.startswith(missing.name)
            reasons.append(f"{module} needs {missing.name}" if there else f"{module} is not installed")
        except Exception as broken:  # a library built for another torch or CUDA fails in any way it likes
            reasons.append(f"{module} does not import: {type(broken).__name__}: {broken}")
    raise NoKernelError(f"no {name}", because="; ".join(reasons))


def versions(target: Target) -> dict[str, str]:
    """The versions of the optional libraries that are installed and run on a device, by their packages' names."""
    modules = {module.split(".")[0] for one in LIBRARIES.values() if one.runs_on(target) for module in one.modules}
    names = {name for module in modules for name in _packages().get(module, ()) if name}
    return {name: version(name) for name in sorted(names)}


@cache
def _packages() -> Mapping[str, list[str]]:
    """The packages behind each module that may be imported: read once, which takes tenths of a second."""
    return packages_distributions()


def of_torch(target: Target) -> str:
    """Whose kernel ``F.linear`` runs: the vendor's library, called by engines as well."""
    if target.kind != "cuda":
        return {"cpu": "blas", "mps": "mps"}[target.kind]
    return "hipblaslt" if target.gfx else "cublas"


def of_torch_flash(target: Target) -> str:
    """Whose kernel torch's own flash attention is (torch is built with a copy of it)."""
    return "aotriton" if target.gfx else "flash-attention-2"
