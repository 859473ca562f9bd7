"""The mutants of a source file, and a mutant put in place of the function that is loaded.

A mutant is named ``module:Qualified.name#operator-number``: the name stays when lines move, and when other functions
change. The file is never written: the changed function is compiled in memory and lends the loaded one its code object,
so that whoever holds the function (a class, a table, a module that imported it by name) runs the mistake.
"""

from __future__ import annotations

import ast
import gc
import importlib
import pkgutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import CodeType, FunctionType

from tools.mutants.operators import changes

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("inferplan", "calibrate")
LOADED_FIRST = ("hypothesis", "numpy", "scipy.optimize", "click.testing", "yaml")
_NO_VALUE = {"__repr__", "__str__", "__format__"}

Key = tuple[str, str, int]
"""A function: its file, qualified name and first line."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change of one function.

    lines: first and last line of the changed code, and the first line of its statement.
    digest: of the function without its documentation, to see later whether it is still the same.
    """

    module: str
    function: str
    first: int
    operator: str
    number: int
    lines: tuple[int, int, int]
    digest: str
    before: str
    after: str

    @property
    def name(self) -> str:
        return f"{self.module}:{self.function}#{self.operator}-{self.number}"

    @property
    def path(self) -> Path:
        return path_of(self.module)


@cache
def path_of(module: str) -> Path:
    single = ROOT / (module.replace(".", "/") + ".py")
    return single if single.exists() else single.with_suffix("") / "__init__.py"


def modules(packages: tuple[str, ...] = PACKAGES) -> list[str]:
    """The dotted names of all source files."""
    found = []
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            found.append(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    return found


def mutants_of(module: str, source: str | None = None) -> list[Mutant]:
    """Every mutant of a module, in the order of its source."""
    text = path_of(module).read_text(encoding="utf-8") if source is None else source
    found = []
    numbers: Counter[tuple[str, str]] = Counter()
    for function, node in functions(ast.parse(text)):
        digest = digest_of(node)
        for operator, old, new, statement in changes(node):
            numbers[function, operator] += 1
            line = getattr(old, "lineno", statement.lineno)
            found.append(
                Mutant(
                    module=module,
                    function=function,
                    first=first_line(node),
                    operator=operator,
                    number=numbers[function, operator],
                    lines=(line, getattr(old, "end_lineno", line), statement.lineno),
                    digest=digest,
                    before=" ".join(ast.unparse(old).split()),
                    after=" ".join(ast.unparse(new).split()),
                )
            )
    return found


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Functions and methods with their qualified names; functions inside them are part of them."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, Function) and node.name not in _NO_VALUE:
            yield prefix + node.name, node


def first_line(node: Function) -> int:
    """As a code object counts it: decorators are part of the function."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def digest_of(node: Function) -> str:
    documented = ast.get_docstring(node) is not None
    return sha256("".join(map(ast.dump, node.body[documented:])).encode()).hexdigest()[:8]


def compiled(mutant: Mutant, source: str) -> CodeType:
    """The code object of the changed function."""
    tree = ast.parse(source)
    number = 0
    for function, node in functions(tree):
        for change in changes(node) if function == mutant.function else []:
            number += change.operator == mutant.operator
            if change.operator == mutant.operator and number == mutant.number:
                changed = _Exchange(change.node, change.new).visit(tree)
                assert isinstance(changed, ast.Module)
                whole = compile(changed, str(mutant.path), "exec", dont_inherit=True)
                return next(code for code in _codes(whole) if _is_of(code, mutant))
    raise LookupError(mutant.name)


class _Exchange(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _is_of(code: CodeType, mutant: Mutant) -> bool:
    return code.co_qualname == mutant.function and code.co_firstlineno == mutant.first


def load_everything() -> None:
    """Import all of ours that can be imported here, and what tests import most: a fork then has it for nothing."""
    for name in LOADED_FIRST:
        with suppress(ImportError):
            importlib.import_module(name)
    for package in PACKAGES:
        for found in pkgutil.walk_packages([str(ROOT / package)], f"{package}."):
            if not found.name.endswith("__main__"):
                with suppress(ImportError):
                    importlib.import_module(found.name)


def loaded() -> dict[Key, list[FunctionType]]:
    """Every loaded function of ours, wherever it is held."""
    found = defaultdict(list)
    for one in gc.get_objects():
        if type(one) is FunctionType and one.__code__.co_filename.startswith(str(ROOT)):
            code = one.__code__
            found[code.co_filename, code.co_qualname, code.co_firstlineno].append(one)
    return found


def plant(mutant: Mutant, live: dict[Key, list[FunctionType]]) -> None:
    """The mistake, in this process, for good. Raises ``LookupError`` where the function is not loaded."""
    held = live.get((str(mutant.path), mutant.function, mutant.first), [])
    if not held:
        raise LookupError(f"{mutant.name} is not loaded")
    code = compiled(mutant, mutant.path.read_text(encoding="utf-8"))
    for function in held:
        function.__code__ = code
