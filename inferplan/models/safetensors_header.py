"""The header of a safetensors file, and the index beside several: names, types and shapes; no weight is read.

Layout: https://huggingface.co/docs/safetensors (Format): a little-endian u64, the length of a JSON header that holds
type, shape and byte range of each tensor. Both are JSON of one form, and are read entry by entry: nothing is built of
what a file holds beside it.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from math import prod
from typing import BinaryIO

from inferplan.models.header_bytes import DamagedError, HeaderBytes, Tensor

LONGEST = 100_000_000
"""Longest header that the format allows (``MAX_HEADER_SIZE``)."""
_MOST_ENTRIES = 500_000
"""Tensors of a file or an index: 61 layers of 384 experts with three matrices and their scales have some 280,000."""
_LONGEST_ENTRY = 2**16
"""Bytes of an entry: a name, a type, some numbers."""
_LARGEST = 2**63
"""One more than the longest axis that torch has."""
_DEEPEST, _MOST_VALUES = 64, 5_000
"""Levels of nesting, texts and brackets in what is passed over: metadata has one level, and some dozen values."""
WIDE_TYPES = {"F32": "fp32", "BF16": "bf16", "F16": "fp16"}
"""Types of what is not quantised, and their formats."""
EIGHT_BIT_FLOATS = ("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
_BITS = {
    "F4": 4,
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", *EIGHT_BIT_FLOATS), 8),
    **dict.fromkeys(("BF16", "F16", "U16", "I16"), 16),
    **dict.fromkeys(("F32", "U32", "I32"), 32),
    **dict.fromkeys(("F64", "U64", "I64", "C64"), 64),
}
"""Bits of an element (``Dtype`` of safetensors); one of a type that is not here has one at least."""


def _pattern(text: str) -> re.Pattern[bytes]:
    """A pattern of JSON: ``#`` is white space, ``S`` a size, ``T`` a text with its quotes."""
    parts = {"#": r"[ \t\r\n]*+", "S": "[0-9]{1,19}", "T": r'"(?:[^"\\\x00-\x1f]++|\\.)*+"'}
    return re.compile(re.sub("[#ST]", lambda found: parts[found[0]], text).encode(), re.DOTALL)


_FIELDS = [r'"dtype"#:#"(\w{1,40})"', r'"shape"#:#\[#((?:S#,#){0,63}S)?#\]', r'"data_offsets"#:#\[#(S)#,#(S)#\]']
_OPENS, _CLOSES, _NEXT, _REST = (_pattern(text) for text in (r"#\{#", r"#\}#", "#,#", "#"))
_KEY, _TEXT = _pattern("(T)#:#"), _pattern("T")
_ENTRY = _pattern(rf"#\{{#{'#,#'.join(_FIELDS)}#\}}#")
"""An entry in the order in which everybody writes it."""
_FIELD = _pattern("|".join(_FIELDS))
_INSIDE = _pattern(r'(?:[^"\\\x00-\x1f]++|\\.)*+')
_TOKEN = _pattern(r'[ \t\r\n,:]*+("|[\[{]|[\]}]|[-+.\w]++)')


