"""The tutorial notebook runs, with the outputs and the page on file. ``INFERPLAN_UPDATE_DOCS=1`` writes them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("pandas")

ROOT = Path(__file__).parents[1]
LARGEST = 200_000
"""Bytes of the notebook with its outputs."""


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_notebook", ROOT / "docs" / "generate_notebook.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def texts(notebook: dict[str, Any]) -> list[Any]:
    """Every output without the bytes of pictures, which are another release of matplotlib's own."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    return [
        {**output, "data": {form: data if form != "image/png" else "" for form, data in output.get("data", {}).items()}}
        for output in outputs
    ]


def test_the_notebook_runs_and_says_what_it_said() -> None:
    tool = load()
    if os.environ.get("INFERPLAN_UPDATE_DOCS"):
        tool.main()
    kept = tool.read()
    assert texts(tool.executed(kept)) == texts(kept)
    assert tool.page(kept)[0] == tool.PAGE.read_text(encoding="utf-8")
    for name, data in tool.page(kept)[1].items():
        assert (tool.IMAGES / name).read_bytes() == data


def test_the_notebook_is_small_and_names_no_machine() -> None:
    text = load().NOTEBOOK.read_text(encoding="utf-8")
    assert len(text.encode()) < LARGEST
    assert not re.search(r"(?<!\w)/(home|root|Users|work|tmp)/", text)


def test_the_notebook_is_one() -> None:
    """The fields that the format demands (nbformat 4.5)."""
    notebook = json.loads(load().NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        wanted = {"id", "cell_type", "metadata", "source"}
        assert set(cell) == wanted | ({"execution_count", "outputs"} if cell["cell_type"] == "code" else set())


def test_it_goes_through_a_whole_purchase() -> None:
    code = "".join("".join(cell["source"]) for cell in load().read()["cells"] if cell["cell_type"] == "code")
    steps = "fit estimate_batch compare_deployments run_sweep plot make_plan cost explain emit"
    for name in steps.split():
        assert f"inferplan.{name}(" in code
