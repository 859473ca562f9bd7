"""Headers of GGUF and safetensors, against the packages of their formats, and files that claim more than they hold."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from inferplan.errors import InputFileError
from inferplan.models.checkpoint import read_folder, read_gguf, read_header
from inferplan.models.gguf_header import LONGEST, TYPES
from tests.hostile_headers import (
    GGUF,
    INDEX,
    INDEX_NAME,
    SAFETENSORS,
    SHAPES,
    array,
    header,
    safetensors,
    tensor,
    text,
    whole_safetensors,
    write,
)

ROOT = Path(__file__).parents[1]


CASES = [
    *((f"gguf: {name}", "x.gguf", *case) for name, case in GGUF.items()),
    *((f"safetensors: {name}", "model.safetensors", *case) for name, case in SAFETENSORS.items()),
    *((f"index: {name}", INDEX_NAME, words.encode(), said) for name, (words, said) in INDEX.items()),
]


def test_a_file_that_claims_what_it_does_not_hold_is_one_error_at_once(tmp_path: Path) -> None:
    """6 MB for each, and a second of CPU while memory is traced: what it costs alone is asked below."""
    tracemalloc.start()
    for name, file, content, said in CASES:
        path = write(tmp_path / "case", {file: content})
        tracemalloc.reset_peak()
        start = time.process_time()
        with pytest.raises(InputFileError, match="or is cut short or damaged") as error:
            read_gguf(path) if file == "x.gguf" else read_folder(path)
        assert said in error.value.because, (name, error.value.because)
        assert time.process_time() - start < 1.0, name
        assert tracemalloc.get_traced_memory()[1] < 6e6, name
    tracemalloc.stop()


def test_no_mutation_of_a_header_costs_more_or_ends_otherwise() -> None:
    """``inferplan show`` in a process of its own for each; ``make hostile`` asks 2,000."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.hostile_headers", "240"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert ended.stdout.startswith("296 files"), ended.stdout


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


def test_a_safetensors_header_in_any_order_and_with_any_metadata_is_read(tmp_path: Path) -> None:
    """As ``safetensors`` reads them: fields in another order, escapes in a name, metadata longer than a window."""
    metadata = {"format": "pt", "note": 'a "quoted" \\ text ' * 100_000}
    entries = {
        "b": {"shape": [2, 2], "data_offsets": [4, 20], "dtype": "F32"},
        "a": {"data_offsets": [0, 4], "dtype": "I32", "shape": []},
        'x"\u00e9': {"dtype": "U8", "shape": [0, 7], "data_offsets": [20, 20]},
    }
    for indent in (None, 2):
        words = json.dumps(entries | {"__metadata__": metadata}, indent=indent) + " " * 100_000
        path = tmp_path / "model.safetensors"
        path.write_bytes(safetensors(words, 20))
        found = [(one.name, one.dtype, one.shape, one.size) for one in read_header(path)]
        assert found == [("b", "F32", (2, 2), 16), ("a", "I32", (), 4), ('x"\u00e9', "U8", (0, 7), 0)]
        with pytest.importorskip("safetensors").safe_open(str(path), "np") as file:
            theirs = {name: file.get_slice(name).get_shape() for name in file.offset_keys()}
        assert theirs == {name: entry["shape"] for name, entry in entries.items()}


def test_an_index_is_held_to_its_shards(tmp_path: Path) -> None:
    names = list(SHAPES)
    index = {"metadata": {"total_size": 1, "more": [{}]}, "weight_map": dict.fromkeys(names, "a.safetensors")}
    files = {"a.safetensors": whole_safetensors(), INDEX_NAME: json.dumps(index).encode()}
    stored = read_folder(write(tmp_path / "whole", files))
    assert stored is not None and len(stored.tensors) == len(names)
    with pytest.raises(InputFileError, match="lacks tensors"):
        read_folder(write(tmp_path / "less", files | {"a.safetensors": whole_safetensors(names[1:])}))
    twice = index | {"weight_map": {**index["weight_map"], names[0]: "b.safetensors"}}
    both = files | {"b.safetensors": whole_safetensors(names[:1]), INDEX_NAME: json.dumps(twice).encode()}
    with pytest.raises(InputFileError, match="both hold"):
        read_folder(write(tmp_path / "both", both))
