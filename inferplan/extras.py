"""Optional packages: which extra of the installation brings which, and the one error when one is missing."""

from __future__ import annotations

from importlib import import_module

from inferplan.errors import MissingExtraError

EXTRAS: dict[str, tuple[str, ...]] = {
    "plot": ("matplotlib",),
    "report": ("matplotlib", "jinja2"),
    "frame": ("pandas",),
    "parquet": ("pandas", "pyarrow"),
    "compiled": ("mypy", "setuptools"),
    "fleet": ("scipy",),
    "measure": ("httpx2",),
    "models": ("torch", "transformers"),
    "web": ("fastapi", "uvicorn"),
}
"""Extra (``[project.optional-dependencies]`` in pyproject.toml) to the packages that are imported for it."""


def require(extra: str, task: str) -> None:
    """Import the packages of an extra. ``task`` is what needs them, as the beginning of the error's sentence.

    Called before the work begins, so that nobody waits for an answer that cannot be drawn. Raises
    ``MissingExtraError`` with the command that installs the extra.
    """
    for package in EXTRAS[extra]:
        try:
            import_module(package)
        except ImportError:
            raise MissingExtraError(f"{task} needs {package}", hint=f"pip install 'inferplan[{extra}]'") from None
