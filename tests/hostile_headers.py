"""Headers of files that claim what they do not hold, by hand and by seeded mutation, each given to ``inferplan show``.

``python -m tests.hostile_headers 2000`` (``make hostile``) asks each in a process of its own, and prints what it cost
and which exit codes came.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import resource
import shutil
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CPU, MEMORY = 0.2, 100e6
"""Seconds and bytes that a file may cost, at most."""
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 512,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
SHAPES = {
    "model.embed_tokens.weight": [512, 64],
    "model.layers.0.self_attn.q_proj.weight": [64, 64],
    "model.layers.0.self_attn.k_proj.weight": [32, 64],
    "model.layers.0.self_attn.v_proj.weight": [32, 64],
    "model.layers.0.self_attn.o_proj.weight": [64, 64],
    "model.layers.0.mlp.gate_proj.weight": [96, 64],
    "model.layers.0.mlp.up_proj.weight": [96, 64],
    "model.layers.0.mlp.down_proj.weight": [64, 96],
    "model.layers.0.input_layernorm.weight": [64],
    "model.layers.0.post_attention_layernorm.weight": [64],
    "model.norm.weight": [64],
    "lm_head.weight": [512, 64],
}


def text(words: str) -> bytes:
    """A string of GGUF."""
    return struct.pack("<Q", len(words)) + words.encode()


def header(tensors: int, keys: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def array(kind: int, count: int) -> bytes:
    """A key whose value is an array of so many of a kind (0: u8, 8: string, 9: array)."""
    return text("a.b") + struct.pack("<IIQ", 9, kind, count)


def tensor(shape: tuple[int, ...], kind: int = 0, offset: int = 0, name: str = "w") -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


GGUF = {
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
"""Files of GGUF, and words of the reason for which each is refused."""


def safetensors(words: str | bytes, data: int = 4, length: int | None = None) -> bytes:
    """A file with this header; ``length`` is what it says of it."""
    held = words if isinstance(words, bytes) else words.encode()
    return struct.pack("<Q", len(held) if length is None else length) + held + bytes(data)


def mapping(*entries: str) -> str:
    return "{" + ",".join(entries) + "}"


def entry(shape: str = "1", begin: object = 0, end: object = 4, dtype: str = "F32", name: str = "w") -> str:
    return f'"{name}":{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":[{begin},{end}]}}'


SAFETENSORS = {
    "a length of 2^63": (safetensors("{}", length=2**63), "9,223,372,036,854,775,808 bytes"),
    "a length behind the file": (safetensors("{}", length=10**7), "would have 10,000,000"),
    "no length": (b"\x02\0\0", "would have 0 bytes"),
    "no mapping": (safetensors("[[[]]]"), "no mapping"),
    "a million brackets": (safetensors('{"a":' + "[" * 10**6), "begins no entry of a"),
    "a million brackets of metadata": (safetensors('{"__metadata__":' + '{"a":' * 10**6), "deeper than 64"),
    "a million lists": (safetensors('{"__metadata__":{"a":[' + "[]," * 10**6 + "[]]}", 0), "5,000 values"),
    "a text without end": (safetensors('{"__metadata__":{"a":"' + "x" * 10**6), "does not go on"),
    "a name of a megabyte": (safetensors(mapping(entry(name="x" * 10**6))), "begins no name"),
    "a backslash at the end": (safetensors('{"__metadata__":{"a":"' + "\\"), "does not go on"),
    "a thousand axes of four thousand digits": (
        safetensors(mapping(entry(",".join(["9" * 4000] * 1000)))),
        "begins no",
    ),
    "a hundred thousand axes": (safetensors(mapping(entry(",".join(["2"] * 100_000)))), "begins no"),
    "an axis of 2^63": (safetensors(mapping(entry(str(2**63)))), "is wrong"),
    "an axis below zero": (safetensors(mapping(entry("-1"))), "begins no"),
    "2^62 elements in four bytes": (safetensors(mapping(entry(str(2**62)))), "4 bytes for 4,611"),
    "2^62 elements of a type nobody knows": (safetensors(mapping(entry(str(2**62), dtype="Q1"))), "4 bytes for 4,611"),
    "an end before the begin": (safetensors(mapping(entry(begin=8, end=4))), "is wrong"),
    "an end behind the file": (safetensors(mapping(entry("2", end=8))), "ends at byte 8 of 4"),
    "the bytes of another": (safetensors(mapping(entry(), entry(name="v"))), "at the same bytes"),
    "a name twice": (safetensors(mapping(entry(), entry())), "stands in it twice"),
    "half a character": (safetensors(mapping(entry(name="\\ud800"))), "is not text"),
    "a name of bytes": (safetensors(b'{"\xff\xfe":{}}'), "is not text"),
    "something behind it": (safetensors(mapping(entry()) + "[]"), "follows its JSON"),
    "a shape twice": (safetensors('{"w":{"shape":[1],"shape":[1],"dtype":"F32"}}'), "a field twice"),
}
"""The same of safetensors."""
INDEX = {
    "a file above the folder": ('{"weight_map":{"w":"../w.safetensors"}}', "not a file next to it"),
    "the password of the machine": ('{"weight_map":{"w":"/etc/passwd"}}', "not a file next to it"),
    "a device": ('{"weight_map":{"w":"/dev/zero"}}', "not a file next to it"),
    "a number for a file": ('{"weight_map":{"w":1}}', "begins no name of a file"),
    "a hundred thousand keys": (
        "{" + ",".join(f'"{number}":0' for number in range(100_000)) + "}",
        "5,000 values",
    ),
    "no map": ('{"metadata":{"total_size":1}}', "no weight_map"),
    "a million brackets": ('{"metadata":' + "[" * 10**6, "deeper than 64"),
    "a list": ("[" * 1000, "begins no mapping"),
    "nothing": ("", "begins no mapping"),
}
"""The same of ``model.safetensors.index.json``."""


def whole_safetensors(names: list[str] | None = None) -> bytes:
    """A file with the tensors of :data:`CONFIG`, or with some of them."""
    found, offset = {"__metadata__": {"format": "pt"}}, 0
    for name in SHAPES if names is None else names:
        size = 2
        for axis in SHAPES[name]:
            size *= axis
        found[name] = {"dtype": "BF16", "shape": SHAPES[name], "data_offsets": [offset, offset + size]}
        offset += size
    return safetensors(json.dumps(found), offset)


def whole_gguf() -> bytes:
    """A llama of one layer with a vocabulary, in fp32."""
    fields = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        *(
            text(f"llama.{name}") + struct.pack("<II", 4, value)
            for name, value in {
                "block_count": 1,
                "embedding_length": 64,
                "attention.head_count": 4,
                "attention.head_count_kv": 2,
                "context_length": 128,
            }.items()
        ),
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 512) + b"".join(text(f"t{n}") for n in range(512)),
        text("tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, 512) + bytes(2048),
    ]
    short = {"embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.layers.0": "blk.0"}
    short |= {"self_attn.o_proj": "attn_output", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    short |= {f"self_attn.{x}_proj": f"attn_{x}" for x in "qkv"} | {"model.token": "token"}
    short |= {f"mlp.{x}_proj": f"ffn_{x}" for x in ("gate", "up", "down")}
    rows, offset = [], 0
    for long, shape in SHAPES.items():
        name = long
        for theirs, own in short.items():
            name = name.replace(theirs, own)
        rows.append(tensor(tuple(reversed(shape)), offset=offset, name=name))
        size = 4
        for axis in shape:
            size *= axis
        offset += -(-size // 32) * 32
    head = header(len(rows), len(fields)) + b"".join(fields) + b"".join(rows)
    return head + bytes(-len(head) % 32 + offset)


Files = dict[str, bytes]


def write(folder: Path, files: Files) -> Path:
    """The files of a case in an empty folder; what is asked for: a GGUF, or the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return next((folder / name for name in files if name.endswith(".gguf")), folder)


