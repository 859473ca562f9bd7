"""Names that people type, as the hub has them: most are answered without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferplan.catalog.files import find, load_model
from inferplan.errors import UnknownNameError
from tests.cases import for_each

NAMES = (Path(__file__).parent / "fixtures" / "popular_names.txt").read_text(encoding="utf-8").splitlines()
UNKNOWN = [name.removesuffix(" unknown") for name in NAMES if name.endswith(" unknown")]
"""Those that no file has: their configs are not at hand, and are read where the hub or a folder has them."""


def test_at_least_nine_of_ten_are_on_file() -> None:
    assert len(set(NAMES)) == len(NAMES) >= 100
    assert len(UNKNOWN) <= 0.1 * len(NAMES)


@for_each("name", [name for name in NAMES if not name.endswith(" unknown")])
def test_a_popular_name_is_on_file(name: str) -> None:
    assert find("models", name).is_file()
    assert load_model(name).parameters["total"] > 0


@for_each("name", UNKNOWN)
def test_an_unknown_name_is_no_other_model(name: str) -> None:
    """What is not on file resolves to nothing, rather than to a sibling of another shape."""
    with pytest.raises(UnknownNameError):
        find("models", name)
