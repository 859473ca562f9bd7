"""The floors of docs/architecture.md, read from the imports; what starts with a command; the size of functions."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "inferplan"

FLOORS: list[tuple[str, set[str]]] = [
    ("0 ground: errors, quantities", {"errors", "units"}),
    ("0 optional packages", {"extras"}),
    ("0 the base of specs, the form of a result, terms of formulas", {"spec", "table", "terms"}),
    ("1 what is asked: operators and formats, requests", {"work", "traffic"}),
    ("2 what it runs on: devices, engines, fitted constants", {"devices"}),
    ("3 models", {"models"}),
    ("4 one step priced, a static batch", {"estimate"}),
    ("5 files and names; engines under traffic", {"catalog", "serving"}),
    ("6 answers built on estimates", {"answers"}),
    ("7 search under limits; predicted against measured", {"planning", "validation"}),
    ("8 screens, pages, pictures", {"reports"}),
    ("9 the command line, the Python API", {"cli", "api"}),
]
"""From the ground up: a module imports from its own room and from floors below it, never from its floor or above.

The rows of floor 0 are in order too.
"""
HEAVY = {
    "click": {"cli"},
    "rich": {"table", "cli"},
    "pandas": {"table"},
    "matplotlib": {"reports"},
    "jinja2": {"reports"},
    "torch": set(),
    "scipy": set(),
    "transformers": set(),
    "calibrate": {"cli"},
}
"""Packages that few may import, and who may."""
MOST_PARAMETERS = 6

HEIGHT = {module: height for height, (_, modules) in enumerate(FLOORS) for module in modules}


def modules() -> list[str]:
    """Top-level modules and packages of inferplan."""
    files = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    return sorted(files | {path.parent.name for path in PACKAGE.glob("*/__init__.py")})


def files(module: str) -> list[Path]:
    single = PACKAGE / f"{module}.py"
    return [single] if single.is_file() else sorted((PACKAGE / module).rglob("*.py"))


def runtime_imports(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Every import statement outside ``if TYPE_CHECKING``, late ones too, with the dotted names that it imports."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "inferplan":
                yield from ((node, f"inferplan.{alias.name}") for alias in node.names)
            else:
                yield node, node.module
        yield from runtime_imports(node)


def imported(module: str) -> set[tuple[str, str, int]]:
    """(top-level name, second name, line) of everything a module imports."""
    found = set()
    for path in files(module):
        for node, name in runtime_imports(ast.parse(path.read_text(encoding="utf-8"))):
            first, _, rest = name.partition(".")
            found.add((first, rest.partition(".")[0], getattr(node, "lineno", 0)))
    return found


def test_every_module_has_a_floor() -> None:
    unknown = set(modules()) - set(HEIGHT)
    assert not unknown, (
        f"{', '.join(sorted(unknown))}: say in tests/test_architecture.py (FLOORS) on which floor it stands"
    )


@pytest.mark.parametrize("module", modules())
def test_imports_point_down(module: str) -> None:
    own = HEIGHT.get(module, -1)
    wrong = [
        f"line {line}: {module} (floor {FLOORS[own][0]}) imports {other} (floor {FLOORS[HEIGHT[other]][0]})"
        for first, other, line in imported(module)
        if first == "inferplan" and other in HEIGHT and other != module and HEIGHT[other] >= own
    ]
    assert not wrong


@pytest.mark.parametrize("module", modules())
def test_heavy_packages_stay_where_they_are_used(module: str) -> None:
    wrong = [f"line {line}: {name}" for name, _, line in imported(module) if module not in HEAVY.get(name, {module})]
    assert not wrong


def test_the_calibrator_is_never_imported_by_the_library() -> None:
    users = [
        module for module in modules() if module != "cli" and "calibrate" in {name for name, _, _ in imported(module)}
    ]
    assert not users


def test_the_roofline_knows_operators_and_devices_only() -> None:
    """No model, no layer, no phase: what it prices has a geometry and a kernel."""
    known = {
        name
        for _, name in runtime_imports(ast.parse((PACKAGE / "estimate" / "roofline.py").read_text(encoding="utf-8")))
        if name.startswith("inferplan")
    }
    assert known <= {
        "inferplan.devices.constants",
        "inferplan.devices.hardware",
        "inferplan.errors",
        "inferplan.terms",
        "inferplan.units",
        "inferplan.work.ops",
    }


@pytest.mark.parametrize("module", [module for module in modules() if module != "cli"])
def test_functions_take_at_most_six_parameters(module: str) -> None:
    """Beyond ``self``: more than that belong in a value object with a name."""
    wrong = []
    for path in files(module):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                count = len([name for name in names if name not in ("self", "cls")])
                if count > MOST_PARAMETERS:
                    wrong.append(f"{path.name}:{node.lineno}: {node.name} takes {count}")
    assert not wrong


COMMANDS = {
    "estimate": "estimate llama-3.1-8b --gpu h100-sxm --batch 8 --prompt 1024 --output 256",
    "fit": "fit llama-3.1-8b --gpu h100-sxm",
    "show": "show llama-3.1-8b",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_light_commands_load_nothing_heavy(command: str) -> None:
    """In a process of its own: what was loaded when the command has run."""
    script = (
        "import sys, runpy\n"
        f"sys.argv = ['inferplan', *{COMMANDS[command].split()!r}]\n"
        "from inferplan.cli import cli\n"
        "cli.main(args=sys.argv[1:], standalone_mode=False)\n"
        "heavy = {'torch', 'pandas', 'scipy', 'matplotlib', 'jinja2', 'transformers', 'calibrate'} & set(sys.modules)\n"
        "print('loaded:', sorted(heavy), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip().splitlines()[-1] == "loaded: []"
