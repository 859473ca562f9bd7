"""The header of a GGUF file: its metadata and its table of tensors; no weight is read.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import struct
from math import prod
from typing import Any, BinaryIO

from inferplan.models.header_bytes import DamagedError, HeaderBytes, Tensor

LONGEST = 100_000_000
"""Bytes of the longest header that is read: those with a vocabulary of 262,144 tokens have some 20 MB."""
_MOST_KEYS, _MOST_TENSORS = 10_000, 100_000
"""Keys and tensors that a header may have: those of models have some hundreds, and some thousands."""
_MOST_STRINGS = 700_000
"""Strings of all its arrays, which are walked one by one: tokens and merges of gpt-oss are 647,277."""
_MOST_KEPT = 65_536
"""Elements of an array, or bytes of a string, whose content is kept: lists have an entry a layer."""
_MOST_AXES = 4
"""``GGML_MAX_DIMS``."""

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""``gguf_metadata_value_type`` to the letter of :mod:`struct`."""
_STRING, _ARRAY = 8, 9

WIDE_GGML_TYPES = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}
"""Types of what is not quantised, and their formats."""
TYPES = {
    0: ("f32", 1, 4),
    1: ("f16", 1, 2),
    2: ("q4_0", 32, 18),
    3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24),
    8: ("q8_0", 32, 34),
    9: ("q8_1", 32, 40),
    10: ("q2_k", 256, 84),
    11: ("q3_k", 256, 110),
    12: ("q4_k", 256, 144),
    13: ("q5_k", 256, 176),
    14: ("q6_k", 256, 210),
    15: ("q8_k", 256, 292),
    16: ("iq2_xxs", 256, 66),
    17: ("iq2_xs", 256, 74),
    18: ("iq3_xxs", 256, 98),
    19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18),
    21: ("iq3_s", 256, 110),
    22: ("iq2_s", 256, 82),
    23: ("iq4_xs", 256, 136),
    24: ("i8", 1, 1),
    25: ("i16", 1, 2),
    26: ("i32", 1, 4),
    27: ("i64", 1, 8),
    28: ("f64", 1, 8),
    29: ("iq1_m", 256, 56),
    30: ("bf16", 1, 2),
    34: ("tq1_0", 256, 54),
    35: ("tq2_0", 256, 66),
    39: ("mxfp4", 32, 17),
    40: ("nvfp4", 64, 36),
    41: ("q1_0", 128, 18),
}
"""``ggml_type``: its name, the elements of a block and the bytes of one."""


