"""Folders with every tensor of two hundred quantisation tables: each is the model of its config, and of no other."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from inferplan.errors import SpecError  # noqa: E402
from inferplan.models.huggingface import import_path  # noqa: E402
from tests.cases import for_each  # noqa: E402
from tests.oracle.quantised import WIDE, Case, Shapes, config_of, tensors  # noqa: E402
from tests.oracle.quantised_tables import CASES  # noqa: E402

TYPES = {torch.int32: "I32", torch.int64: "I64", torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
TYPES |= {torch.uint8: "U8", torch.int8: "I8", torch.float8_e4m3fn: "F8_E4M3", torch.bool: "BOOL", torch.int16: "I16"}


def named(case: Case) -> Iterator[tuple[str, Shapes]]:
    """Each module of the checkpoint with the tensors that stand for it."""
    for name, shape in tensors(case.model).items():
        table = "embed" in name and case.vocabulary
        packer = case.decide(name.removesuffix(".weight")) if table or not WIDE.search(name) else None
        if packer is None or len(shape) < 2:
            yield name, [(shape, torch.bfloat16)]
        else:
            copies = shape[0] if len(shape) == 3 else 1
            yield name, [part for _ in range(copies) for part in packer(shape[-2], shape[-1])]


def folder(path: Path, case: Case, table: object) -> Path:
    """Headers with the tensors of a case, holes for the numbers, and a config with a table."""
    header, at = {}, 0
    for name, parts in named(case):
        for index, (shape, kind) in enumerate(parts):
            size = torch.empty(shape, dtype=kind, device="meta").nbytes
            full = (
                name
                if len(parts) == 1
                else f"{name}_part{index}"
                if name.endswith("weight")
                else f"{name}.weight_{index}"
            )
            header[full] = {"dtype": TYPES[kind], "shape": list(shape), "data_offsets": [at, at + size]}
            at += size
    text = json.dumps(header).encode()
    with (path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
    (path / "config.json").write_text(json.dumps(config_of(case.model) | {case.key: table}))
    return path


@for_each("case", CASES, ids=lambda case: f"{case.model}-{case.name}")
def test_a_quantised_folder_is_the_model_of_its_config(case: Case, tmp_path: Path) -> None:
    model = import_path(folder(tmp_path, case, case.table)).model
    assert not any("stored as" in note for note in model.notes)


@for_each("case", CASES[::7], ids=lambda case: f"{case.model}-{case.name}")
def test_a_quantised_folder_whose_config_says_nothing_is_refused(case: Case, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is not the model of its config"):
        import_path(folder(tmp_path, case, None))
