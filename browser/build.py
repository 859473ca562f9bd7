"""Builds the folder with the command line for the browser: ``python -m browser.build [FOLDER]``, or ``make site``.

Pyodide (CPython in WebAssembly) comes from the npm registry, its release and hash are below. The interpreter is started
once here, with everything imported that the commands need, and its memory is written down: a page that loads it begins
where that ended, which takes a quarter of the time. Nothing of it is committed.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import pickle
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tools.shipped_specs import read_all

ROOT = Path(__file__).parents[1]
HERE = Path(__file__).parent
PYODIDE = "314.0.7"
INTEGRITY = "sha512-0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="
"""As the registry has it: ``npm view pyodide@314.0.7 dist.integrity``."""
CORE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
PATCH = (
    "Module.HEAP8.set(t),l",
    "t.length>Module.HEAP8.length&&(wasmMemory.grow((t.length-Module.HEAP8.length)/65536),updateMemoryViews()),"
    "Module.HEAP8.set(t),l",
)
"""In pyodide.asm.mjs, where a snapshot is put into memory: this release does not make room for one beyond 30 MB."""
PACKAGES = ("click", "yaml")
"""Beside the standard library, in plain Python, as they are installed here."""
STATIC = ("style.css", "icon.svg", "theme.js")
"""Files of the page of ``inferplan web`` that this page has too."""
PACKED = "files.json.gz"
"""Every file that the interpreter finds; a folder that holds it was built here."""
BEGUN = (
    "estimate llama-3.1-8b --gpu h100-sxm",
    "fit llama-3.1-8b --gpu h100-sxm",
    "compare llama-3.1-8b --gpu h100-sxm,h200-sxm",
    "cost llama-3.1-8b --gpu h100-sxm",
    "explain memory.weights llama-3.1-8b --gpu h100-sxm",
    "simulate llama-3.1-8b --gpu h100-sxm --rate 2 --requests 40 --workload chat",
)
"""Commands that the interpreter has answered when its memory is written down."""


class BuildError(RuntimeError):
    """What is missing, in one sentence."""


def pyodide(cache: Path) -> Path:
    """The folder with Pyodide's core; fetched where it is not there yet."""
    archive, folder = cache / f"pyodide-{PYODIDE}.tgz", cache / f"pyodide-{PYODIDE}"
    if all((folder / name).is_file() for name in CORE):
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    if not archive.is_file():
        npm = shutil.which("npm")
        if npm is None:
            raise BuildError("npm is not installed: it fetches Pyodide, and node runs it once")
        command = [npm, "pack", "--silent", f"pyodide@{PYODIDE}", "--pack-destination", str(cache)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            raise BuildError("npm could not fetch Pyodide: the registry was not reached, or has it no more")
    found = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != INTEGRITY:
        archive.unlink()
        raise BuildError(f"pyodide-{PYODIDE}.tgz is not the file that was pinned: its hash is {found}")
    with tempfile.TemporaryDirectory(dir=cache) as beside, tarfile.open(archive) as tar:
        (whole := Path(beside) / "core").mkdir()
        for name in CORE:
            member = tar.extractfile(f"package/{name}")
            assert member is not None
            (whole / name).write_bytes(member.read())
        shutil.rmtree(folder, ignore_errors=True)
        whole.rename(folder)
    return folder


def packed_specs() -> bytes:
    """Every shipped spec as it was read and checked here, each pickled for itself: their places, by file and kind, in
    front of them."""
    from inferplan.catalog.files import config_root

    places, packed = {}, b""
    for (file, kind), (_, made) in read_all(BEGUN).items():
        one = pickle.dumps(made, pickle.HIGHEST_PROTOCOL)
        places[Path(file).relative_to(config_root()).as_posix(), kind] = len(packed), len(one)
        packed += one
    return pickle.dumps(places, pickle.HIGHEST_PROTOCOL) + packed


def sources() -> Iterator[tuple[str, Path]]:
    """Where each text file stands in the browser, and here."""
    for path in sorted((ROOT / "inferplan").rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), path
    for path in sorted((ROOT / "configs").rglob("*.yaml")):
        yield f"inferplan/{path.relative_to(ROOT).as_posix()}", path
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise BuildError(f"{name} is not installed")
        folder = Path(spec.origin).parent
        for path in sorted(folder.rglob("*.py")):
            yield f"{name}/{path.relative_to(folder).as_posix()}", path
    stand_in = HERE / "standin"
    for path in sorted((stand_in / "numpy").rglob("*.py")):
        yield path.relative_to(stand_in).as_posix(), path
    yield "inferplan/checked.py", stand_in / "checked.py"
    yield "pydantic.py", stand_in / "pydantic.py"
    yield "boot.py", HERE / "boot.py"


def files() -> dict[str, str]:
    """Every file that the interpreter finds, by place; what is not text in base64 behind ``base64:``."""
    found = {place: path.read_text(encoding="utf-8") for place, path in sources()}
    found["usual.txt"] = "\n".join(BEGUN)
    return found | {"specs.pickle": "base64:" + base64.b64encode(packed_specs()).decode()}


def choices() -> dict[str, Any]:
    """What the form offers, and the commands that run."""
    from browser.boot import HERE as commands
    from inferplan.catalog.files import names
    from inferplan.work.formats import FORMATS

    return {"models": names("models"), "gpus": names("hardware"), "formats": sorted(FORMATS), "commands": commands}


def build(folder: Path, cache: Path) -> None:
    """Write the whole folder, in place of an earlier one. Raises :class:`BuildError` for a folder of something else."""
    if folder.exists() and not (folder.is_dir() and (not any(folder.iterdir()) or (folder / PACKED).is_file())):
        raise BuildError(f"{folder} is not replaced: it has something else than an earlier build (no {PACKED})")
    node = shutil.which("node")
    if node is None:
        raise BuildError("node is not installed: it starts the interpreter once, whose memory the page loads")
    core = pyodide(cache)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "pyodide").mkdir(parents=True)
    (folder / PACKED).touch()  # one that is interrupted is replaced
    for name in CORE:
        shutil.copyfile(core / name, folder / "pyodide" / name)
    glue = (core / "pyodide.asm.mjs").read_text(encoding="utf-8")
    if glue.count(PATCH[0]) != 1:
        raise BuildError("pyodide.asm.mjs has another place for a snapshot than the release that was pinned")
    (folder / "pyodide" / "pyodide.asm.mjs").write_text(glue.replace(*PATCH), encoding="utf-8")
    lock = json.loads((core / "pyodide-lock.json").read_text())
    (folder / "pyodide" / "pyodide-lock.json").write_text(json.dumps(lock | {"packages": {}}))  # none is fetched
    for path in sorted((HERE / "page").iterdir()):
        shutil.copyfile(path, folder / path.name)
    for name in STATIC:
        shutil.copyfile(ROOT / "inferplan" / "web" / "static" / name, folder / name)
    shutil.copyfile(ROOT / "docs" / "images" / "web-estimate.png", folder / "preview.png")
    (folder / "choices.json").write_text(json.dumps(choices()), encoding="utf-8")
    text = json.dumps(files(), ensure_ascii=False).encode()
    (folder / PACKED).write_bytes(gzip.compress(text, 9, mtime=0))
    done = subprocess.run([node, str(HERE / "snapshot.mjs"), str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"the interpreter could not be started in node:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    where = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "site-browser")
    try:
        build(where, ROOT / "build")
    except BuildError as error:
        sys.exit(f"error: {error}")
    size = sum(path.stat().st_size for path in where.rglob("*") if path.is_file())
    print(f"{where}: {size / 1e6:.1f} MB; python -m http.server --directory {where}", file=sys.stderr)
