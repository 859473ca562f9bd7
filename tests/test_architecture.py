"""The floors of docs/architecture.md, read from the imports; what starts with a command; the size of functions."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping, Set
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.cases import for_each

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "inferplan"
PACKAGES = ("inferplan", "calibrate", "tools")

FLOORS: list[tuple[str, set[str]]] = [
    ("0 what types of fields are annotated with", {"validators"}),
    ("0 ground: errors, quantities", {"errors", "units"}),
    ("0 what checks specs", {"checked"}),
    ("0 the base of specs", {"spec"}),
    ("0 lines over an array, its text; options of questions, lists in them", {"affine", "decimals", "fields", "lists"}),
    (
        "0 files of the user, without names, of specs; money; which features go together",
        {"files", "mapped", "packed", "money", "features"},
    ),
    ("0 optional packages", {"extras"}),
    ("0 other machines that compute", {"cluster"}),
    ("0 modules that were compiled; steps of a work", {"compiled", "steps"}),
    ("0 rows by column, what a result says of itself", {"columns", "shown"}),
    ("0 the form of a result, terms of formulas", {"table", "terms"}),
    ("0 figures of a result, each said once", {"figures"}),
    ("1 what is asked: operators and formats, requests; live servers, timed", {"work", "traffic", "measuring"}),
    ("2 what it runs on: devices, engines, fitted constants; models", {"devices", "models"}),
    ("3 one step priced, a static batch", {"estimate"}),
    ("4 files and names; engines under traffic", {"catalog", "serving"}),
    ("5 answers built on estimates", {"answers"}),
    ("6 search under limits; predicted against measured; keyword arguments", {"planning", "validation", "arguments"}),
    ("6 records of a server's steps, learned from", {"learning"}),
    ("6 months of machines, under demand that is not known", {"horizon"}),
    ("6 a day in several regions", {"regions"}),
    ("6 a running service beside its prediction", {"watching"}),
    ("7 screens, pages, pictures", {"reports"}),
    ("8 the server of the page, the Python API", {"web", "api"}),
    ("9 the command line", {"cli"}),
    ("9 python -m inferplan", {"__main__"}),
]
"""From the ground up: a module imports from its own room and from floors below it, never from its floor or above.

The rows of floor 0 are in order too.
"""
CALIBRATE_FLOORS: list[tuple[str, set[str]]] = [
    ("0 ground: what is measured, the fit, files", {"samples", "fit", "files"}),
    ("1 the models and loads that shapes come from", {"designs"}),
    ("2 shapes of real models", {"shapes"}),
    ("3 operators as torch calls", {"kernels"}),
    ("4 the device, timed", {"device"}),
    ("5 one calibration, or a check", {"session"}),
    ("6 the command", {"cli"}),
    ("7 python -m calibrate", {"__main__"}),
]
"""The same for the calibrator."""
TOOLS_FLOORS: list[tuple[str, set[str]]] = [
    ("0 answers held still, every spec", {"same_answers", "shipped_specs"}),
    ("0 mistakes planted, pairs of features asked", {"mutants", "feature_pairs"}),
    ("0 constants fitted to published data", {"fitting"}),
    ("1 the pages on accuracy", {"accuracy"}),
    ("1 what texts say, what a wheel has", {"words", "wheel"}),
]
"""The same for what works in a checkout alone; it may import both packages."""
HEAVY = {
    "click": {"cli"},
    "rich": {"table", "reports", "cli"},
    "pandas": {"table"},
    "matplotlib": {"reports"},
    "jinja2": {"reports"},
    "torch": {"models"},  # import --trace alone: test_light_commands_load_nothing_heavy
    "scipy": {"planning", "horizon", "regions"},  # fleet alone, when it runs: test_light_commands_load_nothing_heavy
    "transformers": {"models"},
    "tokenizers": {"measuring"},
    "httpx2": {"measuring"},
    "calibrate": {"cli"},
    "fastapi": {"web"},
    "mcp": {"web"},
    "mcp_types": {"web"},
    "starlette": {"web"},
    "uvicorn": {"web"},
}
"""Packages that few may import, and who may."""
FLOORS_INSIDE = 6
"""Modules of the longest chain of imports inside a room, at most: more cannot be read in one go."""
SUB_ROOMS = {"inferplan.models.huggingface"}
"""Folders that count as rooms of their own."""
MOST_INSIDE = {
    "calibrate.kernels": 8,
    "calibrate.session": 7,
    "inferplan.answers": 8,
    "inferplan.catalog": 7,
    "inferplan.cli": 7,
    "inferplan.estimate": 10,
    "inferplan.models": 8,
    "inferplan.models.huggingface": 11,
    "inferplan.planning": 14,
    "inferplan.reports": 7,
    "inferplan.serving": 16,
    "inferplan.validation": 9,
    "inferplan.web": 8,
}
"""Rooms that are still higher. An entry only falls."""
MOST_PARAMETERS = 6
MOST_LINES = {ast.FunctionDef: 60, ast.AsyncFunctionDef: 60, ast.ClassDef: 250}
MOST_ATTRIBUTES = 40
TOO_LARGE: set[str] = set()
"""Functions and classes that are still to be cut. The list only gets shorter: an entry that is not needed fails."""
IN_ONE_PIECE = {"inferplan/serving/plain_replica.py: _events"}
"""Loops whose gain is that nothing in them is a call (docs/performance.md, "Planning"): they are not cut. What they do
is written a second time in functions that can be read, and a test holds both to the same last bit."""

HEIGHT = {module: height for height, (_, modules) in enumerate(FLOORS) for module in modules}


def modules() -> list[str]:
    """Top-level modules and packages of inferplan."""
    files = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    return sorted(files | {path.parent.name for path in PACKAGE.glob("*/__init__.py")})


def files(module: str, package: Path = PACKAGE) -> list[Path]:
    single = package / f"{module}.py"
    return [single] if single.is_file() else sorted((package / module).rglob("*.py"))


def sources(package: str) -> list[Path]:
    """Every source file of a package."""
    return sorted((ROOT / package).rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    """A source file as a syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"))


