"""Integers packed by GPTQ, AWQ and AutoRound."""

from __future__ import annotations

import re
from typing import Any

from inferplan.models.huggingface.quantisation.rules import Module, by_beginning, by_path, by_substring, by_transformers
from inferplan.models.huggingface.quantisation.scheme import (
    Decision,
    Scheme,
    expression,
    finish,
    groups,
    is_head,
    known,
    lists,
    names,
    refuse,
    tables,
    unless,
)
from inferplan.models.huggingface.reader import Reader

_GPTQ = (
    *(
        "desc_act",
        "sym",
        "damp_percent",
        "damp_auto_increment",
        "static_groups",
        "true_sequential",
        "model_name_or_path",
    ),
    *("model_file_base_name", "dataset", "tokenizer", "quantizer", "meta", "act_group_aware", "backend", "use_exllama"),
    *("exllama_config", "max_input_length", "cache_block_outputs", "batch_size", "pad_token_id", "use_cuda_fp16"),
    *("block_name_to_quantize", "module_name_preceding_first_block", "model_seqlen", "version", "mse", "format"),
    *(
        "disable_exllama",
        "parallel_packing",
        "device",
        "is_marlin_format",
        "checkpoint_format",
        "pack_dtype",
        "lm_head",
    ),
)
"""How the weights were found, and which kernel reads them: the stored bytes are the same."""


def gptq(table: Reader) -> Scheme:
    """GPTQ: ``qweight``, ``qzeros``, ``scales`` and ``g_idx`` for each linear layer of the blocks (GPTQModel).

    vLLM's rules (``utils/gptq_utils.py``): ``dynamic`` leaves out what an expression after ``-:`` begins, and gives
    what one after ``+:`` begins its own bits and group; the first that matches decides.
    """
    bits, group = table.get("bits", "w_bit"), table.need("group_size", "q_group_size")
    for name in ("checkpoint_format", "format"):
        table.only(name, "gptq", "gptq_v2")
    table.only("is_marlin_format", False)
    table.only("pack_dtype", "int32")
    head = table.flag("lm_head", False)
    default = _gptq_format(table, bits, group)
    said: dict[str, str | None] = {}
    rules = table.table("dynamic")
    for pattern in rules.config if rules is not None else ():
        expression(table, pattern[2:] if pattern[:2] in ("-:", "+:") else pattern)
        inner = rules.table(pattern) if rules is not None else None
        if pattern.startswith("-:") or inner is None:
            said[pattern[2:]] = None
            continue
        own = inner.get("bits") or bits, inner.get("group_size") or group
        finish(inner, "desc_act", "sym", "mse", "damp_percent", "act_group_aware", "static_groups")
        said.setdefault(pattern.removeprefix("+:"), _gptq_format(inner, *own))
    inside = lists(table, "modules_in_block_to_quantize")
    skipped = by_path(names(table, "modules_to_not_convert"))
    dynamic = by_beginning(said)

    def stored(module: Module) -> str | None:
        if module.kind != "Linear" or (is_head(module) and not head) or skipped(module) is not None:
            return None
        if inside and not is_head(module) and not any(name in module.full for name in inside):
            return None
        found = dynamic(module)
        return default if found is None else said[found]

    finish(table, *_GPTQ)
    return Scheme(stored=stored)


def _gptq_format(table: Reader, bits: Any, group: Any) -> str:
    size = groups(group)
    end = "-channel" if size is None else "" if size == 128 else f"-g{size}"
    return known(table, f"bits = {bits}, group_size = {group}", f"int{bits}-gptq{end}")


_AWQ = (
    "version",
    "do_fuse",
    "fuse_max_seq_len",
    "modules_to_fuse",
    "exllama_config",
    "backend",
    "zero_point",
    "desc_act",
)
_AWQ_LAYOUTS = ("gemm", "gemv", "exllama", "ipex", "llm-awq")


