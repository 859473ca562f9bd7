"""What a wheel has beside the sources: the shipped specs, checked (:mod:`inferplan.packed`).

hatchling calls it, in an environment with the dependencies of inferplan.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parents[1]


def specs() -> bytes:
    """The file of this checkout's specs."""
    sys.path.insert(0, str(ROOT))
    os.environ["INFERPLAN_CACHE"] = ""
    from inferplan.catalog.files import config_root
    from inferplan.packed import packed
    from inferplan.spec import Spec
    from tools.shipped_specs import read_all

    return packed({key: one for key, one in read_all().items() if isinstance(one[1], Spec)}, config_root())


class Hook(BuildHookInterface):  # type: ignore[type-arg]
    """By https://hatch.pypa.io/latest/plugins/build-hook/reference."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file to a wheel, but to none that only points at this checkout."""
        if version != "editable":
            made = Path(tempfile.mkdtemp()) / "specs.jsonl"
            made.write_bytes(specs())
            build_data["force_include"][str(made)] = "inferplan/configs/specs.jsonl"
