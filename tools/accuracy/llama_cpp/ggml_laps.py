"""Times single operators of ggml, the library of llama.cpp, inside the shared object of the ``xllamacpp`` wheel.

A script for a Python that has the wheel: ``python ggml_laps.py THREADS < shapes.json``. It reads a list of shapes, each
``{"kind": "matmul", "type": "q8_0", "m": .., "n": .., "k": ..}`` or ``{"kind": "attention", "batch": .., "new": ..,
"past": .., "heads": .., "kv_heads": .., "head_dim": ..}``, and prints a list of ``{"seconds": .., "waited": ..}``: the
median of the laps of one operator, and the share of the time that threads waited for a core.

Weights lie where the server puts them (q4_0 in ggml's repacked order), and a lap runs over so many copies that they
leave the caches, as the layers of a model do.
"""

from __future__ import annotations

import ctypes
import glob
import json
import statistics
import sys
import time
from typing import Any

TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}
"""``enum ggml_type`` (ggml/include/ggml.h)."""
COLD = 160 << 20
"""Bytes of operands that a lap runs over."""
MOST_COPIES = 48
MASK_ROWS = 64
"""A mask has a multiple of so many rows (``GGML_KQ_MASK_PAD``)."""
LEAST, LAPS = 4, 12
SECONDS = 0.6
"""Of the laps of a shape."""
REPACKED = "_Z35ggml_backend_cpu_repack_buffer_typev"


