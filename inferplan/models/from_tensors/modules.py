"""Modules of a checkpoint by the names that model code gives them, and what each is for.

Names: the classes of transformers (``nn.Linear`` has ``[outputs, inputs]``, ``Conv1D`` of GPT-2 the transpose), the
model code of InternLM, Baichuan, MPT and Mistral, and llama.cpp's ``gguf-py/gguf/constants.py`` (``TENSOR_NAMES``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from inferplan.models.gguf_header import WIDE_GGML_TYPES
from inferplan.models.header_bytes import Tensor
from inferplan.models.safetensors_header import EIGHT_BIT_FLOATS, WIDE_TYPES
from inferplan.work.formats import FORMATS

_NAME = re.compile(
    r"(?P<module>.+?)(?:\.(?P<leaf>weight|bias|qweight|qzeros|scales|g_idx|inv_freq|SCB|weight_\w+"
    r"|(?:input|output|activation|k|v)_scale|weight\.\w+(?:\.\w+)?)|_(?P<part>blocks|scales|bias))?"
)
_EXPERT = re.compile(r"(?P<before>.*\bexperts)\.(?P<number>\d+)\.(?P<name>.+)")
_WIDE = WIDE_TYPES | WIDE_GGML_TYPES
_FEED_FORWARD = re.compile(r"(^|\.)(mlp|ffn|feed_forward|ff|shared_mlp|block_sparse_moe|moe)\.")


def _by_name(roles: dict[str, str]) -> dict[str, str]:
    return {name: role for role, names in roles.items() for name in names.split()}


_ATTENTION = _by_name(
    {
        "query": "q_proj q_a_proj q_b_proj wq attn_q attn_q_a attn_q_b",
        "key": "k_proj wk attn_k",
        "value": "v_proj wv attn_v",
        "fused": "qkv_proj query_key_value Wqkv wqkv c_attn W_pack attn_qkv",
        "latent": "kv_a_proj_with_mqa attn_kv_a_mqa",
        "from_latent": "kv_b_proj attn_kv_b attn_k_b attn_v_b",
        "out": "o_proj out_proj wo attn_output dense c_proj",
    }
)
_INSIDE = _by_name({"router": "gate router layer classifier wg shared_expert_gate", "down": "c_proj"})
_DENSE = _by_name(
    {
        "in": "gate_proj up_proj gate_up_proj fc1 fc_in c_fc w1 w3 dense_h_to_4h input_linear ffn_gate ffn_up "
        "ffn_gate_shexp ffn_up_shexp",
        "down": "down_proj fc2 fc_out w2 dense_4h_to_h output_linear ffn_down ffn_down_shexp",
        "router": "ffn_gate_inp ffn_gate_inp_shexp",
        "experts_in": "ffn_gate_exps ffn_up_exps ffn_gate_up_exps",
        "experts_down": "ffn_down_exps",
    }
)
_SMALL = re.compile(
    r"(.*\.)?([^.]*norm[^.]*|ln_?\w*|sinks|e_score_correction|expert_bias|expert|exp_probs_b|rotary_emb)"
)
"""Norms, and what else has one value a channel, a head or an expert, and keeps nothing."""


@dataclass
class Module:
    """One module of a layer, with its tensors by what stands behind its name (``weight``, ``scales``)."""

    name: str
    tensors: dict[str, Tensor] = field(default_factory=dict)
    experts: int = 0
    """How many alike it stands for; 0 for one that is no expert."""

    @property
    def role(self) -> str:
        """What it does; ``small`` for what multiplies nothing and keeps nothing, empty for what is not known."""
        if _SMALL.fullmatch(self.name):
            return "small" if all(len(tensor.shape) < 2 for tensor in self.tensors.values()) else ""
        last, expert = self.name.rpartition(".")[2], self.experts or ".experts." in f".{self.name}."
        inside = expert or _FEED_FORWARD.search(self.name)
        found = (_INSIDE.get(last) if inside else _ATTENTION.get(last)) or _DENSE.get(last, "")
        stacked = self.matrix is not None and len(self.matrix.shape) == 3 and found in ("in", "down")
        return f"experts_{found}" if (expert or stacked) and found in ("in", "down") else "" if expert else found

    @property
    def matrix(self) -> Tensor | None:
        """Its matrix, in a type whose shape is that of the numbers; ``None`` where there is none, or a packed one."""
        found = self.tensors.get("weight") or self.tensors.get("")
        if found is None or len(found.shape) < 2 or format_of(found)[2]:
            return None
        return found

    def outputs(self, width: int) -> int | None:
        """Rows of its output for each token; ``None`` where it is packed so that no shape says it.

        width: of the model; a matrix that has it first and not last is a ``Conv1D``.
        """
        if self.matrix is not None:
            rows, columns = self.matrix.shape[-2:]
            return columns if rows == width != columns else rows
        for leaf, axis in (("weight_packed", 0), ("scales", -1)):
            if (packed := self.tensors.get(leaf)) is not None and len(packed.shape) == 2:
                return packed.shape[axis]
        halved = self.tensors.get("weight")  # two values of four bits in a byte, with a scale of each block of a row
        if halved is not None and len(halved.shape) == 2 and "weight_scale" in self.tensors:
            return halved.shape[0]
        return None

    def inputs_beside(self, width: int) -> int:
        """Columns of its input, where :meth:`outputs` are the other side of its matrix."""
        assert self.matrix is not None
        rows, columns = self.matrix.shape[-2:]
        return rows if rows == width != columns else columns

    def inputs(self, width: int) -> int | None:
        """Columns of its input, of a module that puts out ``width``; ``None`` where no shape says it."""
        if self.matrix is None:
            return None
        rows, columns = self.matrix.shape[-2:]
        return rows if columns == width != rows else columns


def format_of(tensor: Tensor) -> tuple[str, list[int], bool]:
    """The format of a tensor, its shape, and whether it is packed: then it is so many bytes."""
    if (name := _WIDE.get(tensor.dtype, tensor.dtype)) in FORMATS:
        return name, list(tensor.shape), False
    if tensor.dtype in EIGHT_BIT_FLOATS:
        return "fp8", list(tensor.shape), False
    return "int8", [tensor.size], True


def modules_of(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Module]:
    """Tensors of a layer by module; numbered experts that are alike as one."""
    found: dict[str, Module] = {}
    numbered: dict[str, list[Tensor]] = {}
    for name, tensor in tensors:
        one = _EXPERT.fullmatch(name)
        if one is None:
            _into(found, name, tensor)
        else:
            numbered.setdefault(f"{one['before']}.{one['name']}", []).append(tensor)
    counts = Counter(map(len, numbered.values()))
    experts = counts.most_common(1)[0][0] if counts else 0
    for name, each in numbered.items():
        alike = len({(one.dtype, one.shape, one.size) for one in each}) == 1 and len(each) == experts
        for index, tensor in enumerate(each[:1] if alike else each):
            _into(found, name if alike else f"{name}.{index}", tensor, experts if alike else 0)
    return found


def _into(found: dict[str, Module], name: str, tensor: Tensor, experts: int = 0) -> None:
    parts = _NAME.fullmatch(name)
    assert parts is not None
    key = f"{parts['module']} x {experts}"  # a bias of all experts may stand beside numbered matrices
    module = found.setdefault(key, Module(parts["module"], experts=experts))
    module.tensors[parts["leaf"] or (f"_{parts['part']}" if parts["part"] else "")] = tensor