def awq(table: Reader) -> Scheme:
    """AWQ: ``qweight``, ``qzeros`` and ``scales`` for each linear layer of the blocks (AutoAWQ).

    vLLM leaves out every module that has an entry of ``modules_to_not_convert`` anywhere in its name; transformers
    only from the start or at the end of it.
    """
    bits, group = table.get("bits", "w_bit"), table.need("group_size", "q_group_size")
    version = table.get("version")
    if bits != 4:
        raise refuse(table, f"bits = {bits!r}", "AutoAWQ packs 4 bits alone")
    if version is not None and str(version).lower() not in _AWQ_LAYOUTS:
        raise refuse(table, f"version = {version!r}", f"the layouts of {', '.join(_AWQ_LAYOUTS)} are known")
    table.only("format", "gemm", "gemv")
    stored = zeros(table, bits, group)
    skips = names(table, "modules_to_not_convert")
    finish(table, *_AWQ, "lm_head", "sym")
    table.only("lm_head", False)
    other = unless(by_transformers(skips), stored)
    return Scheme(stored=unless(by_substring(skips), stored), elsewhere=other)


def zeros(table: Reader, bits: Any, group: Any) -> str:
    """Integers with a scale and a zero point for each group, without an index of columns."""
    size = groups(group)
    name = f"int{bits}-channelz" if size is None else "int4" if (bits, size) == (4, 128) else f"int{bits}-g{size}z"
    return known(table, f"bits = {bits}, group_size = {group}", name)


_AUTO_ROUND = (
    *("sym", "autoround_version", "iters", "lr", "minmax_lr", "seqlen", "nsamples", "batch_size", "dataset", "amp"),
    *(
        "enable_quanted_input",
        "enable_minmax_tuning",
        "enable_norm_bias_tuning",
        "low_gpu_mem_usage",
        "low_cpu_mem_usage",
    ),
    *("gradient_accumulate_steps", "backend", "vllm_backend", "scale_dtype", "device", "not_use_best_mse", "is_mllm"),
    *(
        "dynamic_max_gap",
        "disable_opt_rtn",
        "enable_alg_ext",
        "act_dynamic",
        "act_sym",
        "act_group_size",
        "act_data_type",
    ),
    *(
        "quant_block_list",
        "supported_types",
        "enable_torch_compile",
        "layer_config",
        "sampler",
        "seed",
        "quant_nontext_module",
    ),
    *("momentum", "static_kv_dtype", "enable_deterministic_algorithms"),
)
_SPECIAL = re.compile(r"[*+?^$()\[\]{}|\\]")


def auto_round(table: Reader) -> Scheme:
    """AutoRound: GPTQ's or AWQ's packing without ``g_idx``; ``extra_config`` gives modules their own bits.

    vLLM's rules (``auto_round.py``): an entry is a whole name, or an expression where it has a special character;
    16 bits are a module that stays wide; ``block_name_to_quantize`` are beginnings of names.
    """
    bits, group = table.optional("bits"), table.need("group_size")
    table.only("data_type", "int")
    table.only("act_bits", 16, 32)
    for name in ("super_bits", "super_group_size"):
        table.only(name)
    packing = str(table.get("packing_format") or "auto_round:auto_gptq")
    if not re.fullmatch(r"auto_round(:(auto_)?(gptq|awq|gptqmodel))?", packing):
        raise refuse(
            table, f"packing_format = {packing!r}", "only auto_round:auto_gptq and auto_round:auto_awq are known"
        )
    default = zeros(table, bits, group)
    blocks = lists(table, "block_name_to_quantize", "to_quant_block_names")
    entries: dict[str, str | None] = {}
    for name, inner in tables(table, "extra_config").items():
        expression(table, name)
        own = inner.optional("bits") or bits or 0
        inner.only("data_type", "int", "fp", "float")
        size = inner.get("group_size") or group
        entries[name] = None if own >= 16 else zeros(inner, own, size)
        finish(inner, "sym", "act_bits", "act_dynamic", "act_sym", "act_group_size", "act_data_type", "scale_dtype")
    finish(table, *_AUTO_ROUND)
    return Scheme(stored=_entries(entries, default, blocks))


def _entries(entries: dict[str, str | None], default: str, blocks: list[str]) -> Decision:
    plain = by_path(name for name in entries if not _SPECIAL.search(name))
    expressions = [(re.compile(name), name) for name in entries if _SPECIAL.search(name)]
    starts = tuple(without + "." for without in blocks)

    def stored(module: Module) -> str | None:
        if module.kind != "Linear":
            return None
        found = plain(module) or next((name for e, name in expressions if e.search(module.full)), None)
        if found is not None:
            return entries[found]
        inside = not blocks or module.full.startswith(starts)
        return default if inside and not is_head(module) else None

    return stored