class _Init(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


def library() -> Any:
    """ggml as the wheel has it."""
    import xllamacpp

    path = glob.glob(f"{xllamacpp.__path__[0]}/xllamacpp*.so")[0]
    ggml = ctypes.CDLL(path)
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    for name, result, arguments in (
        ("ggml_init", pointer, [_Init]),
        ("ggml_free", None, [pointer]),
        ("ggml_new_tensor_4d", pointer, [pointer, ctypes.c_int, number, number, number, number]),
        ("ggml_mul_mat", pointer, [pointer, pointer, pointer]),
        ("ggml_flash_attn_ext", pointer, [pointer] * 5 + [ctypes.c_float] * 3),
        ("ggml_new_graph", pointer, [pointer]),
        ("ggml_build_forward_expand", None, [pointer, pointer]),
        ("ggml_backend_cpu_init", pointer, []),
        ("ggml_backend_cpu_set_n_threads", None, [pointer, ctypes.c_int]),
        ("ggml_backend_graph_compute", ctypes.c_int, [pointer, pointer]),
        ("ggml_backend_alloc_ctx_tensors", pointer, [pointer, pointer]),
        ("ggml_backend_alloc_ctx_tensors_from_buft", pointer, [pointer, pointer]),
        ("ggml_backend_buffer_free", None, [pointer]),
        ("ggml_backend_tensor_set", None, [pointer, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t]),
        ("ggml_nbytes", ctypes.c_size_t, [pointer]),
        (REPACKED, pointer, []),
    ):
        function = getattr(ggml, name)
        function.restype, function.argtypes = result, arguments
    return ggml


def _mask(cells: int, past: int, new: int) -> bytes:
    """What each query may see, in f16: zero, or minus infinity."""
    rows = -(-new // MASK_ROWS) * MASK_ROWS
    seen = [min(past + min(row, new - 1) + 1, cells) for row in range(rows)]
    return b"".join(b"\x00\x00" * count + b"\x00\xfc" * (cells - count) for count in seen)


def waited() -> float:
    """Seconds for which threads of this process waited for a core."""
    found = 0
    for path in glob.glob("/proc/self/task/*/schedstat"):
        try:
            with open(path, encoding="ascii") as file:
                found += int(file.read().split()[1])
        except (OSError, IndexError, ValueError):
            continue
    return found * 1e-9


class Laps:
    """Operators on a backend of so many threads."""

    def __init__(self, threads: int) -> None:
        self.ggml, self.threads = library(), threads
        self.backend = self.ggml.ggml_backend_cpu_init()
        self.ggml.ggml_backend_cpu_set_n_threads(self.backend, threads)

    def time(self, shape: dict[str, Any]) -> dict[str, float]:
        """Seconds of one operator."""
        ggml = self.ggml
        self.masks: list[tuple[Any, int, int, int]] = []
        held, run = (ggml.ggml_init(_Init(16 << 20, None, True)) for _ in range(2))
        ends, copies, kind = getattr(self, f"_{shape['kind']}")(held, run, shape)
        graph = ggml.ggml_new_graph(run)
        for end in ends:
            ggml.ggml_build_forward_expand(graph, end)
        repacked = kind == "q4_0"
        buffers = [
            ggml.ggml_backend_alloc_ctx_tensors_from_buft(held, getattr(ggml, REPACKED)())
            if repacked
            else ggml.ggml_backend_alloc_ctx_tensors(held, self.backend),
            ggml.ggml_backend_alloc_ctx_tensors(run, self.backend),
        ]
        for tensor in copies:
            size = ggml.ggml_nbytes(tensor)
            ggml.ggml_backend_tensor_set(tensor, bytes(size), 0, size)
        for tensor, cells, past, new in self.masks:
            data = _mask(cells, past, new)
            ggml.ggml_backend_tensor_set(tensor, data, 0, len(data))
        found = self._laps(graph, len(ends))
        for buffer in buffers:
            ggml.ggml_backend_buffer_free(buffer)
        for context in (held, run):
            ggml.ggml_free(context)
        return found

    def _laps(self, graph: Any, count: int) -> dict[str, float]:
        self.ggml.ggml_backend_graph_compute(self.backend, graph)
        times: list[float] = []
        waits: list[float] = []
        while len(times) < LEAST or (sum(times) < SECONDS and len(times) < LAPS):
            before, began = waited(), time.perf_counter()
            self.ggml.ggml_backend_graph_compute(self.backend, graph)
            times.append(time.perf_counter() - began)
            waits.append(waited() - before)
        calm = [spent for spent, wait in zip(times, waits) if wait <= 0.05 * spent]
        return {
            "seconds": statistics.median(calm or times) / count,
            "waited": sum(waits) / sum(times),
            "calm": len(calm),
        }

    def _matmul(self, held: Any, run: Any, shape: dict[str, Any]) -> tuple[list[Any], list[Any], str]:
        ggml, kind = self.ggml, shape["type"]
        bits = {"f32": 32, "f16": 16, "q8_0": 8.5, "q4_0": 4.5}[kind]
        number = max(min(int(COLD / (shape["n"] * shape["k"] * bits / 8)), MOST_COPIES), 1)
        number = max(min(number, int(2e11 / (2.0 * shape["m"] * shape["n"] * shape["k"]))), 1)
        weights = [ggml.ggml_new_tensor_4d(held, TYPES[kind], shape["k"], shape["n"], 1, 1) for _ in range(number)]
        inputs = ggml.ggml_new_tensor_4d(run, TYPES["f32"], shape["k"], shape["m"], 1, 1)
        return [ggml.ggml_mul_mat(run, one, inputs) for one in weights], weights, kind

    def _attention(self, held: Any, run: Any, shape: dict[str, Any]) -> tuple[list[Any], list[Any], str]:
        """Queries of one layer over its cache in f16, as the server runs it (flash attention, a cache for each
        sequence, cells in multiples of 256)."""
        ggml, f16 = self.ggml, TYPES["f16"]
        cells = -(-(shape["past"] + shape["new"]) // 256) * 256
        size = (shape["head_dim"], cells, shape["kv_heads"], shape["batch"])
        each = 4.0 * shape["head_dim"] * cells * shape["kv_heads"] * shape["batch"]
        number = max(min(int(COLD / each), MOST_COPIES), 1)
        pairs = [[ggml.ggml_new_tensor_4d(held, f16, *size) for _ in range(2)] for _ in range(number)]
        query = ggml.ggml_new_tensor_4d(
            run, TYPES["f32"], shape["head_dim"], shape["new"], shape["heads"], shape["batch"]
        )
        rows = -(-shape["new"] // MASK_ROWS) * MASK_ROWS
        mask = ggml.ggml_new_tensor_4d(run, f16, cells, rows, 1, 1)
        self.masks.append((mask, cells, shape["past"], shape["new"]))
        ends = [
            ggml.ggml_flash_attn_ext(run, query, keys, values, mask, shape["head_dim"] ** -0.5, 0.0, 0.0)
            for keys, values in pairs
        ]
        return ends, [one for pair in pairs for one in pair], "f16"


if __name__ == "__main__":
    laps = Laps(int(sys.argv[1]))
    json.dump([laps.time(shape) for shape in json.load(sys.stdin)], sys.stdout)
