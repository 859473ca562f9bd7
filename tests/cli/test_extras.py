"""A package that is not installed is one error with the command that installs it, said before any work is done."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

import inferplan
from inferplan.cli import cli
from inferplan.errors import MissingExtraError
from inferplan.extras import EXTRAS
from tests.cases import for_each

ROOT = Path(__file__).parents[2]
CHAT = ["llama-3.1-8b", "--workload", "chat", "--rate", "5", "--gpu", "h100-sxm"]
ON_H100 = ["llama-3.1-8b", "--gpu", "h100-sxm"]
PAGE = {
    "plan": ["plan", *CHAT, "--report", "plan.html"],
    "report": ["report", *CHAT, "-o", "plan.html"],
}
DRAWING = {
    "plan, Markdown": ["plan", *CHAT, "--report", "plan.md"],
    "plot": ["plot", "roofline", *ON_H100, "-o", "roofline.png"],
    "recipe": ["recipe", *ON_H100, "--with", "fp8", "--plot", "recipe.png"],
    "simulate": ["simulate", *ON_H100, "--rate", "4", "--plot", "run.png"],
    "validate": ["validate", "rows.csv", "--plot", "scatter.png"],
}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "rows.csv").write_text("model,gpu\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(command: list[str]) -> MissingExtraError:
    error = CliRunner().invoke(cli, command).exception
    assert isinstance(error, MissingExtraError), error
    assert [path.name for path in Path().iterdir()] == ["rows.csv"]
    return error


@for_each("command", DRAWING)
def test_without_matplotlib(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert refused(DRAWING[command]).render().splitlines() == [
        "error: drawing needs matplotlib",
        "hint: pip install 'matplotlib>=3.8'",
    ]


@for_each("package", EXTRAS["web"])
def test_without_what_the_page_needs(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert refused(["web", "--no-browser"]).render().splitlines() == [
        f"error: the page needs {package}",
        "hint: pip install 'fastapi>=0.115' 'uvicorn>=0.30'",
    ]


@for_each("package", EXTRAS["report"])
@for_each("command", PAGE)
def test_without_what_a_page_needs(command: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert refused(PAGE[command]).render().splitlines() == [
        f"error: a page needs {package}",
        "hint: pip install 'matplotlib>=3.8' 'jinja2>=3.1'",
    ]


@for_each("package", EXTRAS["parquet"])
def test_without_what_parquet_needs(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert refused(["sweep", *ON_H100, "-o", "grid.parquet"]).render().splitlines() == [
        f"error: a Parquet file needs {package}",
        "hint: pip install 'pandas>=2.2' 'pyarrow>=15'",
    ]


def test_tables_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    result = inferplan.estimate_batch(inferplan.deploy("llama-3.1-8b", "h100-sxm"))
    with pytest.raises(MissingExtraError, match=r"pip install 'pandas>=2\.2'"):
        inferplan.to_frame(result)


def test_the_extras_are_those_of_the_installation() -> None:
    """Each package named in ``EXTRAS`` comes with its extra, or with an extra that this one includes."""
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]

    def brought(extra: str) -> set[str]:
        included = [name for text in stated[extra] for name in re.findall(r"inferplan\[(.*)\]", text)]
        own = {re.match(r"[\w-]+", text)[0] for text in stated[extra]}  # type: ignore[index]
        return own.union(*(brought(inner) for names in included for inner in names.split(",")))

    for extra, packages in EXTRAS.items():
        assert set(packages) <= brought(extra), extra
        # torch is more than all the rest together, what compiles is for nobody without a C compiler, and the SDK of mcp
        # asks for newer releases than the rest
        assert extra in ("models", "compiled", "calibrate", "mcp") or set(packages) <= brought("all")
