"""The base of values from YAML."""

from __future__ import annotations

import pytest

from inferplan.spec import Spec


class _Whole(Spec):
    size: int = 3


class _Lacking(Spec):
    size: int
    colour: str = "red"


def test_a_default_has_every_field() -> None:
    assert _Whole.default() == _Whole()
    with pytest.raises(TypeError, match="_Lacking has no default: size is required"):
        _Lacking.default()
