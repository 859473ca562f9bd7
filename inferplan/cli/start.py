"""What keeps the start of a command short, and nothing else."""

from __future__ import annotations

import atexit
import dataclasses
import gc
import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

_NAME = "importlib.metadata"


class _Later(ModuleType):
    """``importlib.metadata``, loaded when something of it is used.

    pydantic imports it for plug-ins, which are switched off here; with ``email`` and ``zipfile`` it is a tenth of a
    start.
    """

    def entry_points(self, **wanted: Any) -> Any:
        """Those of the module itself."""
        return _loaded().entry_points(**wanted)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what the import system asks of every module
            raise AttributeError(name)
        return getattr(_loaded(), name)


def _loaded() -> Any:
    """The module itself, which from now on is found by its name."""
    if isinstance(sys.modules.get(_NAME), _Later):
        del sys.modules[_NAME]
    return importlib.import_module(_NAME)


def _when_called(compile_now: Callable[..., Any]) -> Callable[..., Any]:
    """``dataclasses._create_fn`` of Python 3.11 and 3.12 that compiles a method of our classes with its first call.

    A start makes 120 classes of 5 methods, and calls one method in eight. The classes then hold the compiled method.
    """

    def create(name: str, *parts: Any, **more: Any) -> Any:
        if not str((more.get("globals") or {}).get("__name__")).startswith("inferplan."):
            return compile_now(name, *parts, **more)
        compiled: list[Any] = []

        def method(self: Any, *given: Any, **named: Any) -> Any:
            if not compiled:
                compiled.append(compile_now(name, *parts, **more))
                compiled[0].__qualname__ = method.__qualname__
                for one in type(self).__mro__:
                    if vars(one).get(name) is method:
                        setattr(one, name, compiled[0])
            return compiled[0](self, *given, **named)

        method.__name__ = name
        return method

    return create


def quick_start() -> None:
    """Collect garbage later and not at the end, look for no plug-ins of pydantic, load what only they need when it is
    used, compile methods of dataclasses when they are called, start none of numpy's threads for linear algebra, of
    which there is none here.
    """
    known = getattr(dataclasses, "_create_fn", None)
    if known is not None and known.__module__ == "dataclasses":
        dataclasses._create_fn = _when_called(known)  # type: ignore[attr-defined]
    gc.set_threshold(200_000)  # start-up makes objects that stay: collecting among them is a tenth of its time
    atexit.register(gc.freeze)  # the memory goes back whole: a look through all of it before that is a sixth
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if "calibrate" not in sys.argv:  # which times torch as it is
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if _NAME not in sys.modules:
        later = sys.modules[_NAME] = _Later(_NAME)
        vars(importlib).setdefault("metadata", later)