class _Json(HeaderBytes):
    """JSON of a known form, read from left to right."""

    passed = 0
    """Values that were passed over."""

    def after(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        """What comes next, where it is of that form."""
        if len(self.bytes) - self.at < _LONGEST_ENTRY and self.begin + len(self.bytes) < self.end:
            self.move(self.place)
        found = pattern.match(self.bytes, self.at, self.at + _LONGEST_ENTRY)
        if found is not None:
            self.at = found.end()
        return found

    def take(self, pattern: re.Pattern[bytes], what: str) -> re.Match[bytes]:
        """What comes next. Raises ``DamagedError`` where it is something else."""
        found = self.after(pattern)
        if found is None:
            raise DamagedError(f"its byte {self.place:,} begins no {what}")
        return found

    def names(self) -> Iterator[str]:
        """The names of a mapping; what each stands for is to be read before the next one."""
        seen: set[str] = set()
        self.take(_OPENS, "mapping")
        if self.after(_CLOSES):
            return
        while True:
            name = _text(self.take(_KEY, "name")[1])
            if name in seen:
                raise DamagedError(f"{name} stands in it twice")
            seen.add(name)
            if len(seen) > _MOST_ENTRIES:
                raise DamagedError(f"it has more than {_MOST_ENTRIES:,} entries")
            yield name
            if self.after(_CLOSES):
                return
            self.take(_NEXT, "further entry")

    def skip_value(self) -> None:
        """Pass over a value, whatever it is. Raises ``DamagedError`` for nesting without end."""
        depth = 0
        while True:
            token = self.take(_TOKEN, "value")[1]
            self.passed += 1
            if token == b'"':
                self._skip_text()
            elif token in b"[{":
                depth += 1
            elif token in b"]}":
                depth -= 1
            if depth > _DEEPEST:
                raise DamagedError(f"it is nested deeper than {_DEEPEST} levels")
            if self.passed > _MOST_VALUES:
                raise DamagedError(f"it has more than {_MOST_VALUES:,} values beside what belongs there")
            if depth <= 0:
                return

    def _skip_text(self) -> None:
        """Pass over the rest of a text, which may be longer than an entry."""
        while not self.bytes.startswith(b'"', self.at):
            place = self.place
            self.take(_INSIDE, "text")
            if self.place == place:
                raise DamagedError(f"a text in it does not go on after byte {place:,}")
        self.at += 1

    def finish(self) -> None:
        """Raise ``DamagedError`` for anything but white space in what is left."""
        while self.left:
            place = self.place
            self.take(_REST, "end")
            if self.place == place:
                raise DamagedError(f"something follows its JSON at byte {place:,}")


def _text(token: bytes) -> str:
    try:
        found: str = json.loads(token) if b"\\" in token else token[1:-1].decode()
        found.encode()
    except ValueError:
        raise DamagedError("a name in it is not text") from None
    return found


def read_safetensors_header(file: BinaryIO, size: int) -> list[Tensor]:
    """The tensors of an open file of ``size`` bytes; what it says of itself (``__metadata__``) is passed over.

    Raises ``DamagedError`` for what is no such header, is cut short, or claims bytes that are not there, not as many as
    shape and type need, or those of another tensor.
    """
    start = file.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
    if not 2 <= length <= LONGEST:
        raise DamagedError(f"its header would have {length:,} bytes")
    data = size - 8 - length
    if data < 0:
        raise DamagedError(f"it has {size:,} bytes, and its header would have {length:,}")
    header, found = _Json(file, 8, 8 + length, 8 + LONGEST), []
    for name in header.names():
        if name == "__metadata__":
            header.skip_value()
        else:
            found.append(_tensor(header, name))
    header.finish()
    reached, before = 0, ""
    for begin, tensor in sorted(found, key=lambda entry: (entry[0], entry[1].size)):
        if begin < reached:
            raise DamagedError(f"{before} and {tensor.name} are at the same bytes")
        reached, before = begin + tensor.size, tensor.name
        if reached > data:
            raise DamagedError(f"{tensor.name} ends at byte {reached:,} of {data:,}")
    return [tensor for _, tensor in found]


def _tensor(header: _Json, name: str) -> tuple[int, Tensor]:
    """The entry of a tensor, and where its bytes begin."""
    found = header.after(_ENTRY)
    kind, axes, first, last = found.groups() if found is not None else _in_any_order(header, name)
    begin, end = int(first), int(last)
    shape = tuple(map(int, axes.split(b","))) if axes else ()
    dtype, elements = kind.decode(), prod(shape)
    bits, known = (end - begin) * 8, _BITS.get(dtype)
    if end < begin or max(shape, default=0) >= _LARGEST:
        raise DamagedError(f"the entry of {name} is wrong")
    if bits < elements if known is None else bits != elements * known:
        raise DamagedError(f"{name} has {end - begin:,} bytes for {elements:,} elements of {dtype}")
    return begin, Tensor(name=name, dtype=dtype, shape=shape, size=end - begin)


def _in_any_order(header: _Json, name: str) -> list[bytes]:
    """Type, shape, first and last byte of an entry."""
    header.take(_OPENS, f"entry of {name}")
    fields: dict[int, bytes] = {}
    for index in range(3):
        if index:
            header.take(_NEXT, f"further field of {name}")
        found = header.take(_FIELD, f"dtype, shape or data_offsets of {name}")
        at = 0 if found[1] else 2 if found[3] else 1
        if at in fields:
            raise DamagedError(f"the entry of {name} has a field twice")
        fields |= {at: found[at + 1] or b""} | ({3: found[4]} if at == 2 else {})
    header.take(_CLOSES, f"end of the entry of {name}")
    return [fields[at] for at in range(4)]


def read_safetensors_index(file: BinaryIO, size: int) -> dict[str, str]:
    """The file of each tensor, as an open index of ``size`` bytes says (``weight_map``).

    Raises ``DamagedError`` for what is no index, and for a name that is not that of a file beside it.
    """
    index, found = _Json(file, 0, size, LONGEST), {}
    said = False
    for key in index.names():
        if key != "weight_map":
            index.skip_value()
            continue
        said = True
        for name in index.names():
            held = _text(index.take(_TEXT, f"name of a file for {name}")[0])
            if not held.endswith(".safetensors") or set(held) & set("/\\\0"):
                raise DamagedError(f"{held!r}, where it has {name}, is not a file next to it")
            found[name] = held
    index.finish()
    if not said:
        raise DamagedError("it has no weight_map, which says the file of each tensor")
    return found
