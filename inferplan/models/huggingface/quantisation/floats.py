"""Eight-bit floats, 4-bit floats of gpt-oss, bitsandbytes, and what transformers quantises by itself."""

from __future__ import annotations

import re

from inferplan.models.huggingface.quantisation.rules import (
    Module,
    by_component,
    by_name,
    by_path,
    by_transformers,
)
from inferplan.models.huggingface.quantisation.scheme import (
    Decision,
    Scheme,
    expression,
    finish,
    known,
    names,
    refuse,
    tables,
    unless,
)
from inferplan.models.huggingface.reader import Reader


def fp8(table: Reader) -> Scheme:
    """fp8 by block, tensor or row. A module is left out where its name has an entry as a run of whole parts (SGLang).

    vLLM compares whole names alone, so a list of inner names skips nothing there: such a checkpoint does not load.
    Blocks of 1 x 32 with 8-bit exponents are MXFP8, and experts of ``expert_dtype`` fp4 are MXFP4 (transformers'
    ``FineGrainedFP8Config``).
    """
    method = table.get("quant_method")
    block, scales = table.get("weight_block_size"), table.get("scale_fmt")
    stored = {"None": "fp8-row" if method in ("fbgemm_fp8", "ptpc_fp8") else "fp8", "[128, 128]": "fp8-block"}
    if scales == "ue8m0" or method == "mxfp8":
        stored |= {"[1, 32]": "mxfp8"}
    if str(block) not in stored or (method == "mxfp8" and block is None):
        raise refuse(
            table, f"weight_block_size = {block}", f"only {', '.join(stored)} are known with scale_fmt = {scales!r}"
        )
    table.only("fmt", "e4m3", "float8_e4m3fn", "float8_e4m3")
    table.only("expert_dtype", "fp8", "fp4")
    table.only("activation_scheme", "dynamic", "static")
    default, experts = stored[str(block)], "mxfp4" if table.get("expert_dtype") == "fp4" else None
    skips = names(table, "modules_to_not_convert", "ignored_layers")
    finish(table, "activation_scheme", "activation_scale_ub", "scale_fmt", "dequantize", "fmt")

    def routed(decide: Decision) -> Decision:
        return lambda module: experts if experts and ".experts." in f"{module.name}." else decide(module)

    return Scheme(
        stored=routed(unless(by_path(skips), default)),
        elsewhere=routed(unless(by_name(skips), default)),
        loaders=("SGLang", "vLLM"),
        activations="mxfp8" if default == "mxfp8" else "fp8",
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


def gemma(table: Reader) -> Scheme:
    """Google's own 2, 4 and 8 bits (transformers' ``GemmaQuantizationConfig``): an fp32 scale for each output row.

    ``module_quant_configs`` are expressions that are searched in a name, the first one decides; embeddings are packed
    where ``quantize_embeddings`` says so.
    """
    bits, vocabulary = table.get("num_bits"), table.flag("quantize_embeddings", False)
    default = known(table, f"num_bits = {bits}", f"int{4 if bits is None else bits}-row")
    own: list[tuple[re.Pattern[str], str]] = []
    for pattern, inner in tables(table, "module_quant_configs").items():
        width = inner.get("num_bits") or bits
        own.append((expression(table, pattern), known(inner, f"num_bits = {width}", f"int{width}-row")))
        finish(inner)
    skips = names(table, "modules_to_not_convert")
    skipped = by_transformers(skips or ["lm_head"])
    finish(table, "quant_method")

    def stored(module: Module) -> str | None:
        if skipped(module) is not None or (module.kind == "Embedding" and not vocabulary):
            return None
        return next((name for pattern, name in own if pattern.search(module.full)), default)

    return Scheme(stored=stored)
