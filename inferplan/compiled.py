"""The event loop in machine code: what mypyc makes of modules of :mod:`inferplan.serving`, where somebody asked for it.

The rules are written once, in Python; ``inferplan compile`` has the same files compiled, and results are the same to
the last bit (``tests/serving/test_compiled.py``). What it makes lies in ``inferplan/machine_code``, a folder for each
kind of Python, beside a digest of the sources that it was made from. Where that is not the digest of the sources that
are there, or there is nothing, Python runs the sources.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from types import ModuleType
from typing import Literal

MODULES = (
    *("adapter_times", "admission", "clients", "clock", "cluster", "cluster_run", "decode_batch", "elastic"),
    *("flow_shop", "masked_times", "pipeline", "plain_pipeline", "plain_ranks", "plain_replica", "plain_scheduler"),
    *("prefix_cache", "ranks", "records", "replica", "request_queue", "routing", "scheduler", "senders"),
    *("session_senders", "step_price", "step_times", "time_shared", "waiting"),
)
"""Of :mod:`inferplan.serving`: what runs at every event, and all that inherits from it or that it inherits from."""
OFF = "INFERPLAN_COMPILED"
"""Environment variable: ``0`` has Python run the sources."""
_PACKAGE = os.path.dirname(__file__)
_SERVING = "inferplan.serving"
_LIBRARY = "inferplan_event_loop"
_SUFFIX = EXTENSION_SUFFIXES[0]
FOLDER = os.path.join(_PACKAGE, "machine_code", _SUFFIX.strip(".").removesuffix(".so").removesuffix(".pyd"))
"""What was compiled for this Python."""
DIGEST = "sources.sha256"
_MYPY = """[mypy]
follow_imports = skip
ignore_missing_imports = True
[mypy-inferplan.*]
follow_imports = silent
[mypy-numpy.*,yaml.*]
follow_imports = skip
follow_imports_for_stubs = True
"""
"""Types of other packages are not read: that would take a minute, and what is made would depend on their releases."""


def source(module: str) -> str:
    """The file of a module of :mod:`inferplan.serving`."""
    return os.path.join(_PACKAGE, "serving", f"{module}.py")


def digest() -> str:
    """Of the sources of :data:`MODULES` as they are now."""
    from hashlib import sha256

    found = sha256()
    for module in MODULES:
        with open(source(module), "rb") as file:
            text = file.read()
        found.update(f"{module} {len(text)}\n".encode())
        found.update(text)
    return found.hexdigest()


State = Literal["in use", "off", "of other sources", "none"]
"""What is compiled is used; it is there, and is not to be used; it was made from other sources; there is nothing."""


def state() -> State:
    """Whether the event loop runs in machine code."""
    try:
        with open(os.path.join(FOLDER, DIGEST), encoding="ascii") as file:
            made_from = file.read()
    except OSError:
        return "none"
    if os.environ.get(OFF) == "0":
        return "off"
    return "in use" if made_from == digest() else "of other sources"


class CompiledFinder:
    """Finds :data:`MODULES` among what was compiled, where that was made from the sources that are there."""

    def __init__(self) -> None:
        self.names = {f"{_SERVING}.{module}": module for module in MODULES}
        self.current: bool | None = None
        """Once somebody has asked."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As the import system asks for it; ``None``: it is looked for as usual."""
        module = self.names.get(name)
        if module is None:
            return None
        if self.current is None:
            self.current = state() == "in use"
            if self.current:
                _load_library()
        return _spec(name, os.path.join(FOLDER, f"{module}{_SUFFIX}")) if self.current else None


def _spec(name: str, file: str) -> ModuleSpec | None:
    from importlib.util import spec_from_file_location

    return spec_from_file_location(name, file)


def _load_library() -> None:
    """The library that all compiled modules are in: each of them imports it by this name."""
    from importlib.util import module_from_spec

    name = f"{_LIBRARY}__mypyc"
    spec = _spec(name, os.path.join(FOLDER, f"{name}{_SUFFIX}"))
    assert spec is not None
    assert spec.loader is not None
    library = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(library)


def use_compiled() -> None:
    """From now on modules are looked for among the compiled ones, if there are any."""
    if os.path.isdir(FOLDER) and os.environ.get(OFF) != "0":
        sys.meta_path.insert(0, CompiledFinder())


def compile_modules() -> str:
    """Have :data:`MODULES` compiled for this Python, in a minute or two: gives the folder of what was made.

    Raises ``MissingExtraError`` without mypyc, ``UsageError`` where it or the C compiler fails, and ``InputFileError``
    where the folder cannot be written.
    """
    import shutil
    import subprocess
    from tempfile import TemporaryDirectory

    from inferplan.errors import InputFileError, UsageError
    from inferplan.extras import require

    require("compiled", "compiling")
    made_from = digest()
    with TemporaryDirectory() as work:
        environment = {**os.environ, OFF: "0", "PYTHONPATH": os.path.dirname(_PACKAGE)}
        command = [sys.executable, "-m", "inferplan.compiled", work]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["nothing was said"]
            raise UsageError(
                "the event loop could not be compiled",
                because=said[-1],
                hint="it takes a C compiler (gcc, clang) and the headers of this Python",
            )
        made = os.path.join(work, "made")
        try:
            shutil.rmtree(FOLDER, ignore_errors=True)
            os.makedirs(FOLDER)
            for folder, _, names in os.walk(made):
                for name in names:
                    shutil.copy(os.path.join(folder, name), FOLDER)
            with open(os.path.join(FOLDER, DIGEST), "w", encoding="ascii") as file:
                file.write(made_from)
        except OSError as error:
            raise InputFileError(f"cannot write {FOLDER}", because=error.strerror or "") from None
    return FOLDER


def _build(work: str) -> None:
    """Compile into the folder ``made`` of ``work``; a process of its own, for both tools print and end as they like."""
    from mypyc.build import mypycify
    from setuptools import setup

    os.chdir(work)  # no project's own settings
    with open("mypy.ini", "w", encoding="utf-8") as file:
        file.write(_MYPY)
    sources = [source(module) for module in MODULES]
    options = ["--config-file=mypy.ini", f"--cache-dir={os.devnull}"]
    extensions = mypycify([*options, *sources], opt_level="2", debug_level="0", target_dir="c", group_name=_LIBRARY)
    if sys.platform != "win32":
        for extension in extensions:  # as Python rounds: a product is rounded before it is added to
            extension.extra_compile_args.append("-ffp-contract=off")
    setup(
        name="inferplan",
        packages=[],
        ext_modules=extensions,
        script_args=["--quiet", "build_ext", "--build-lib=made", "--build-temp=objects"],
    )


if __name__ == "__main__":
    _build(sys.argv[1])
