"""A folder with a LoRA adapter as PEFT saves it: ``adapter_config.json``, and the header of its safetensors.

Every field of the config (``LoraConfig`` of peft 0.18) is read, known to change no work, or refused by its name.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from inferplan.errors import SpecError
from inferplan.files import LARGEST_SPEC, parse_json, read_text
from inferplan.models.checkpoint import read_header
from inferplan.models.header_bytes import Tensor
from inferplan.work.adapters import MODULES, StoredAdapter

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_NO_WORK = frozenset(
    {"task_type", "auto_mapping", "base_model_name_or_path", "revision", "inference_mode", "peft_version"}
    | {"lora_alpha", "alpha_pattern", "use_rslora"}  # a scale of B
    | {"lora_dropout", "init_lora_weights", "loftq_config", "eva_config", "corda_config", "lora_ga_config"}  # training
    | {"fan_in_fan_out", "layers_pattern", "megatron_core", "runtime_config", "ensure_weight_tying"}
    | {"qalora_group_size"}
)
"""Fields that change no FLOP and no byte of a merged or served adapter, whatever they hold."""
_READ = frozenset({"peft_type", "r", "target_modules", "rank_pattern"})
_REFUSED = {
    "bias": "trained biases are kept next to the model",
    "modules_to_save": "whole matrices are replaced",
    "exclude_modules": "some matrices are left out by name",
    "layers_to_transform": "only some layers are adapted",
    "layer_replication": "layers are repeated",
    "trainable_token_indices": "rows of the embedding are replaced",
    "target_parameters": "parameters that are no linear layers are adapted",
    "use_dora": "DoRA rescales every column by a norm of the whole matrix",
    "use_qalora": "QA-LoRA pools the inputs of an adapter",
    "use_bdlora": "adapters are block-diagonal",
    "lora_bias": "the second matrix has a bias",
    "megatron_config": "layers are Megatron's",
    "arrow_config": "a router mixes several adapters",
    "alora_invocation_tokens": "the adapter begins in the middle of a prompt",
}
"""Fields that mean work which is not priced, and what they do; empty values are taken."""
_TENSOR = re.compile(r"\.(\w+)\.lora_(A|B)(?:\.\w+)?\.weight$")


def read_adapter(folder: Path) -> StoredAdapter:
    """The adapter in a folder. Raises ``InputFileError`` for files that are not there, ``SpecError`` for what is not
    known of it, or where its tensors are not those that its config promises."""
    where = folder / CONFIG
    data, _ = parse_json(read_text(where, LARGEST_SPEC), str(where), SpecError)
    if not isinstance(data, dict):
        raise SpecError(f"{where}: not a mapping of fields")
    ranks = _ranks(where, data)
    tensors = read_header(folder / WEIGHTS)
    _require_promised(folder / WEIGHTS, tensors, ranks)
    return StoredAdapter(
        name=folder.resolve().name,
        ranks=ranks,
        elements=sum(tensor.elements for tensor in tensors),
        size=sum(tensor.size for tensor in tensors),
        dtypes=tuple(sorted({tensor.dtype for tensor in tensors})),
    )


def _ranks(where: Path, data: dict[str, Any]) -> dict[str, int]:
    """The rank of each matrix that is adapted."""
    for name, value in data.items():
        if name in _REFUSED and value not in (None, False, [], {}, "", "none"):
            raise SpecError(f"{where}: {name} is not known here: {_REFUSED[name]}")
        if name not in _NO_WORK and name not in _READ and name not in _REFUSED:
            raise SpecError(f"{where}: what {name!r} means is not known here")
    if data.get("peft_type") != "LORA":
        raise SpecError(f"{where}: peft_type is {data.get('peft_type')!r}", hint="adapters of peft_type LORA are read")
    rank = _whole(where, "r", data.get("r"))
    targets = data.get("target_modules")
    if targets == "all-linear":
        targets = list(MODULES.values())
    if not isinstance(targets, list) or not targets:
        raise SpecError(f"{where}: target_modules is {targets!r}", hint="a list of names: q_proj, v_proj, ...")
    known = {long: short for short, long in MODULES.items()}
    own = {str(name).rpartition(".")[2] for name in targets}
    if odd := sorted(own - known.keys()):
        raise SpecError(f"{where}: target_modules: {odd[0]} is not known here", hint=f"of {', '.join(known)}")
    pattern = data.get("rank_pattern") or {}
    if not isinstance(pattern, dict) or not pattern.keys() <= own:
        raise SpecError(
            f"{where}: rank_pattern names other than its target_modules, which is not known here",
            because=f"it has {', '.join(map(str, pattern))}",
        )
    return {known[name]: _whole(where, "rank_pattern", pattern.get(name, rank)) for name in sorted(own)}


def _whole(where: Path, name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SpecError(f"{where}: {name} is {value!r}", hint="a rank of 1 or more")
    return value


def _require_promised(where: Path, tensors: list[Tensor], ranks: dict[str, int]) -> None:
    """Raise ``SpecError`` for a tensor that the config does not promise, or of another rank, and for half a pair."""
    known = {long: short for short, long in MODULES.items()}
    halves: dict[str, Counter[str]] = defaultdict(Counter)
    for tensor in tensors:
        found = _TENSOR.search(tensor.name)
        module = known.get(found[1], "") if found else ""
        if found is None or module not in ranks or len(tensor.shape) != 2:
            raise SpecError(f"{where}: {tensor.name} is none of the matrices that {CONFIG} names")
        rank = tensor.shape[0 if found[2] == "A" else 1]
        if rank != ranks[module]:
            raise SpecError(f"{where}: {tensor.name} has rank {rank}, {CONFIG} says {ranks[module]}")
        halves[module][found[2]] += 1
    for module in ranks:
        if not halves[module]["A"] or halves[module]["A"] != halves[module]["B"]:
            raise SpecError(
                f"{where}: {MODULES[module]} is not adapted in pairs",
                because=f"{halves[module]['A']} matrices A and {halves[module]['B']} B",
            )
