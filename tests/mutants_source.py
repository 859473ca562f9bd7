"""Bugs planted in the source: one snippet of one function replaced by another, and the check that must notice.

A mutant names the function by module and qualified name and gives the snippet as it stands there, so a mutant whose
code has moved or changed fails loudly. The changed function is compiled where the honest one lives and lends it its
code object: whoever holds the function (a class, a table, a module that imported it by name) runs the bug.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from tests.mutants import forget

Check = Callable[[], object]
"""Fails (by an assertion) when a value is wrong; takes no fixtures."""
OURS = ("inferplan", "calibrate")


@dataclass(frozen=True, kw_only=True)
class SourceMutant:
    """``old`` becomes ``new`` in the function ``place`` (or in the line of the module constant of that name).

    place: ``module:Qualified.name``. changes: what a user would see. check: what must fail while it is planted.
    """

    name: str
    place: str
    old: str
    new: str
    changes: str
    check: Check


class StaleMutantError(Exception):
    """The snippet is not in the source any more: the mutant needs to follow the code."""


@contextmanager
def planted_in_source(mutant: SourceMutant) -> Iterator[None]:
    """The bug in place for a while. Raises ``StaleMutantError`` where its snippet is not there exactly once."""
    module_name, _, path = mutant.place.partition(":")
    module = import_module(module_name)
    target = _find(module, path, mutant)
    with pytest.MonkeyPatch.context() as patch:
        if isinstance(target, FunctionType):
            patch.setattr(target, "__code__", _changed_code(target, module, mutant))
        else:
            _change_constant(patch, module, path, target, mutant)
        forget(OURS)
        yield
    forget(OURS)


def _find(module: ModuleType, path: str, mutant: SourceMutant) -> Any:
    """The function (unwrapped from its decorators) or the constant that ``path`` names."""
    found: Any = module
    for name in path.split("."):
        try:
            found = inspect.getattr_static(found, name)
        except AttributeError:
            raise StaleMutantError(f"{mutant.name}: no {path} in {module.__name__}") from None
    if isinstance(found, property):
        found = found.fget
    if isinstance(found, cached_property):
        found = found.func
    if isinstance(found, (classmethod, staticmethod)):
        found = found.__func__
    return inspect.unwrap(found) if callable(found) else found


def _swapped(source: str, mutant: SourceMutant) -> str:
    if source.count(mutant.old) != 1:
        raise StaleMutantError(f"{mutant.name}: {source.count(mutant.old)} times in {mutant.place}: {mutant.old!r}")
    return source.replace(mutant.old, mutant.new)


def _changed_code(function: FunctionType, module: ModuleType, mutant: SourceMutant) -> CodeType:
    """The code object of the function with the snippet replaced."""
    source = _swapped(textwrap.dedent(inspect.getsource(function)), mutant)
    whole = compile(f"from __future__ import annotations\n{source}", f"<mutant {mutant.name}>", "exec")
    codes = [const for const in whole.co_consts if isinstance(const, CodeType) and const.co_name == function.__name__]
    if len(codes) != 1 or codes[0].co_freevars != function.__code__.co_freevars:
        raise StaleMutantError(f"{mutant.name}: {mutant.place} cannot be compiled apart from its surroundings")
    return codes[0]


def _change_constant(
    patch: pytest.MonkeyPatch, module: ModuleType, name: str, honest: object, mutant: SourceMutant
) -> None:
    """A module's constant, there and wherever else it was imported by name."""
    line = next((text for text in inspect.getsource(module).splitlines() if text.startswith(f"{name} =")), "")
    scope: dict[str, object] = {}
    exec(compile(_swapped(line, mutant), f"<mutant {mutant.name}>", "exec"), dict(vars(module)), scope)
    for other in list(sys.modules.values()):
        if other.__name__.startswith(OURS) and vars(other).get(name) is honest:
            patch.setattr(other, name, scope[name])


def failure(check: Check) -> str:
    """What a check says is wrong; empty when it passes."""
    try:
        check()
    except (AssertionError, pytest.fail.Exception) as error:
        return str(error) or type(error).__name__
    return ""