def dotted(path: Path) -> str:
    """The name by which a source file is imported."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def written_imports(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Every import statement, late ones and those for types alone too, with the dotted names that it imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "inferplan":
                yield from ((node, f"inferplan.{alias.name}") for alias in node.names)
            else:
                yield node, node.module


def for_types_alone(tree: ast.AST) -> set[ast.AST]:
    """The statements under ``if TYPE_CHECKING``."""
    guards = (node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    return {inner for guard in guards for inner in ast.walk(guard)}


def runtime_imports(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Those of :func:`written_imports` that a program runs."""
    skipped = for_types_alone(tree)
    return ((node, name) for node, name in written_imports(tree) if node not in skipped)


def imported(module: str, package: Path = PACKAGE, *, types: bool = True) -> set[tuple[str, str, int]]:
    """(top-level name, second name, line) of everything a module imports; ``types``: for types alone too."""
    found = set()
    for path in files(module, package):
        for node, name in (written_imports if types else runtime_imports)(tree_of(path)):
            first, _, rest = name.partition(".")
            found.add((first, rest.partition(".")[0], getattr(node, "lineno", 0)))
    return found


def test_every_module_has_a_floor() -> None:
    unknown = set(modules()) - set(HEIGHT)
    assert not unknown, (
        f"{', '.join(sorted(unknown))}: say in tests/test_architecture.py (FLOORS) on which floor it stands"
    )


@for_each("module", modules())
def test_imports_point_down(module: str) -> None:
    own = HEIGHT.get(module, -1)
    wrong = [
        f"line {line}: {module} (floor {FLOORS[own][0]}) imports {other} (floor {FLOORS[HEIGHT[other]][0]})"
        for first, other, line in imported(module)
        if first == "inferplan" and other in HEIGHT and other != module and HEIGHT[other] >= own
    ]
    assert not wrong


BESIDE = {"calibrate": CALIBRATE_FLOORS, "tools": TOOLS_FLOORS}
"""Packages beside the library."""


@for_each("package", BESIDE)
def test_imports_of_packages_beside_the_library_point_down(package: str) -> None:
    """Each of their modules has a floor."""
    height = {module: floor for floor, (_, modules) in enumerate(BESIDE[package]) for module in modules}
    there = {source.relative_to(ROOT / package).parts[0].removesuffix(".py") for source in sources(package)}
    assert there - {"__init__"} == set(height)
    wrong = [
        f"line {line}: {module} imports {other}"
        for module in sorted(height)
        for first, other, line in imported(module, ROOT / package)
        if first == package and other != module and height[other] >= height[module]
    ]
    assert not wrong


