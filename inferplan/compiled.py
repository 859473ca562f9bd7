"""The event loop in machine code, where somebody asked for it.

The rules are written in Python. ``inferplan compile`` compiles the loop of plain replicas, which is written a second
time in C; with ``--all`` mypyc compiles modules of :mod:`inferplan.serving`, too. Results are the same to the last bit
(``tests/serving/test_compiled.py``, ``tests/serving/test_plain_native.py``). What is made lies in
``inferplan/machine_code``, a folder for each kind of Python, beside a record of the sources that it was made from.
Where those are not the sources that are there, or it cannot be loaded, or there is nothing, Python runs the sources.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from types import ModuleType
from typing import Literal

MODULES = (
    *("adapter_times", "admission", "clients", "clock", "cluster", "cluster_run", "decode_batch", "elastic"),
    *("flow_shop", "masked_times", "pipeline", "plain_pipeline", "plain_ranks", "plain_replica", "plain_scheduler"),
    *("prefix_cache", "prompt_delay", "ranks", "records", "replica", "request_queue", "routing", "scheduler"),
    *("senders", "session_senders", "step_price", "step_times", "time_shared", "waiting"),
)
"""Of :mod:`inferplan.serving`: what runs at every event, and all that inherits from it or that it inherits from."""
NATIVE = "plain_native"
"""The module that is written in C; there is none where nothing is compiled."""
OFF = "INFERPLAN_COMPILED"
"""Environment variable: ``0`` has Python run the sources."""
_PACKAGE = os.path.dirname(__file__)
_SERVING = "inferplan.serving"
_LIBRARY = "inferplan_event_loop"
_SUFFIX = EXTENSION_SUFFIXES[0]
FOLDER = os.path.join(_PACKAGE, "machine_code", _SUFFIX.strip(".").removesuffix(".so").removesuffix(".pyd"))
"""What was compiled for this Python."""
RECORD = "made_from"
"""A file beside it: a digest, what compiled it, and the files of the package that the digest is of, a line each; after
an empty line the files that were made, with their bytes.
"""
_MADE = "made"
"""The folder that is compiled into, before what was made is kept."""
_ALL = "all"
"""What is compiled beside :data:`NATIVE`: :data:`MODULES`."""
_AS_PYTHON_ROUNDS = ("-ffp-contract=off",) if sys.platform != "win32" else ()
"""A product is rounded before it is added to."""
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
    return os.path.join(_PACKAGE, "serving", f"{module}{'.c' if module == NATIVE else '.py'}")


def sources() -> list[str]:
    """The files of the package that what is compiled depends on: :data:`MODULES`, all that they import, whose types
    they are compiled against, this one, and :data:`NATIVE`.
    """
    found: set[str] = set()
    coming = {f"serving/{module}.py" for module in MODULES} | {"compiled.py"}
    while coming:
        name = coming.pop()
        found.add(name)
        coming |= set(_imported(name)) - found
    return sorted({*found, f"serving/{NATIVE}.c"})


def _imported(name: str) -> Iterator[str]:
    """The files of the package that one of them imports from."""
    import ast

    with open(_file(name), "rb") as file:
        tree = ast.parse(file.read())
    for node in ast.walk(tree):
        for module in _named(node):
            first, *rest = module.split(".")
            for ending in (".py", "/__init__.py"):
                if first == "inferplan" and rest and os.path.exists(_file("/".join(rest) + ending)):
                    yield "/".join(rest) + ending


def _named(node: object) -> list[str]:
    """What an import may mean: a name may be a module's."""
    import ast

    if isinstance(node, ast.Import):
        return [one.name for one in node.names]
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        return [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
    return []


def _file(name: str) -> str:
    return os.path.join(_PACKAGE, *name.split("/"))


def record(made_with: str, files: Sequence[str]) -> str:
    """What lies beside what was made from these files, as they are now, with this release of the compiler."""
    from hashlib import sha256

    found = sha256(f"{made_with}\n".encode())
    for name in files:
        with open(_file(name), "rb") as file:
            text = file.read()
        found.update(f"{name} {len(text)}\n".encode())
        found.update(text)
    return "\n".join((found.hexdigest(), made_with, *files))


def _is_of_these_sources(made_from: bytes) -> bool:
    """Whether a record is what :func:`record` gives for the files that are there."""
    try:
        text = made_from.decode().partition("\n\n")[0]
        _, made_with, *files = text.split("\n")
        return record(made_with, files) == text
    except (OSError, ValueError):  # a file is gone, or it is no record
        return False


State = Literal["in use", "off", "of other sources", "unusable", "none"]
"""What is compiled is used; it is there, and is not to be used; it was made from other sources; it does not load; there
is nothing.
"""


def state() -> State:
    """Whether the event loop runs in machine code."""
    return _found()[0]


def made_by() -> str:
    """The command that compiled what is there."""
    try:
        with open(os.path.join(FOLDER, RECORD), encoding="utf-8") as file:
            made_with = file.read().split("\n", 2)[1]
    except (OSError, ValueError, IndexError):
        made_with = ""
    return "inferplan compile --all" if made_with.startswith("mypy") else "inferplan compile"


def _found() -> tuple[State, Collection[str]]:
    """The state, and the files that are used."""
    try:
        with open(os.path.join(FOLDER, RECORD), "rb") as file:
            made_from = file.read()
    except OSError:
        return "none", ()
    if os.environ.get(OFF) == "0":
        return "off", ()
    if not _is_of_these_sources(made_from):
        return "of other sources", ()
    made = {line.split(" ")[0]: line for line in made_from.decode().partition("\n\n")[2].splitlines()}
    return ("in use", made) if _loads(made.values()) else ("unusable", ())


def _loads(made: Collection[str]) -> bool:
    """Whether all that a record names is there and the library, if it has one, can be loaded; it then is."""
    try:
        names = [line.split(" ")[0] for line in made]
        if not names or list(made) != _sizes(names):  # to load what is cut off would end the process
            return False
        if f"{_LIBRARY}__mypyc{_SUFFIX}" in names:
            _load_library()
    except (OSError, ImportError):  # a file is gone, or it was made for another system
        return False
    return True


def _sizes(names: Collection[str]) -> list[str]:
    """Files that were made, each with its bytes. Raises ``OSError``."""
    return [f"{name} {os.path.getsize(os.path.join(FOLDER, name))}" for name in names]


def _made(module: str) -> str:
    return os.path.join(FOLDER, f"{module}{_SUFFIX}")


class CompiledFinder:
    """Finds :data:`MODULES` and :data:`NATIVE` among what was compiled from the sources that are there."""

    def __init__(self) -> None:
        self.names = {f"{_SERVING}.{module}": module for module in (*MODULES, NATIVE)}
        self.made: Collection[str] | None = None
        """The files that are used, once somebody has asked."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As the import system asks for it; ``None``: it is looked for as usual."""
        module = self.names.get(name)
        if module is None:
            return None
        if self.made is None:
            self.made = _found()[1]
        file = _made(module)
        return _spec(name, file) if os.path.basename(file) in self.made else None


def _spec(name: str, file: str) -> ModuleSpec | None:
    from importlib.util import spec_from_file_location

    return spec_from_file_location(name, file)


def _load_library() -> None:
    """The library that all compiled modules are in: each of them imports it by this name."""
    from importlib.util import module_from_spec

    name = f"{_LIBRARY}__mypyc"
    if name in sys.modules:
        return
    spec = _spec(name, _made(name))
    assert spec is not None
    assert spec.loader is not None
    library = module_from_spec(spec)
    spec.loader.exec_module(library)
    sys.modules[name] = library


def use_compiled() -> None:
    """From now on modules are looked for among the compiled ones, if there are any."""
    if os.path.isdir(FOLDER) and os.environ.get(OFF) != "0":
        sys.meta_path.insert(0, CompiledFinder())


def compile_modules(everything: bool = False) -> str:
    """Have :data:`NATIVE` compiled for this Python, in seconds, or :data:`MODULES` too, in a minute or two: gives the
    folder of what was made.

    Raises ``MissingExtraError`` without mypyc where that is asked for, ``UsageError`` where it or the C compiler fails,
    and ``InputFileError`` where the folder cannot be written.
    """
    import subprocess
    from tempfile import TemporaryDirectory

    from inferplan.errors import UsageError
    from inferplan.extras import require

    if everything:
        require("compiled", "compile --all")
    with TemporaryDirectory() as work:
        environment = {**os.environ, OFF: "0", "PYTHONPATH": os.path.dirname(_PACKAGE)}
        command = [sys.executable, "-m", "inferplan.compiled", _ALL if everything else NATIVE, work]
        done = subprocess.run(  # -m looks for modules in the current folder first: in one that is empty
            command, cwd=work, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["nothing was said"]
            raise UsageError(
                "the event loop could not be compiled",
                because=said[-1],
                hint="it takes a C compiler (gcc, clang) and the headers of this Python",
            )
        with open(os.path.join(work, RECORD), "rb") as file:
            made_from = file.read()
        if not _is_of_these_sources(made_from):
            raise UsageError(
                "what was compiled cannot be used",
                because=f"the sources in {_PACKAGE} are not those that were compiled",
                hint="run inferplan compile again, and leave them as they are meanwhile",
            )
        _keep(os.path.join(work, _MADE), made_from)
    return FOLDER


def _keep(made: str, made_from: bytes) -> None:
    """What was made goes to its folder, its record last: without one nothing is used."""
    import shutil

    from inferplan.errors import InputFileError

    names = sorted(name for _, _, files in os.walk(made) for name in files)
    try:
        shutil.rmtree(FOLDER, ignore_errors=True)
        os.makedirs(FOLDER)
        for folder, _, files in os.walk(made):
            for name in files:
                shutil.copy(os.path.join(folder, name), FOLDER)
        with open(os.path.join(FOLDER, RECORD), "wb") as file:
            file.write(made_from + "\n\n{}".format("\n".join(_sizes(names))).encode())
    except OSError as error:
        raise InputFileError(f"cannot write {FOLDER}", because=error.strerror or "") from None


def _build(what: str, work: str) -> None:
    """Compile into the folder ``made`` of ``work``, with its record beside it.

    A process of its own, for the tools print and end as they like.
    """
    os.chdir(work)  # no project's own settings
    compiler = "C"
    if what == _ALL:
        from mypy.version import __version__ as release

        compiler = f"mypy {release}"
    with open(RECORD, "w", encoding="utf-8", newline="") as file:
        file.write(record(compiler, sources()))
    _build_native()
    if what == _ALL:
        _build_modules()


def _build_native() -> None:
    """Compile :data:`NATIVE` as this Python compiles extensions."""
    import shlex
    import subprocess
    import sysconfig

    linker = shlex.split(sysconfig.get_config_var("LDSHARED") or "")
    if not linker:
        sys.exit("this Python does not say how its extensions are compiled")
    compiler = shlex.split(os.environ.get("CC", "")) or linker[:1]
    options = [*shlex.split(sysconfig.get_config_var("CCSHARED") or ""), f"-I{sysconfig.get_path('include')}"]
    os.mkdir(_MADE)
    made = os.path.join(_MADE, f"{NATIVE}{_SUFFIX}")
    command = [*compiler, *linker[1:], "-O2", *_AS_PYTHON_ROUNDS, *options, source(NATIVE), "-o", made, "-lm"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error:" in line] or done.stderr.splitlines()
        sys.exit(errors[0] if errors else f"{command[0]} failed")


def _build_modules() -> None:
    """Have mypyc compile :data:`MODULES`."""
    from mypyc.build import mypycify
    from setuptools import setup

    with open("mypy.ini", "w", encoding="utf-8") as file:
        file.write(_MYPY)
    modules = [source(module) for module in MODULES]
    options = ["--config-file=mypy.ini", f"--cache-dir={os.devnull}"]
    extensions = mypycify([*options, *modules], opt_level="2", debug_level="0", target_dir="c", group_name=_LIBRARY)
    for extension in extensions:
        extension.extra_compile_args.extend(_AS_PYTHON_ROUNDS)
    setup(
        name="inferplan",
        packages=[],
        ext_modules=extensions,
        script_args=["--quiet", "build_ext", f"--build-lib={_MADE}", "--build-temp=objects"],
    )


if __name__ == "__main__":
    _build(*sys.argv[1:])