def _in_folder(files: Files, kind: str = "llama") -> Files:
    return {"config.json": json.dumps(CONFIG | {"model_type": kind}).encode()} | files


def _in_shards() -> Files:
    names = list(SHAPES)
    parts = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    table = {name: file for file, part in parts.items() for name in part}
    index = {"metadata": {"total_size": 2 * 512 * 64}, "weight_map": table}
    return {file: whole_safetensors(part) for file, part in parts.items()} | {INDEX_NAME: json.dumps(index).encode()}


INDEX_NAME = "model.safetensors.index.json"


def by_hand() -> Iterator[tuple[str, Files]]:
    """Every case that is written above, and sparse files as long as a header may be."""
    for name, (content, _) in GGUF.items():
        yield f"gguf: {name}", {"x.gguf": content}
    for name, (content, _) in SAFETENSORS.items():
        yield f"safetensors: {name}", _in_folder({"model.safetensors": content})
    for name, (words, _) in INDEX.items():
        yield f"index: {name}", _in_folder({INDEX_NAME: words.encode()})


_EXTREMES = [0, 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 10**8]
_WORDS = [b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"-1", b"1e999", b"9" * 400, b"null", b"\xff", b"[" * 3000]


def _changed(content: bytes, draw: random.Random, most: int) -> bytes:
    """One to four changes within the first ``most`` bytes."""
    held = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(min(most, len(held)) or 1)
        match draw.randrange(7):
            case 0:
                held[place : place + 1] = bytes([draw.randrange(256)])
            case 1:
                held[place : place + 8] = struct.pack("<Q", draw.choice(_EXTREMES))
            case 2:
                held[place : place + 4] = struct.pack("<I", draw.choice(_EXTREMES) & 0xFFFFFFFF)
            case 3:
                del held[place : place + draw.randint(1, 200)]
            case 4:
                held[place:place] = held[draw.randrange(len(held) or 1) :][: draw.randint(1, 200)]
            case 5:
                held[place:place] = draw.choice(_WORDS)
            case _:
                numbers = list(re.finditer(rb"\d+", bytes(held[:most])))
                if numbers:
                    one = draw.choice(numbers)
                    held[one.start() : one.end()] = str(draw.choice(_EXTREMES)).encode()
    return bytes(held[: draw.randrange(1, most)]) if draw.random() < 0.1 else bytes(held)


