"""The Python API: lazy, complete, documented."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest

import inferplan
from inferplan import api
from inferplan.answers.cost import CostAsked
from inferplan.answers.fit import FitAsked, FitLoad
from inferplan.answers.recipe import UsersAtATime
from inferplan.answers.sweep import STRUCTURE
from inferplan.arguments import Count, Few, Seconds, Watts
from inferplan.catalog.assemble import Request
from inferplan.cli.validate import _SUPPLIED as supplied
from inferplan.devices.engine import EngineFlags
from inferplan.errors import UsageError
from inferplan.fields import Option, Quantity, Whole, option_fields
from inferplan.reports.emit import EmitAsked
from inferplan.work.parallel import Parallelism
from tests.cases import for_each

ROOT = Path(__file__).parents[2]


def test_importing_is_cheap() -> None:
    heavy = "{'numpy', 'pandas', 'matplotlib', 'pydantic', 'torch'}"
    code = f"import sys, inferplan; print(sorted({heavy} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


@for_each("name", inferplan.PUBLIC)
def test_every_public_name_exists_and_is_documented(name: str) -> None:
    value = getattr(inferplan, name)
    assert value.__doc__
    assert f"`{name}" in (ROOT / "docs" / "python-api.md").read_text()
    assert name in dir(inferplan)


def test_type_checkers_see_what_is_imported() -> None:
    """The imports under ``TYPE_CHECKING`` name each public name and the module that it comes from at run time."""
    (block,) = [node for node in ast.parse(inspect.getsource(inferplan)).body if isinstance(node, ast.If)][:1]
    seen = {node.names[0].name: node.module for node in block.body if isinstance(node, ast.ImportFrom)}
    assert seen == {name: f"inferplan.{module}" for name, module in inferplan.PUBLIC.items()}


def keys(options: type) -> set[str]:
    return set(get_type_hints(options))


TAKEN = {
    "Text": str,
    "Switch": bool,
    "Real": float,
    "Share": float,
    "seconds": Seconds,
    "watts": Watts,
    "Whole 0": Few,
    "Whole 1": Count,
}
"""What a keyword of each kind of option takes."""


def kind_of(option: Option) -> str:
    kind = option.kind
    if isinstance(kind, Whole):
        return f"Whole {kind.low}"
    return kind.dimension if isinstance(kind, Quantity) else type(kind).__name__


def test_keyword_options_take_what_the_options_of_their_fields_take() -> None:
    other = {"think_time"}  # seconds here, also a distribution on the command line
    found = {}
    for options, kinds in (
        (api.DeployOptions, (Request, Parallelism)),
        (api.FitOptions, (FitAsked,)),
        (api.CostOptions, (CostAsked,)),
        (api.EmitOptions, (EmitAsked,)),
    ):
        hints = get_type_hints(options, include_extras=True)
        asked = {name: option for kind in kinds for name, option in option_fields(kind).items() if name not in other}
        for name, option in asked.items():
            key = name if name in hints else option.key
            found[f"{options.__name__}.{key}"] = hints[key], TAKEN[kind_of(option)]
    assert [name for name, (given, taken) in found.items() if given not in (taken, taken | None)] == []
    assert len(found) > 30


def test_keyword_options_are_the_fields_they_set() -> None:
    degrees = {field.name for field in fields(Parallelism)}
    asked = {field.name for field in fields(Request) if field.compare} - {"model", "gpu", "parallel"}
    assert keys(api.DeployOptions) == asked | degrees
    assert keys(api.SweepAxes) == {"ideal", *STRUCTURE, "batch", "prompt", "output"} - {"model", "gpu"}
    prices = {"price", "prices", "term", "currency"}
    assert keys(api.PriceOptions) == prices
    of_fit = {field.name for kind in (FitAsked, FitLoad) for field in fields(kind)}
    assert keys(api.FitOptions) == prices | of_fit - {"timed_by"}  # (found by fit itself)
    assert keys(api.CostOptions) == prices | {field.name for field in fields(CostAsked)} - {
        "api",
        "share",
        "tariff",
    } | {
        "api_price",
        "power_share",
        "kwh_price",
    }
    assert keys(api.EmitOptions) == {field.name for field in fields(EmitAsked)}
    assert keys(api.ValidateOptions) == {name.replace("-", "_") for name in supplied} | {
        "calibration",
        "anchor",
        "ideal",
        "jobs",
    }
    assert keys(api.RecipeLoad) == {field.name for field in fields(UsersAtATime)}


def test_no_public_name_hides_a_module() -> None:
    modules = {path.stem for path in (ROOT / "inferplan").glob("*.py")}
    modules |= {path.parent.name for path in (ROOT / "inferplan").glob("*/__init__.py")}
    assert not modules & set(inferplan.PUBLIC)


def test_unknown_names_and_options_are_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute"):
        _ = inferplan.nothing
    with pytest.raises(UsageError, match="no option"):
        inferplan.deploy("llama-3.1-8b", "h100-sxm", colour="red")
    with pytest.raises(UsageError, match="a plan has no"):
        inferplan.make_plan("llama-3.1-8b", 100, 100, rate=1, ttft=1.0, colour="red")
    with pytest.raises(UsageError, match="no result"):
        inferplan.to_frame(3)


def test_every_result_is_a_table() -> None:
    one = inferplan.deploy("llama-3.1-8b", "h100-sxm", tp=2)
    other = inferplan.deploy("llama-3.1-8b", "h200-sxm")
    results = [
        inferplan.estimate_batch(one, batch=4),
        inferplan.compare_deployments({"one": one, "other": other}),
        inferplan.run_sweep("llama-3.1-8b", ["h100-sxm"], batch=[1, 2], tp=[1, 2]),
        inferplan.take_apart("llama-3.1-8b", "h100-sxm", ["continuous-batching", "fp8"]),
        inferplan.make_plan("llama-3.1-8b", 512, "lognormal:128:0.5", ["h100-sxm"], rate=5, tpot=0.05, most=1),
        inferplan.fit("llama-3.1-8b", "l40s"),
        inferplan.cost(one, batch=4),
        inferplan.explain(one, "tpot"),
    ]
    assert [len(inferplan.to_frame(result)) > 0 for result in results] == [True] * len(results)


def test_the_usual_engine_is_that_of_the_command_line() -> None:
    assert inferplan.deploy("llama-3.1-8b", "m3-max", quant="q4_k_m").engine.name == "llama.cpp"
    assert inferplan.deploy("llama-3.1-8b", "m3-max", quant="q4_k_m", engine="none").engine.name == "none"
    (point,) = inferplan.run_sweep("llama-3.1-8b", "m3-max", quant=["q4_k_m"], batch=[1]).to_dict()["points"]
    assert point["engine"] == "llama.cpp"
    with pytest.raises(UsageError, match="no engine is the usual one for all"):
        inferplan.run_sweep("llama-3.1-8b", ["m3-max", "h100-sxm"], batch=[1])


def test_a_spec_that_its_reader_changes_changes_no_other_answer() -> None:
    before = inferplan.estimate_batch(inferplan.deploy("llama-3.1-8b", "h100-sxm")).to_dict()
    device, model = inferplan.load_hardware("h100-sxm"), inferplan.load_model("llama-3.1-8b")
    device.peak["bf16"] = 1.0
    model.layers.append(model.layers[0])
    assert inferplan.load_hardware("h100-sxm").peak["bf16"] == 989.4e12  # the data sheet's
    assert len(inferplan.load_model("llama-3.1-8b").sequence) == 32
    assert inferplan.estimate_batch(inferplan.deploy("llama-3.1-8b", "h100-sxm")).to_dict() == before


@for_each(
    ("name", "value", "option"),
    [
        ("memory_fraction", 2, "--gpu-memory-utilization"),
        ("memory_fraction", 0.0, "--gpu-memory-utilization"),
        ("token_budget", 0, "--max-num-batched-tokens"),
        ("max_sequences", -1, "--max-num-seqs"),
        ("block_size", 0, "--block-size"),
    ],
)
def test_a_flag_out_of_range_is_refused_by_the_name_of_its_option(name: str, value: float, option: str) -> None:
    with pytest.raises(UsageError, match=option):
        EngineFlags(**{name: value})
