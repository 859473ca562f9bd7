"""Optional packages: which extra of the installation brings which, and the one error when one is missing."""

from __future__ import annotations

import re
from importlib import import_module

from inferplan.errors import MissingExtraError

EXTRAS: dict[str, tuple[str, ...]] = {
    "plot": ("matplotlib",),
    "report": ("matplotlib", "jinja2"),
    "frame": ("pandas",),
    "parquet": ("pandas", "pyarrow"),
    "dask": ("dask", "distributed"),
    "hub": ("huggingface_hub",),
    "calibrate": ("torch", "scipy", "pandas", "matplotlib"),
    "compiled": ("mypy", "setuptools"),
    "fleet": ("scipy",),
    "mcp": ("mcp",),
    "measure": ("httpx2",),
    "models": ("torch", "transformers"),
    "web": ("fastapi", "uvicorn"),
}
"""Extra (``[project.optional-dependencies]`` in pyproject.toml) to the packages that are imported for it."""


def installs(extra: str) -> str:
    """The command that installs the packages of an extra, in the releases that our own metadata asks for.

    It names the packages and not the extra: a checkout or a wheel may be all that there is of inferplan.
    """
    from importlib import metadata

    try:
        asked = metadata.requires("inferplan") or []
    except metadata.PackageNotFoundError:  # run from its folder
        asked = []
    return " ".join(["pip install", *(_in_shell(package, asked) for package in EXTRAS[extra])])


def _in_shell(package: str, asked: list[str]) -> str:
    """A package with the releases of it that are asked for, as a shell takes it."""
    named = re.compile(rf"{package.replace('_', '[_-]')}\s*(?=[<>=~!;]|$)", re.IGNORECASE)
    found = next((one.partition(";")[0].strip() for one in asked if named.match(one)), package)
    return found if found.replace("-", "").replace("_", "").isalnum() else f"'{found}'"


def require(extra: str, task: str) -> None:
    """Import the packages of an extra. ``task`` is what needs them, as the beginning of the error's sentence.

    Called before the work begins, so that nobody waits for an answer that cannot be drawn. Raises
    ``MissingExtraError`` with the command that installs the extra.
    """
    for package in EXTRAS[extra]:
        try:
            import_module(package)
        except ImportError:
            raise MissingExtraError(f"{task} needs {package}", hint=installs(extra)) from None