def mutations(count: int, seed: int = 0) -> Iterator[tuple[str, Files]]:
    """So many files that are whole but for some bytes of their header: GGUF, safetensors and indices in turn."""
    gguf, one, shards = whole_gguf(), whole_safetensors(), _in_shards()
    heads = (len(gguf) - 4 * 2 * 512 * 64, struct.unpack("<Q", one[:8])[0] + 8)
    for number in range(count):
        draw = random.Random(f"{seed}.{number}")
        match number % 4:
            case 0:
                yield f"gguf {number}", {"x.gguf": _changed(gguf, draw, heads[0])}
            case 1:
                yield f"safetensors {number}", _in_folder({"model.safetensors": _changed(one, draw, heads[1])})
            case 2:
                changed = {"model.safetensors": _changed(one, draw, heads[1])}
                yield f"unknown family {number}", _in_folder(changed, "never_heard_of")
            case _:
                file = draw.choice(list(shards))
                most = len(shards[file]) if file == INDEX_NAME else 1200
                yield f"index {number}", _in_folder(shards | {file: _changed(shards[file], draw, most)})


@dataclass(frozen=True)
class Verdict:
    """What one question cost, and how it ended."""

    name: str
    code: int
    said: str
    cpu: float
    grown: float
    """Bytes that the process had at most, beyond those with which it began."""

    @property
    def wrong(self) -> str:
        """What it should not have done; empty where it did none."""
        if self.code not in (0, 2, 4) or (self.code and not self.said.startswith("error: ")):
            return f"exit {self.code}: {self.said[:200]}"
        if "Traceback" in self.said or self.said.count("error: ") > 1:
            return self.said[:200]
        return f"{self.grown / 1e6:.0f} MB" if self.grown > MEMORY else ""

    @property
    def slow(self) -> str:
        """How long it took; empty where that was short enough."""
        return f"{self.cpu:.2f} s" if self.cpu > CPU else ""


