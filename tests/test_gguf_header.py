"""The header of a GGUF file, against llama.cpp's own package, and files that claim more than they hold."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from inferplan.errors import InputFileError
from inferplan.models.checkpoint import read_gguf, read_header
from inferplan.models.gguf_header import LONGEST, TYPES


def text(words: str) -> bytes:
    return struct.pack("<Q", len(words)) + words.encode()


def header(tensors: int, keys: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def array(kind: int, count: int) -> bytes:
    """A key whose value is an array of so many of a kind (0: u8, 8: string, 9: array)."""
    return text("a.b") + struct.pack("<IIQ", 9, kind, count)


def tensor(shape: tuple[int, ...], kind: int = 0, offset: int = 0, name: str = "w") -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


HOSTILE = {
    "an array of 2^62 bytes": (header(0, 1) + array(0, 2**62) + bytes(64), "4,611,686,018,427,387,904 elements"),
    "an array of 10^8 bytes": (header(0, 1) + array(0, 10**8) + bytes(64), "100,000,000 elements"),
    "2^61 doubles, whose bytes are 2^64": (header(0, 1) + array(12, 2**61) + bytes(64), "elements of an array"),
    "10^9 strings": (header(0, 1) + array(8, 10**9) + bytes(8000), "1,000,000,000 elements"),
    "2,000 arrays in each other": (header(0, 1) + array(9, 1) + struct.pack("<IQ", 9, 1) * 2000, "array of arrays"),
    "strings that end nowhere": (header(0, 1) + array(8, 3) + b"\xff" * 64, "end within a table"),
    "a name of 2^63 bytes": (header(0, 1) + struct.pack("<Q", 2**63) + bytes(64), "bytes of a name"),
    "2^60 tensors": (header(2**60, 0) + bytes(64), "tensors in"),
    "2^60 keys": (header(0, 2**60) + bytes(64), "keys in"),
    "a tensor of 2^32 axes": (header(1, 0) + text("w") + struct.pack("<I", 2**32 - 1) + bytes(64), "axes"),
    "a tensor larger than the file": (header(1, 0) + tensor((2**63, 2**63)) + bytes(64), "within the tensor w"),
    "a tensor behind the file": (header(1, 0) + tensor((1,), offset=2**63) + bytes(64), "within the tensor w"),
    "two tensors of one name": (header(2, 0) + tensor((1,)) * 2 + bytes(96), "stands in it twice"),
    "a type that is no type": (header(1, 0) + tensor((1,), kind=77) + bytes(64), "type 77"),
    "half a block": (header(1, 0) + tensor((16,), kind=2) + bytes(64), "no multiple of 32"),
    "a value that is no value": (header(0, 1) + text("a.b") + struct.pack("<I", 13) + bytes(64), "type 13"),
    "an alignment of 0": (
        header(0, 1) + text("general.alignment") + struct.pack("<II", 4, 0) + bytes(64),
        "no power of two",
    ),
    "version 1": (header(0, 0, version=1) + bytes(64), "version 1"),
    "a name of bytes": (header(0, 1) + struct.pack("<Q", 2) + b"\xff\xfe" + bytes(64), "not UTF-8"),
    "the magic alone": (b"GGUF", "end within a table"),
}


def test_a_file_that_claims_what_it_does_not_hold_is_one_error_at_once(tmp_path: Path) -> None:
    """0.2 s of CPU and 4 MB for each."""
    path = tmp_path / "hostile.gguf"
    tracemalloc.start()
    for name, (content, said) in HOSTILE.items():
        path.write_bytes(content)
        tracemalloc.reset_peak()
        start = time.process_time()
        with pytest.raises(InputFileError, match="cut short or damaged") as error:
            read_gguf(path)
        assert said in error.value.because, (name, error.value.because)
        assert time.process_time() - start < 0.2, name
        assert tracemalloc.get_traced_memory()[1] < 4e6, name
    tracemalloc.stop()


def test_a_header_without_end_is_read_no_further_than_headers_go(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gguf"
    with path.open("wb") as file:
        file.write(header(0, 1) + array(0, 2**39))
        file.truncate(2**40)
    with pytest.raises(InputFileError) as error:
        read_gguf(path)
    assert f"longer than {LONGEST:,} bytes" in error.value.because


def test_every_cut_of_a_file_is_refused(tmp_path: Path) -> None:
    whole = header(2, 2) + text("a.b") + struct.pack("<If", 6, 1.5) + array(8, 2) + text("x") + text("yz")
    whole = whole.replace(b"a.b", b"c.d", 1) + tensor((4, 2)) + tensor((32,), 2, 32, "v")
    whole += bytes(-len(whole) % 32 + 32 + 18)
    path = tmp_path / "whole.gguf"
    path.write_bytes(whole)
    checkpoint, fields = read_gguf(path)
    assert [(t.name, t.dtype, t.shape, t.size) for t in checkpoint.tensors] == [
        ("w", "f32", (4, 2), 32),
        ("v", "q4_0", (32,), 18),
    ]
    assert fields == {"c.d": 1.5, "a.b": ["x", "yz"]}
    for length in range(4, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(InputFileError, match="cut short"):
            read_gguf(path)


def test_the_package_of_llama_cpp_reads_the_same(tmp_path: Path) -> None:
    """Types of every width, lists, a vocabulary, both byte orders."""
    gguf = pytest.importorskip("gguf")
    kinds = {kind.value: (kind.name.lower(), *size) for kind, size in gguf.GGML_QUANT_SIZES.items()}
    assert {number: kinds[number] for number in TYPES.keys() & kinds.keys()} == {
        number: row for number, row in TYPES.items() if number in kinds
    }
    assert not kinds.keys() - TYPES.keys() and len(TYPES.keys() & kinds.keys()) >= 30
    for order in (gguf.GGUFEndian.LITTLE, gguf.GGUFEndian.BIG):
        path = tmp_path / "both.gguf"
        writer = gguf.GGUFWriter(str(path), "llama", endianess=order)
        for kind in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"):
            getattr(writer, f"add_{kind}")(f"n.{kind}", 100)
        writer.add_float32("n.single", 0.1)
        writer.add_float64("n.double", 0.1)
        writer.add_bool("n.switch", True)
        writer.add_array("n.heads", [8, 8, 4])
        writer.add_array("n.slides", [True, False, True])
        writer.add_array("n.tags", ["é", ""])
        writer.add_token_list([f"<{number}>" for number in range(3000)])
        writer.add_token_scores([0.5] * 3000)
        writer.add_custom_alignment(64)
        rng = np.random.default_rng(0)
        for name, stored in (("a", "F32"), ("b", "Q4_0"), ("c", "Q8_0")):
            kind = gguf.GGMLQuantizationType[stored]
            values = rng.standard_normal((3, 64)).astype(np.float32)
            writer.add_tensor(name, values if name == "a" else gguf.quants.quantize(values, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        reader = gguf.GGUFReader(str(path))
        checkpoint, fields = read_gguf(path)
        assert [(t.name, t.dtype, t.shape, t.size) for t in checkpoint.tensors] == [
            (t.name, t.tensor_type.name.lower(), tuple(int(n) for n in t.shape), int(t.n_bytes)) for t in reader.tensors
        ]
        theirs = {n: f.contents() for n, f in reader.fields.items() if not n.startswith(("tokenizer.", "GGUF."))}
        assert fields == theirs | {"tokenizer.tokens": 3000}


def test_a_safetensors_header_is_held_to_its_bytes_too(tmp_path: Path) -> None:
    """A product of a thousand numbers of four thousand digits takes minutes; a header longer than its file is none."""
    path = tmp_path / "model.safetensors"
    digits = "9" * 4000
    axes = {"bomb": ",".join([digits] * 1000), "many": ",".join(["2"] * 100_000), "whole": str(2**63)}
    for name, shape in axes.items():
        content = f'{{"w":{{"dtype":"F32","shape":[{shape}],"data_offsets":[0,4]}}}}'.encode()
        path.write_bytes(struct.pack("<Q", len(content)) + content + bytes(4))
        start = time.process_time()
        with pytest.raises(InputFileError, match="is not a safetensors file"):
            read_header(path)
        assert time.process_time() - start < 1.0, name
    path.write_bytes(struct.pack("<Q", 10_000_000) + b"{}")
    with pytest.raises(InputFileError, match="cut short"):
        read_header(path)