class _Header(HeaderBytes):
    """The header of a file of ``size`` bytes, in its byte order."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        super().__init__(file, 4, size, LONGEST)
        self.order, self.strings = "<", 0

    def values(self, letter: str, count: int = 1) -> tuple[Any, ...]:
        """So many numbers."""
        fields = struct.Struct(f"{self.order}{count}{letter}")
        self.need(fields.size)
        found = fields.unpack_from(self.bytes, self.at)
        self.at += fields.size
        return found

    def number(self, letter: str) -> int:
        return int(self.values(letter)[0])

    def count(self, least: int, most: int, what: str) -> int:
        """A count of things of at least ``least`` bytes. Raises ``DamagedError`` for more than can follow."""
        claimed = self.number("Q")
        if claimed > most or claimed * least > self.left:
            raise DamagedError(f"it claims {claimed:,} {what} in {self.left:,} bytes")
        return claimed

    def text(self) -> str:
        """A string. Raises ``DamagedError`` for one that is not UTF-8."""
        length = self.count(1, _MOST_KEPT, "bytes of a name")
        self.need(length)
        raw = self.bytes[self.at : self.at + length]
        self.at += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise DamagedError("a name in it is not UTF-8 text") from None

    def skip_strings(self, count: int) -> None:
        """Pass over so many strings, from one to the next."""
        self.strings += count
        if self.strings > _MOST_STRINGS:
            raise DamagedError(f"it has more than {_MOST_STRINGS:,} strings in arrays")
        length, held, at = struct.Struct(f"{self.order}Q").unpack_from, self.bytes, self.at
        for _ in range(count):
            try:
                at += 8 + length(held, at)[0]
            except (struct.error, OverflowError):  # beyond the window
                self._go_to(at)
                self.need(8)
                held, at = self.bytes, self.at
                at += 8 + length(held, at)[0]
        self._go_to(at)

    def _go_to(self, at: int) -> None:
        """Go on at a byte behind the beginning of the window."""
        held, self.at = len(self.bytes), min(at, len(self.bytes))
        self.skip(max(at - held, 0))

    def value(self, kept: bool) -> tuple[Any, int]:
        """A value of the metadata with its elements; ``None`` for one that is not kept, or longer than is kept."""
        kind, count = self.number("I"), 1
        listed = kind == _ARRAY
        if listed:
            kind = self.number("I")
        if kind not in _SCALARS and kind != _STRING:
            raise DamagedError("it has an array of arrays" if kind == _ARRAY else f"it has a value of type {kind}")
        width = 8 if kind == _STRING else struct.calcsize(f"={_SCALARS[kind]}")
        if listed:
            count = self.count(width, self.left, "elements of an array")
        kept = kept and count <= _MOST_KEPT
        if kind != _STRING:
            if not kept:
                self.skip(count * width)
                return None, count
            found: Any = list(self.values(_SCALARS[kind], count))
        else:
            start = self.place
            self.skip_strings(count)
            if not kept or self.place - start > _MOST_KEPT:
                return None, count
            self.move(start, self.place - start)
            found = [self.text() for _ in range(count)]
        return (found if listed else found[0]), count


def read_gguf_header(file: BinaryIO, size: int) -> tuple[list[Tensor], dict[str, Any]]:
    """The tensors of an open file of ``size`` bytes, and its metadata.

    What begins with ``tokenizer.`` is passed over, but for the number of its tokens (``tokenizer.tokens``). Raises
    ``DamagedError`` for what is cut short or claims more than is there.
    """
    if (start := file.read(4)) != b"GGUF":
        raise DamagedError(f"it begins with {start!r}, not with GGUF")
    header = _Header(file, size)
    if (version := header.number("I")) and not version & 0xFFFF:
        header.order, version = ">", int.from_bytes(version.to_bytes(4, "little"), "big")
    if version not in (2, 3):
        raise DamagedError(f"it is of version {version}: 2 and 3 are read")
    tensors, keys = header.count(24, _MOST_TENSORS, "tensors"), header.count(13, _MOST_KEYS, "keys")
    fields: dict[str, Any] = {}
    for _ in range(keys):
        name = header.text()
        if name in fields:
            raise DamagedError(f"{name} stands in it twice")
        fields[name], count = header.value(not name.startswith("tokenizer."))
        if name == "tokenizer.ggml.tokens":
            fields["tokenizer.tokens"] = count
    table = [_entry(header) for _ in range(tensors)]
    names = {tensor.name for tensor, _ in table}
    if len(names) != len(table):
        raise DamagedError("a tensor stands in it twice")
    align = fields.get("general.alignment", 32)
    if not isinstance(align, int) or align < 1 or align & (align - 1):
        raise DamagedError(f"general.alignment = {align!r} is no power of two")
    begin = -(-header.place // align) * align
    for tensor, offset in table:
        if begin + offset + tensor.size > size:
            raise DamagedError(f"its {size:,} bytes end within the tensor {tensor.name}")
    return [tensor for tensor, _ in table], {key: value for key, value in fields.items() if value is not None}


def _entry(header: _Header) -> tuple[Tensor, int]:
    """One row of the table, and where its data lie behind the header."""
    name, axes = header.text(), header.number("I")
    if axes > _MOST_AXES:
        raise DamagedError(f"{name} has {axes:,} axes: {_MOST_AXES} are the most")
    shape = header.values("Q", axes)
    kind, offset = header.number("I"), header.number("Q")
    if kind not in TYPES:
        raise DamagedError(f"{name} is stored as type {kind}, which is not known")
    dtype, block, width = TYPES[kind]
    if (shape[0] if shape else 1) % block:
        raise DamagedError(f"{name} is stored as {dtype}, and its rows are no multiple of {block}")
    return Tensor(name=name, dtype=dtype, shape=shape, size=prod(shape) // block * width), offset