def _resident(field: str) -> float:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return 1024.0 * int(found[1])


def ask(name: str, path: Path) -> Verdict:
    """``inferplan show PATH`` in a fork of this process, which has loaded all that it needs."""
    from inferplan.cli import main

    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(writing, 2)
        code, start, before = 70, time.process_time(), _resident("VmRSS")
        try:
            sys.argv = ["inferplan", "show", str(path)]
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            spent = time.process_time() - start
            sys.stderr.flush()
            peak = 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            os.write(writing, json.dumps([spent, max(peak - before, 0.0)]).encode())
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said, _, figures = pipe.read().decode("utf-8", "replace").rpartition("[")
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    cpu, grown = json.loads(f"[{figures}") if figures else (float("inf"), float("inf"))
    return Verdict(name, code, said, cpu, grown)


def run(count: int, seed: int = 0) -> list[Verdict]:
    """Every case by hand and ``count`` mutations, each asked."""
    from inferplan.cli import cli

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "case"
        wholes = {"gguf": {"x.gguf": whole_gguf()}, "shards": _in_folder(_in_shards())}
        for name, files in (wholes | {"unknown": _in_folder(_in_shards(), "never_heard_of")}).items():
            with contextlib.redirect_stdout(io.StringIO()):  # which loads what the forks need
                cli.main(["show", str(write(folder, files))], standalone_mode=False)
            assert ask(name, folder / "x.gguf" if "x.gguf" in files else folder).code == 0
        cases = [*by_hand(), *mutations(count, seed)]
        found = [ask(name, write(folder, files)) for name, files in cases]
        sparse = write(folder, {"x.gguf": header(0, 1) + array(0, 10**8 - 200)})
        os.truncate(sparse, 10**12)
        found.append(ask("gguf: a sparse file of a terabyte", sparse))
        sparse = write(folder, {"x.gguf": header(0, 1) + array(8, 700_000)})
        os.truncate(sparse, 10**12)
        found.append(ask("gguf: a sparse file of empty strings", sparse))
        sparse = write(folder, _in_folder({"model.safetensors": safetensors("{", length=10**8)}))
        os.truncate(sparse / "model.safetensors", 10**12)
        found.append(ask("safetensors: a sparse file of a terabyte", sparse))
    return found


def main() -> None:
    """Print the figures; exit 1 where a file did what none may. ``--untimed`` judges no times: on a busy machine."""
    counts = [int(word) for word in sys.argv[1:] if word != "--untimed"]
    count = counts[0] if counts else 2000
    found = run(count)
    wrong = [f"{one.name}: {one.wrong}" for one in found if one.wrong]
    wrong += [] if "--untimed" in sys.argv else [f"{one.name}: {one.slow}" for one in found if one.slow]
    codes = Counter(one.code for one in found)
    print(f"{len(found):,} files, {len(found) - count} of them by hand: exit codes {dict(sorted(codes.items()))}")
    most, widest = max(found, key=lambda one: one.cpu), max(found, key=lambda one: one.grown)
    print(f"most CPU {most.cpu:.3f} s ({most.name}), most memory {widest.grown / 1e6:.1f} MB ({widest.name})")
    print(*wrong, f"{len(wrong)} wrong", sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
