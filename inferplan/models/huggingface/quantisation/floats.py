"""Eight-bit floats, 4-bit floats of gpt-oss, bitsandbytes, and what transformers quantises by itself."""

from __future__ import annotations

from inferplan.models.huggingface.quantisation.rules import (
    Module,
    by_component,
    by_name,
    by_path,
    by_transformers,
)
from inferplan.models.huggingface.quantisation.scheme import Scheme, finish, names, refuse, unless
from inferplan.models.huggingface.reader import Reader


def fp8(table: Reader) -> Scheme:
    """fp8 by block, tensor or row. A module is left out where its name has an entry as a run of whole parts (SGLang).

    vLLM compares whole names alone, so a list of inner names skips nothing there: such a checkpoint does not load.
    """
    method = table.get("quant_method")
    block = table.get("weight_block_size")
    if block not in (None, [128, 128]):
        raise refuse(table, f"weight_block_size = {block}", "only [128, 128] is known")
    table.only("fmt", "e4m3", "float8_e4m3fn", "float8_e4m3")
    stored = "fp8-block" if block else "fp8-row" if method in ("fbgemm_fp8", "ptpc_fp8") else "fp8"
    skips = names(table, "modules_to_not_convert", "ignored_layers")
    finish(table, "activation_scheme", "activation_scale_ub", "scale_fmt", "dequantize", "fmt")
    return Scheme(
        stored=unless(by_path(skips), stored),
        elsewhere=unless(by_name(skips), stored),
        loaders=("SGLang", "vLLM"),
        activations="fp8",
    )


def mxfp4(table: Reader) -> Scheme:
    """gpt-oss: the experts alone, whatever else the list leaves out (vLLM's ``mxfp4.py``)."""
    skips = by_path(names(table, "modules_to_not_convert", "ignored_layers"))
    finish(table, "quant_method", "dequantize")

    def stored(module: Module) -> str | None:
        return "mxfp4" if ".experts." in f"{module.name}." and skips(module) is None else None

    return Scheme(stored=stored)


_BITSANDBYTES = (
    *("bnb_4bit_compute_dtype", "bnb_4bit_quant_storage", "llm_int8_threshold", "llm_int8_enable_fp32_cpu_offload"),
    *("quant_method", "llm_int8_skip_modules"),
)


def bitsandbytes(table: Reader) -> Scheme:
    """bitsandbytes: 4 bits with a constant for 64 elements, or 8 with one for each row.

    vLLM leaves out what has an entry as one part of its name or as its beginning, and the head always.
    """
    four, eight = table.flag("load_in_4bit", False), table.flag("load_in_8bit", False)
    if four == eight:
        raise refuse(table, f"load_in_4bit = {four}, load_in_8bit = {eight}", "one of the two must be true")
    table.only("llm_int8_has_fp16_weight", False)
    kind, nested = table.get("bnb_4bit_quant_type") or "fp4", table.flag("bnb_4bit_use_double_quant", False)
    if kind not in ("fp4", "nf4"):
        raise refuse(table, f"bnb_4bit_quant_type = {kind!r}", "only fp4 and nf4 are known")
    stored = "int8-row" if eight else f"{kind}-dq" if nested else kind
    skips = names(table, "llm_int8_skip_modules") or ["lm_head"]
    finish(table, *_BITSANDBYTES)
    return Scheme(
        stored=unless(by_component(skips), stored), elsewhere=unless(by_transformers(skips), stored, head=True)
    )


def eetq(table: Reader) -> Scheme:
    """EETQ: int8 with a 16-bit scale for each output column."""
    table.only("weights", "int8")
    skips = names(table, "modules_to_not_convert")
    finish(table, "quant_method", "weights")
    return Scheme(stored=unless(by_transformers(skips), "int8-channel"), loaders=("transformers", "transformers"))


def hqq(table: Reader) -> Scheme:
    """HQQ: integers with a 16-bit scale and zero for each group."""
    inner = table.table("quant_config") or table
    weights = inner.table("weight_quant_params")
    if weights is None:
        raise refuse(table, "quant_config", "it has no weight_quant_params: bits by layer are not known")
    bits, size = weights.get("nbits"), weights.get("group_size")
    weights.only("view_as_float", False)
    finish(weights, "axis", "channel_wise", "optimize", "round_zero", "bitpack")
    for name in ("scale_quant_params", "zero_quant_params", "offload_meta"):
        inner.only(name, False)
    if bits not in (2, 4, 8) or size not in (32, 64, 128):
        raise refuse(
            weights, f"nbits = {bits}, group_size = {size}", "2, 4 or 8 bits in groups of 32, 64 or 128 are known"
        )
    skips = names(table, "skip_modules") or ["lm_head"]
    finish(table, "quant_method", "quant_config", "dynamic_config")
    return Scheme(stored=unless(by_path(skips), f"int{bits}-g{size}b"))
