"""The loop of plain replicas in C, compiled as `inferplan compile` has it compiled, for a test alone."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from inferplan import compiled
from inferplan.serving import plain_pipeline, plain_replica

NAME = f"inferplan.serving.{compiled.NATIVE}"


def c_compiler() -> list[str]:
    """The compiler of this Python; skips a test where that, or a header, is missing."""
    command = shlex.split(sysconfig.get_config_var("CC") or "")
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not command or shutil.which(command[0]) is None or not headers.exists():
        pytest.skip("no C compiler, or no headers of this Python")
    return command


def native_module(folder: Path) -> ModuleType:
    """What was compiled already, or the source compiled into a folder, every warning an error."""
    if plain_replica.NATIVE is not None:
        return sys.modules[NAME]
    made = folder / f"{compiled.NATIVE}{EXTENSION_SUFFIXES[0]}"
    options = ["-O2", "-ffp-contract=off", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]
    options += ["-Wno-missing-field-initializers", "-Wno-cast-function-type", f"-I{sysconfig.get_paths()['include']}"]
    subprocess.run([*c_compiler(), *options, compiled.source(compiled.NATIVE), "-o", made], check=True)
    spec = spec_from_file_location(NAME, made)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def runs_in(module: ModuleType | None) -> Iterator[None]:
    """Plain replicas that are made here run in this module, or in Python."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_replica, "NATIVE", None if module is None else module.Plain)
        patch.setattr(plain_pipeline, "NATIVE", None if module is None else module.Pipe)
        patch.setitem(sys.modules, NAME, module)
        yield
