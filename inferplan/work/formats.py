"""Number formats and which tensor is kept in which.

A :class:`Format` is how one tensor is stored: element bits plus the scales and zeros shared by a group. ``math`` names
the arithmetic that two operands of this format run in; a weight-only format (W4A16, W8A16) runs in its activations'.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

from inferplan.errors import UnknownNameError, UsageError


@dataclass(frozen=True, kw_only=True)
class Format:
    """One storage format.

    bits: element bits. scale_bits, zero_bits: bits of the scale and zero point that ``group`` elements share.
    math: the key in ``HardwareSpec.peak`` of the arithmetic two such operands run in. source: where the layout is from.
    row_bits: what each output row of a matrix has beside it (a scale for each channel). column_bits: what each input
    column has (GPTQ's ``g_idx``). per_head: ``group`` is a head of the KV cache, whatever its size. like: the format
    whose kernels run it, where that is another. caveat: what its times do not count, in words.
    """

    name: str
    bits: float
    math: str
    scale_bits: int = 0
    zero_bits: int = 0
    group: float = 1
    row_bits: int = 0
    column_bits: int = 0
    per_head: bool = False
    like: str = ""
    caveat: str = ""
    source: str = "IEEE 754 or its truncation"

    @property
    def kernel(self) -> str:
        """The name that measured kernels have it under."""
        return self.like or self.name

    def stored(self, shape: tuple[int, ...]) -> float:
        """Bytes of a whole tensor, with what stands beside its rows and columns."""
        elements = prod(shape)
        if len(shape) < 2 or not elements:
            return elements * self.width
        beside = self.row_bits * elements / shape[-1] + self.column_bits * elements / shape[-2]
        return elements * self.width + beside / 8

    @cached_property
    def width(self) -> float:
        """Bytes per element, scales and zeros included: ``(bits + (scale_bits + zero_bits)/group)/8``."""
        return (self.bits + (self.scale_bits + self.zero_bits) / self.group) / 8


_OCP = "OCP 8-bit Floating Point Specification 1.0"
_MX = "OCP Microscaling Formats (MX) Specification 1.0, table 1"
_NVFP4 = "NVIDIA Transformer Engine documentation, NVFP4: 16-element blocks with an E4M3 scale"
_GPTQ = "AutoGPTQ/AutoAWQ packing: fp16 scale and 4-bit zero per group of 128"
_HEAD = "vLLM --kv-cache-dtype {}_per_token_head: an fp32 scale for each token and KV head"
_LMDEPLOY = "LMDeploy quant_policy: an fp16 scale and zero for each token and KV head"
_KIVI = (
    "KIVI (2402.02750) section 4: fp16 scale and zero for 32 elements; its last 128 tokens in 16 bit are not counted"
)
_DS_MLA = "vLLM fp8_ds_mla: 512 fp8, 4 fp32 scales and 64 bf16 are 656 bytes for 576 elements"
_BNB = "bitsandbytes: an fp32 absmax for 64 elements"
_PACKED = "compressed-tensors pack-quantized, symmetric: a 16-bit scale for each group"
_INTEGERS = "GPTQ and AutoRound packing: an fp16 scale and a zero point of as many bits as an element for each {}"
_BIASED = "MLX affine, HQQ and torchao int4: a 16-bit scale and a 16-bit bias or zero point for each {}"
_CHANNEL = "compressed-tensors: a 16-bit scale for each output row"
_MASKED = "compressed-tensors sparse-24-bitmask: half of the elements, and a bit of mask for each element"
_SPARSE = "2:4 sparse: half of the elements, and 2 bits of place for each of them"
_GGML = "llama.cpp ggml-common.h: the block structs and their static assertions"
# name, element bits, scale bits and zero bits of one block, elements of a block. A super-block's packed 6- and 4-bit
# scales, its fp16 scales and sign or grid bits count as scale bits.
_BLOCKS: list[tuple[str, float, int, int, int]] = [
    ("q4_0", 4, 16, 0, 32),
    ("q4_1", 4, 16, 16, 32),
    ("q5_0", 5, 16, 0, 32),
    ("q5_1", 5, 16, 16, 32),
    ("q8_0", 8, 16, 0, 32),
    ("q2_k", 2, 144, 16, 256),
    ("q3_k", 3, 112, 0, 256),
    ("q4_k", 4, 112, 16, 256),
    ("q5_k", 5, 112, 16, 256),
    ("q6_k", 6, 144, 0, 256),
    ("iq1_s", 1.5, 16, 0, 256),
    ("iq1_m", 1.75, 0, 0, 256),
    ("iq2_xxs", 2, 16, 0, 256),
    ("iq2_xs", 2, 80, 0, 256),
    ("iq2_s", 2.5, 16, 0, 256),
    ("iq3_xxs", 3, 16, 0, 256),
    ("iq3_s", 3, 112, 0, 256),
    ("iq4_nl", 4, 16, 0, 32),
    ("iq4_xs", 4, 64, 0, 256),
    ("tq1_0", 1.625, 16, 0, 256),
    ("tq2_0", 2, 16, 0, 256),
]


def _zeros(bits: int) -> list[Format]:
    """Integers with a zero point, which GPTQ keeps with a ``g_idx``; AWQ's 4 bits are on file under their own names."""
    known = {(4, group) for group in (32, 64, 128)}
    rows: list[Format] = []
    for group in (0, 32, 64, 128):
        said = f"{group} elements" if group else "output row"
        shared = {"scale_bits": 16, "zero_bits": bits, "group": group} if group else {"row_bits": 16 + bits}
        fields: dict[str, Any] = {"bits": bits, "math": f"int{4 if bits < 8 else 8}", **shared}
        fields |= {"like": f"int{bits}" if bits in (4, 8) else "", "source": _INTEGERS.format(said)}
        end = f"g{group}" if group else "channel"
        if (bits, group) not in known:
            rows.append(Format(name=f"int{bits}-{end}z", **fields))
        name = f"int{bits}-gptq" + ("" if group == 128 else f"-{end}")
        fields["source"] += ", and GPTQ's int32 g_idx for each input column"
        if name != "int4-gptq":
            rows.append(Format(name=name, column_bits=32, **fields))
    return rows


def _grouped() -> list[Format]:
    """Integers of checkpoints beside the common ones: a row for each number of bits, group and what stands beside."""
    rows = [fmt for bits in (2, 3, 4, 8) for fmt in _zeros(bits)]
    for bits, group in product((4, 8), (32, 64, 128)):
        name, math = f"int{bits}-g{group}", f"int{bits}"
        fields: dict[str, Any] = {"bits": bits, "scale_bits": 16, "group": group, "math": math, "like": math}
        if bits == 8:
            rows.append(Format(name=name, source=_PACKED, **fields))
        source = f"{_PACKED}, and an int32 weight_g_idx for each input column (actorder: group)"
        rows.append(Format(name=f"{name}-idx", column_bits=32, source=source, **fields))
    for bits, group in product((2, 3, 4, 5, 6, 8), (32, 64, 128)):
        source = _BIASED.format(f"{group} elements")
        fields = {"bits": bits, "scale_bits": 16, "zero_bits": 16, "group": group, "source": source}
        rows.append(Format(name=f"int{bits}-g{group}b", math="int4" if bits < 8 else "int8", **fields))
    return rows


FORMATS: dict[str, Format] = {
    fmt.name: fmt
    for fmt in [
        Format(name="fp32", bits=32, math="fp32"),
        Format(name="tf32", bits=32, math="tf32", source="NVIDIA A100 white paper: fp32 storage, 19-bit operands"),
        Format(name="bf16", bits=16, math="bf16"),
        Format(name="fp16", bits=16, math="fp16"),
        Format(name="fp8", bits=8, math="fp8", source=_OCP),
        Format(
            name="fp8-block", bits=8, scale_bits=32, group=128 * 128, math="fp8", source="DeepSeek-V3 (2412.19437) 3.3"
        ),
        Format(
            name="fp8-tile",
            bits=8,
            scale_bits=32,
            group=128,
            math="fp8",
            like="fp8",
            source="DeepSeek-V3 (2412.19437) 3.3: activations in tiles of 1 x 128, an fp32 scale for each",
        ),
        Format(name="int8", bits=8, math="int8", source="symmetric, scale per channel (not counted: 1 in d_in)"),
        Format(name="fp8-channel", bits=8, row_bits=16, math="fp8", like="fp8", source=_CHANNEL),
        Format(
            name="fp8-row",
            bits=8,
            row_bits=32,
            math="fp8",
            like="fp8",
            source="FBGEMM, PTPC and torchao: an fp32 scale for each output row",
        ),
        Format(name="int8-channel", bits=8, row_bits=16, math="int8", like="int8", source=_CHANNEL),
        Format(
            name="int8-row",
            bits=8,
            row_bits=32,
            math="int8",
            like="int8",
            source="bitsandbytes' SCB, Gemma's own 8 bits: an fp32 scale for each output row",
        ),
        *(
            Format(
                name=f"int{bits}-row",
                bits=bits,
                row_bits=32,
                math="int4",
                like="int4" if bits == 4 else "",
                source="transformers' GemmaQuantizationConfig: an fp32 scale for each output row",
            )
            for bits in (2, 4)
        ),
        Format(
            name="llm.int8",
            bits=8 + 0.001 * 8,
            row_bits=32,
            math="int8",
            like="int8",
            caveat="the 16-bit product of its outlier columns is not counted; bitsandbytes is slower than this",
            source="LLM.int8() (2208.07339) section 3.2: 0.1 % of the columns in 16 bit, an fp32 scale for each row",
        ),
        Format(name="int4", bits=4, scale_bits=16, zero_bits=4, group=128, math="int4", source=_GPTQ),
        Format(
            name="int4-gptq",
            bits=4,
            scale_bits=16,
            zero_bits=4,
            group=128,
            column_bits=32,
            math="int4",
            like="int4",
            source="AutoGPTQ: as int4, and an int32 g_idx for each input column",
        ),
        Format(name="int4-g64z", bits=4, scale_bits=16, zero_bits=4, group=64, math="int4", like="int4", source=_GPTQ),
        Format(name="int4-g32z", bits=4, scale_bits=16, zero_bits=4, group=32, math="int4", like="int4", source=_GPTQ),
        Format(name="int4-g128", bits=4, scale_bits=16, group=128, math="int4", like="int4", source=_PACKED),
        Format(name="int4-g64", bits=4, scale_bits=16, group=64, math="int4", like="int4", source=_PACKED),
        Format(name="int4-g32", bits=4, scale_bits=16, group=32, math="int4", like="int4", source=_PACKED),
        Format(
            name="int4-channel",
            bits=4,
            math="int4",
            like="int4",
            row_bits=16,
            source="a 16-bit scale for each output row",
        ),
        Format(name="nf4", bits=4, scale_bits=32, group=64, math="bf16", source="QLoRA (2305.14314) section 3"),
        Format(
            name="nf4-dq",
            bits=4,
            scale_bits=256 * 8 + 32,
            group=256 * 64,
            math="bf16",
            source="QLoRA (2305.14314) section 3: 8-bit constants, and an fp32 for 256 of them",
        ),
        Format(name="fp4", bits=4, scale_bits=32, group=64, math="bf16", source=_BNB),
        Format(
            name="fp4-dq",
            bits=4,
            scale_bits=256 * 8 + 32,
            group=256 * 64,
            math="bf16",
            source="bitsandbytes: fp4 with the nested constants of nf4-dq",
        ),
        *_grouped(),
        *(
            Format(
                name=f"int4-24-g{group}", bits=3, scale_bits=16, group=group, math="int4", like="int4", source=_SPARSE
            )
            for group in (32, 64, 128)
        ),
        Format(name="int4-24-channel", bits=3, row_bits=16, math="int4", like="int4", source=_SPARSE),
        Format(name="fp8-24", bits=5, math="fp8", like="fp8", source=_MASKED),
        Format(name="fp8-24-channel", bits=5, row_bits=16, math="fp8", like="fp8", source=_MASKED),
        Format(name="int8-24", bits=5, math="int8", like="int8", source=_MASKED),
        Format(name="int8-24-channel", bits=5, row_bits=16, math="int8", like="int8", source=_MASKED),
        Format(name="bf16-24", bits=9, math="bf16", like="bf16", source=_MASKED),
        Format(name="nvfp4", bits=4, scale_bits=8, group=16, math="fp4", source=_NVFP4),
        Format(name="mxfp4", bits=4, scale_bits=8, group=32, math="fp4", source=_MX),
        Format(name="mxfp8", bits=8, scale_bits=8, group=32, math="fp8", source=_MX),
        Format(
            name="fp8-token-head",
            bits=8,
            scale_bits=32,
            group=128,
            per_head=True,
            math="fp8",
            source=_HEAD.format("fp8"),
        ),
        Format(
            name="int8-token-head",
            bits=8,
            scale_bits=32,
            group=128,
            per_head=True,
            math="int8",
            source=_HEAD.format("int8"),
        ),
        *(
            Format(
                name=f"int{bits}-token-head-zero",
                bits=bits,
                scale_bits=16,
                zero_bits=16,
                group=128,
                per_head=True,
                math=f"int{bits}",
                source=_LMDEPLOY,
            )
            for bits in (8, 4)
        ),
        *(
            Format(name=f"int{bits}-kivi", bits=bits, scale_bits=16, zero_bits=16, group=32, math="int4", source=_KIVI)
            for bits in (4, 2)
        ),
        Format(
            name="q8_1",
            bits=8,
            scale_bits=16,
            zero_bits=16,
            group=32,
            math="int8",
            source="block_q8_1 of llama.cpp's ggml-common.h: inputs of quantised matmuls, fp16 scale and sum of 32",
        ),
        Format(name="fp8-ds-mla", bits=656 * 8 / 576, math="fp8", source=_DS_MLA),
        *(
            Format(name=name, bits=bits, scale_bits=scale, zero_bits=zero, group=group, math="fp16", source=_GGML)
            for name, bits, scale, zero, group in _BLOCKS
        ),
    ]
}


SPELLINGS = {
    **dict.fromkeys(("bfloat16",), "bf16"),
    **dict.fromkeys(("float16", "half"), "fp16"),
    **dict.fromkeys(("float32", "float"), "fp32"),
    **dict.fromkeys(("fp8-e4m3", "fp8-e4m3fn", "float8-e4m3fn"), "fp8"),
}
"""Names of formats in torch and in engines (vLLM's ``--dtype`` and ``--kv-cache-dtype``), and ours."""
GGUF_BLOCKS = tuple(n for n, f in FORMATS.items() if f.group in (32, 256) and f.source.startswith("llama.cpp"))
"""Formats of matrices in GGUF files."""
_NEARLY = {
    **dict.fromkeys(
        ("q4", "4bit", "4-bit"), "4 bits have several layouts: awq or gptq (vLLM, SGLang), q4_k_m or q4_0 (llama.cpp)"
    ),
    **dict.fromkeys(("q8", "8bit", "8-bit"), "8 bits are fp8, int8 or w8a8 (vLLM, SGLang), or q8_0 (llama.cpp)"),
    **dict.fromkeys(("q5", "q6", "q3", "q2"), "GGUF file types have longer names: q5_k_m, q6_k, q3_k_m, q2_k"),
    **dict.fromkeys(("bitsandbytes", "bnb"), "bitsandbytes writes nf4 and llm.int8"),
    "iq2-m": "its mix of formats is not modelled; near it: iq2_s-pure",
    **dict.fromkeys(("iq3-xs", "iq3-m"), "its mix of formats is not modelled; near it: iq3_xxs-pure, iq3_s-pure"),
    "auto": "the format of the checkpoint is taken where the option is left out",
    "fp8-e5m2": "fp8 has as many bytes, and is priced as e4m3",
}
"""What a name that is no format may mean."""


def spelled(name: str) -> str:
    """The name of a format or a precision in lower case, as this module writes it."""
    plain = name.lower().strip().replace("_", "-")
    return SPELLINGS.get(plain, plain)


def find_format(name: str) -> Format:
    """The format of that name, also as engines write it (``fp8_ds_mla``). Raises ``UnknownNameError`` with those that
    are meant."""
    found = FORMATS.get(name.lower()) or FORMATS.get(spelled(name))
    if found is None:
        usual = "bf16, fp16, fp8, int8, int4, nf4, nvfp4, mxfp4, q8_0, q4_k"
        said = _NEARLY.get(spelled(name), f"{usual}, ... (inferplan formats)")
        raise UnknownNameError(f"no number format named {name!r}", hint=said)
    return found


def arithmetic(weights: Format, activations: Format) -> str:
    """The arithmetic a matmul of these operands runs in: that of the wider operand (W4A16 runs in bf16)."""
    return weights.math if weights.bits > activations.bits else activations.math


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Which format each tensor role is kept in.

    weights, experts: the linear layers and the routed experts; activations: the inputs of quantised linears; kv: the
    cached state; embedding, head: the two vocabulary tables; base: residual stream, norms, router and attention
    arithmetic.
    """

    weights: Format
    activations: Format
    kv: Format
    experts: Format
    embedding: Format
    head: Format
    base: Format
    exceptions: tuple[tuple[str, Format, frozenset[int]], ...] = ()
    """Layer tensors kept in another format than their role: name, format, the layers it holds for (none: all)."""

    def stored(self, role: str, tensor: str, layer: int | None = None) -> Format:
        """The format of a layer's tensor: that of its role, unless an exception names it.

        ``layer`` is its number; ``None`` stands for any layer, to which exceptions for some layers do not apply.
        """
        for name, fmt, layers in self.exceptions:
            if name == tensor and (not layers or layer in layers):
                return fmt
        chosen: Format = getattr(self, role)
        return chosen

    def linear_input(self, weights: Format) -> Format:
        """The format of a linear layer's input: quantised with its weights, otherwise the base format."""
        return self.activations if weights.bits < self.base.bits else self.base

    def describe(self, experts: bool = True) -> str:
        """``"bf16"``, or every role that differs from the base format; ``experts`` where the model has any."""
        roles = ("weights", "activations", "kv", *(("experts",) if experts else ()), "embedding", "head")
        odd = [f"{role} {getattr(self, role).name}" for role in roles if getattr(self, role) != self.base]
        return ", ".join(odd) if odd else self.base.name


WIDE = ("bf16", "fp16", "fp32", "tf32")
"""Formats that a whole model can run in."""
_SIXTEEN = {"bf16": "fp16", "fp16": "bf16"}
"""The two 16-bit formats: each stands for the other where a device has no arithmetic for one of them."""


def held_by(precision: Precision, peaks: Collection[str]) -> Precision:
    """The same with bf16 for fp16, or fp16 for bf16, where a device of arithmetic ``peaks`` has only the other one.

    As engines load a checkpoint there (vLLM: "Your device doesn't support torch.bfloat16. Falling back to
    torch.float16"). The bytes are the same.
    """
    return _swapped(
        precision, {name: other for name, other in _SIXTEEN.items() if name not in peaks and other in peaks}
    )


def narrowed(precision: Precision, wide: str) -> Precision:
    """The same with the 16 bits of ``wide`` for the 32 of fp32."""
    return _swapped(precision, {"fp32": wide})


def _swapped(precision: Precision, names: Mapping[str, str]) -> Precision:
    """The same with other formats for some, by their names."""
    swaps = {name: find_format(other) for name, other in names.items()}
    if not swaps:
        return precision
    roles: dict[str, Any] = {f.name: getattr(precision, f.name) for f in fields(precision) if f.name != "exceptions"}
    changed = {role: swaps.get(fmt.name, fmt) for role, fmt in roles.items()}
    exceptions = tuple((tensor, swaps.get(fmt.name, fmt), layers) for tensor, fmt, layers in precision.exceptions)
    return replace(precision, exceptions=exceptions, **changed)


_WAKV = re.compile(r"w(?P<w>\d+)a(?P<a>\d+)(?:kv(?P<kv>\d+))?")
_WEIGHTS = {("4", "4"): "nvfp4", ("4", "8"): "int4", ("4", "16"): "int4", ("8", "8"): "int8", ("8", "16"): "int8"}
_WEIGHTS |= {("16", "16"): "base"}
_WEIGHT_ONLY = {"int4": "int4", "awq": "int4", "gptq": "int4-gptq", "nf4": "nf4"}
"""Shorthands of 4-bit weights that are multiplied in 16 bits."""


def uniform(base: str = "bf16") -> Precision:
    """Every role in one format: fp32, fp16 or bf16. Raises ``UsageError`` for a format no model can run wholly in."""
    fmt = find_format(base)
    if fmt.bits < 16:
        raise UsageError(f"{base} cannot be the base format", hint="fp32, tf32, bf16 or fp16")
    return Precision(weights=fmt, activations=fmt, kv=fmt, experts=fmt, embedding=fmt, head=fmt, base=fmt)


def _of_matrices(name: str) -> str:
    """How a number format is asked for that is no shorthand for all roles; empty for a name that is none."""
    whole = f"{name}-pure (a file with all matrices in {name}), or " if name in GGUF_BLOCKS else ""
    return f"{whole}--weights {name}" if name in FORMATS else ""


def parse_precision(text: str, peaks: frozenset[str], base: str = "bf16") -> Precision:
    """Parse a ``--quant`` shorthand for a device that has arithmetic ``peaks``.

    ``bf16`` and the other wide formats set every role; ``fp8``, ``fp8-block`` are weights and activations; ``w8a8`` and
    ``int8`` are int8; ``llm.int8`` keeps outlier columns wide; ``int4`` is w4a16, ``awq`` and ``gptq`` are its layouts,
    ``nf4`` is bitsandbytes'; ``nvfp4``, ``mxfp4`` are w4a4; ``wNaMkvK`` sets each (8-bit activations of
    4-bit weights and ``kv8`` are fp8 where the device has it, else int8). Embedding, head, norms and router stay wide.
    ``fp8_block`` is another spelling. Raises ``UsageError`` for anything else.
    """
    name = spelled(text)
    eight = find_format("fp8" if "fp8" in peaks else "int8")
    if name in WIDE:
        return uniform(name)
    wide = uniform(base)
    if name in ("fp8", "fp8-block", "nvfp4", "mxfp4", "int8"):
        fmt = find_format(name)
        inputs = find_format("fp8") if name == "fp8-block" else fmt
        return replace(wide, weights=fmt, experts=fmt, activations=inputs)
    if name == "llm.int8":
        return replace(wide, weights=find_format(name), experts=find_format(name), activations=find_format("int8"))
    if name in _WEIGHT_ONLY:
        fmt = find_format(_WEIGHT_ONLY[name])
        return replace(wide, weights=fmt, experts=fmt)
    match = _WAKV.fullmatch(name)
    weights = match and _WEIGHTS.get((match["w"], match["a"]))
    cache = match and {None: wide.base, "16": wide.base, "8": eight, "4": find_format("int4")}.get(match["kv"])
    if not match or not weights or not cache:
        raise UsageError(
            f"cannot read the precision {text!r}",
            hint=_NEARLY.get(name)
            or _of_matrices(text.lower().strip())
            or "bf16, fp16, fp32, fp8, fp8-block, w8a8, int8, llm.int8, int4, awq, gptq, nf4, nvfp4, mxfp4, wNaMkvK "
            "such as w4a16kv8, or a GGUF file type such as q4_k_m (inferplan formats)",
        )
    fmt = wide.base if weights == "base" else find_format(weights)
    inputs = {"16": wide.base, "4": fmt}.get(match["a"]) or (eight if weights == "int4" else fmt)
    return replace(wide, weights=fmt, experts=fmt, activations=inputs, kv=cache)