def test_packages_of_the_wheel_import_none_that_is_not_in_it() -> None:
    """The tools work in a checkout; the tests too."""
    wrong = [
        f"{dotted(path)}: {name}"
        for package in ("inferplan", "calibrate")
        for path in sources(package)
        for _, name in written_imports(tree_of(path))
        if name.partition(".")[0] in {"tools", "tests"}
    ]
    assert not wrong


@cache
def imports_of_modules() -> dict[str, set[str]]:
    """Module by module what each imports of the packages here: late imports too, and those for types alone, without
    which a file cannot be read by itself.

    The package's own file is a door: it has the version, and names that load when somebody asks for them.
    """
    named = {dotted(path): path for package in PACKAGES for path in sources(package)}
    del named["inferplan"]
    graph: dict[str, set[str]] = {}
    for name, path in named.items():
        targets = set()
        for node, module in written_imports(tree_of(path)):
            inner = [f"{module}.{alias.name}" for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            targets |= {found if found in named else module for found in inner or [module]}
        graph[name] = targets & set(named) - {name}
    return graph


def test_no_circles_of_imports() -> None:
    try:
        TopologicalSorter(imports_of_modules()).prepare()
    except CycleError as circle:
        pytest.fail(" -> ".join(circle.args[1]))


def longest_chain(graph: Mapping[str, Set[str]]) -> int:
    """Modules of the longest chain of imports: the floors of a drawing in which every import points down."""
    height: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():
        height[name] = 1 + max((height[other] for other in graph[name]), default=0)
    return max(height.values(), default=0)


def test_rooms_have_few_floors_inside() -> None:
    """:data:`MOST_INSIDE`, else :data:`FLOORS_INSIDE`."""
    graph = imports_of_modules()
    rooms = {f"{package}.{room}" for package in PACKAGES for room in rooms_of(ROOT / package)} | SUB_ROOMS
    found = {}
    for room in sorted(rooms):
        apart = {other for other in SUB_ROOMS if other.startswith(f"{room}.")}
        inside = {name for name in graph if name == room or name.startswith(f"{room}.")}
        inside = {name for name in inside if not any(name == one or name.startswith(f"{one}.") for one in apart)}
        found[room] = longest_chain({name: graph[name] & inside for name in inside})
    high = {room: floors for room, floors in found.items() if floors > MOST_INSIDE.get(room, FLOORS_INSIDE)}
    assert not high, "floors inside these rooms: let the longest chain of imports be shorter"
    low = {room: found.get(room) for room, most in MOST_INSIDE.items() if found.get(room, 0) < most}
    assert not low, "lower these entries of MOST_INSIDE, or leave them out"


def rooms_of(package: Path) -> set[str]:
    """The folders of a package."""
    return {path.parent.name for path in package.glob("*/__init__.py")}


@for_each("module", modules())
def test_heavy_packages_stay_where_they_are_used(module: str) -> None:
    wrong = [
        f"line {line}: {name}"
        for name, _, line in imported(module, types=False)
        if module not in HEAVY.get(name, {module})
    ]
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
        for _, name in runtime_imports(tree_of(PACKAGE / "estimate" / "roofline.py"))
        if name.startswith("inferplan")
    }
    assert known <= {
        "inferplan.affine",
        "inferplan.devices.constants",
        "inferplan.devices.hardware",
        "inferplan.devices.power",
        "inferplan.errors",
        "inferplan.terms",
        "inferplan.units",
        "inferplan.work.ops",
    }


@for_each("package", PACKAGES)
def test_functions_take_at_most_six_parameters(package: str) -> None:
    """Beyond ``self``: more than that is a value object without a name. Commands take what their options are."""
    wrong = []
    for path in sources(package):
        if path.is_relative_to(PACKAGE / "cli"):
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                count = len([name for name in names if name not in ("self", "cls")])
                if count > MOST_PARAMETERS:
                    wrong.append(f"{path.name}:{node.lineno}: {node.name} takes {count}")
    assert not wrong


