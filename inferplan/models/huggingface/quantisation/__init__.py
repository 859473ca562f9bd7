"""Quantisation tables: which tensors of a checkpoint are stored in which format.

Every method's table is read field by field; what is not understood is refused by name. Each weight is looked up under
the name that its family gives its module (:mod:`.modules`), by the rule of the loader (:mod:`.rules`), and the result
is summed up as one format a role and the exceptions (:mod:`.native`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from inferplan.models.huggingface.quantisation.compressed import compressed
from inferplan.models.huggingface.quantisation.floats import bitsandbytes, eetq, fp8, gemma, hqq, mxfp4
from inferplan.models.huggingface.quantisation.integers import auto_round, awq, gptq
from inferplan.models.huggingface.quantisation.layouts import LAYOUTS
from inferplan.models.huggingface.quantisation.libraries import mlx, quark, torchao
from inferplan.models.huggingface.quantisation.modelopt import modelopt
from inferplan.models.huggingface.quantisation.modules import Layout, checkpoint_shapes, places
from inferplan.models.huggingface.quantisation.native import apply, exceptions, sum_up, towers_note
from inferplan.models.huggingface.quantisation.rules import tells_experts
from inferplan.models.huggingface.quantisation.scheme import Scheme, refuse
from inferplan.models.huggingface.reader import Reader

__all__ = [
    "LAYOUTS",
    "Layout",
    "Scheme",
    "apply",
    "checkpoint_shapes",
    "exceptions",
    "places",
    "read_scheme",
    "sum_up",
    "towers_note",
]

METHODS: dict[str, Callable[[Reader], Scheme]] = {
    "fp8": fp8,
    "fbgemm_fp8": fp8,
    "ptpc_fp8": fp8,
    "mxfp8": fp8,
    "mxfp4": mxfp4,
    "gemma": gemma,
    "gptq": gptq,
    "gptqmodel": gptq,
    "awq": awq,
    "auto-round": auto_round,
    "intel/auto-round": auto_round,
    "bitsandbytes": bitsandbytes,
    "compressed-tensors": compressed,
    "modelopt": modelopt,
    "modelopt_fp4": modelopt,
    "modelopt_mixed": modelopt,
    "torchao": torchao,
    "quark": quark,
    "hqq": hqq,
    "eetq": eetq,
    "mlx": mlx,
}
"""Each ``quant_method`` and what reads its table."""


def read_scheme(config: dict[str, Any], name: str) -> Scheme:
    """What a ``quantization_config``, ``hf_quant_config.json`` or MLX's ``quantization`` says.

    Raises ``SpecError`` that names the field: a method whose layout is not known, or a field that could change a byte.
    """
    table = Reader(config, name, "quantization_config.")
    method = table.get("quant_method")
    found = str(method).lower() if method is not None else _unnamed(config)
    if config.get("quant_algo") and found != "modelopt_mixed":
        found = "modelopt"
    if found not in METHODS:
        raise refuse(table, f"quant_method = {method!r}", f"its layout is not known; {', '.join(METHODS)} are")
    return replace(METHODS[found](table), by_expert=tells_experts(config))


def _unnamed(config: dict[str, Any]) -> str:
    """The method of a table that does not name it, by the fields that only one has."""
    if config.get("load_in_4bit") or config.get("load_in_8bit"):
        return "bitsandbytes"
    if "quant_algo" in config or isinstance(config.get("quantization"), dict):
        return "modelopt"
    if "config_groups" in config:
        return "compressed-tensors"
    return "mlx" if config.keys() >= {"bits", "group_size"} or "mode" in config else "absent"