def too_large(path: Path) -> Iterator[str]:
    """Functions and classes of a source file beyond :data:`MOST_LINES` or :data:`MOST_ATTRIBUTES`."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MOST_LINES[type(node)] or (
                isinstance(node, ast.ClassDef) and attributes(node) > MOST_ATTRIBUTES
            ):
                yield f"{path.relative_to(ROOT).as_posix()}: {node.name}"


def attributes(node: ast.ClassDef) -> int:
    """How many fields a class declares or sets on ``self``."""
    declared = {
        one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }
    assigned = {
        one.attr
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute)
        and isinstance(one.ctx, ast.Store)
        and isinstance(one.value, ast.Name)
        and one.value.id == "self"
    }
    return len(declared | assigned)


def test_functions_and_classes_can_be_read_at_once() -> None:
    found = {name for package in PACKAGES for path in sources(package) for name in too_large(path)}
    assert not found - TOO_LARGE - IN_ONE_PIECE, "cut these in two"
    assert not (TOO_LARGE | IN_ONE_PIECE) - found, "these are small enough now: take them off their list"


KNOW_ENGINES = {
    "inferplan/answers/emit/": "has a file for each engine, whose command line it writes",
    "inferplan/reports/emit.py": "writes the file beside the command of one engine",
    "inferplan/measuring/server.py": "asks a live server for the pages that its engine has",
    "inferplan/validation/importers/": "read the files and logs of other programs, by the names that stand there",
}
"""Where a branch may ask for an engine or a maker by name, and why. Elsewhere what differs is data in ``configs``."""


def named_in(node: ast.Compare) -> set[str]:
    """The texts that a comparison holds its other side against; in tuples, lists and sets, too."""
    sides = [node.left, *node.comparators]
    parts = [
        part for side in sides for part in (side.elts if isinstance(side, (ast.Tuple, ast.List, ast.Set)) else [side])
    ]
    return {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}


def test_no_branch_asks_for_the_name_of_an_engine_or_a_maker() -> None:
    """``none`` is no engine's name, but where it is compared with an engine the question is the same."""
    engines = {path.stem for path in (ROOT / "configs/engines").glob("*.yaml")} - {"none"}
    hardware = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "configs/hardware").glob("*.yaml"))
    makers = {line.partition(":")[2].strip() for line in hardware.splitlines() if line.startswith("vendor:")}
    found = []
    for path in sources("inferplan"):
        where = path.relative_to(ROOT).as_posix()
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Compare):
                named = named_in(node) & (engines | makers | ({"none"} if "engine" in ast.unparse(node) else set()))
            elif isinstance(node, ast.match_case):
                texts = {one.value for one in ast.walk(node.pattern) if isinstance(one, ast.Constant)}
                named = texts & (engines | makers)
            else:
                continue
            if named:
                found.append((where, f"{where}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)}"))
    wrong = [text for where, text in found if not where.startswith(tuple(KNOW_ENGINES))]
    assert not wrong, "state what differs in configs/engines or configs/hardware"
    assert {place for place in KNOW_ENGINES if not any(where.startswith(place) for where, _ in found)} == set()


COMMANDS = {
    "estimate": "estimate llama-3.1-8b --gpu h100-sxm --batch 8 --prompt 1024 --output 256",
    "fit": "fit llama-3.1-8b --gpu h100-sxm",
    "show": "show llama-3.1-8b",
}


@for_each("command", COMMANDS)
def test_light_commands_load_nothing_heavy(command: str) -> None:
    """In a process of its own: what was loaded when the command has run."""
    script = (
        "import sys, runpy\n"
        f"sys.argv = ['inferplan', *{COMMANDS[command].split()!r}]\n"
        "from inferplan.cli import cli\n"
        "cli.main(args=sys.argv[1:], standalone_mode=False)\n"
        "heavy = {'torch', 'pandas', 'scipy', 'matplotlib', 'jinja2', 'transformers', 'calibrate', 'fastapi'}\n"
        "heavy = heavy & set(sys.modules)\n"
        "print('loaded:', sorted(heavy), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip().splitlines()[-1] == "loaded: []"


AGE = {"modern", "new", "newer", "newest", "latest", "recent", "old", "early"}
RARITY = {"rare", "uncommon", "special", "other", "others", "further", "misc"}


def test_files_are_named_for_what_they_hold() -> None:
    """A file that is named for the age or the rarity of what it holds says nothing once something else comes."""
    files = [
        file for package in ("inferplan", "calibrate", "tools", "tests") for file in (ROOT / package).rglob("*.py")
    ]
    assert len(files) > 500
    assert not [file for file in files if (AGE | RARITY).intersection(file.stem.split("_"))]
