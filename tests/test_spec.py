"""The base of values from YAML, held to pydantic: the same fields as a model of its own."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from copy import copy
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferplan.spec import Field, Spec, field_validator, model_validator
from inferplan.validators import AfterValidator, BeforeValidator
from tests.cases import for_each


class _Whole(Spec):
    size: int = 3


class _Lacking(Spec):
    size: int
    colour: str = "red"


def _even(value: int) -> int:
    if value % 2:
        raise ValueError(f"{value} is odd")
    return value


def _metres(value: Any) -> float:
    if not isinstance(value, str) or not value.endswith(" m"):
        raise ValueError(f"{value!r} is no length")
    return float(value[:-2])


class _Wheel(Spec):
    radius: Annotated[float, BeforeValidator(_metres)]
    spokes: Annotated[int, AfterValidator(_even)] = 12


class _Cart(Spec):
    model_config = {"extra": "ignore"}

    name: str = Field(min_length=2, pattern="[a-z]+")
    wheels: list[_Wheel] = Field(default=[], max_length=4)
    spare: _Wheel | None = None
    load: dict[str, float | None] = {}
    first: int = Field(default=1, ge=1, alias="from")

    @field_validator("name")
    @classmethod
    def _short(cls, name: str) -> str:
        return name.removesuffix("s")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.load and not self.wheels:
            raise ValueError("a load needs wheels")
        return self

    @cached_property
    def total(self) -> float:
        return sum(one or 0.0 for one in self.load.values())


class _OurWheel(pydantic.BaseModel):
    model_config = {"frozen": True, "extra": "forbid"}

    radius: Annotated[float, pydantic.BeforeValidator(_metres)]
    spokes: Annotated[int, pydantic.AfterValidator(_even)] = 12


class _TheirCart(pydantic.BaseModel):
    model_config = {"frozen": True, "extra": "ignore"}

    name: str = pydantic.Field(min_length=2, pattern="[a-z]+")
    wheels: list[_OurWheel] = pydantic.Field(default=[], max_length=4)
    spare: _OurWheel | None = None
    load: dict[str, float | None] = {}
    first: int = pydantic.Field(default=1, ge=1, alias="from")

    @pydantic.field_validator("name")
    @classmethod
    def _short(cls, name: str) -> str:
        return name.removesuffix("s")

    @pydantic.model_validator(mode="after")
    def _fits(self) -> Self:
        if self.load and not self.wheels:
            raise ValueError("a load needs wheels")
        return self


_wheels = st.fixed_dictionaries(
    {"radius": st.sampled_from(["0.5 m", "2 m", 2, "wide"])},
    optional={"spokes": st.sampled_from([2, 3, 12, "4", "many"]), "tyre": st.just("new")},
)
_carts = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["carts", "c", "UP", 7]),
        "wheels": st.lists(_wheels, max_size=5),
        "spare": st.one_of(st.none(), _wheels, st.just("none")),
        "load": st.dictionaries(st.sampled_from(["hay", "wood"]), st.sampled_from([1.5, "2", None])),
        "from": st.sampled_from([0, 3, 2.5]),
        "colour": st.just("red"),
    },
)


def _told(make: Any, data: Any) -> Any:
    """What is made of data, as a mapping, or every fault: where, of which kind, in which words."""
    try:
        made = make(data)
    except pydantic.ValidationError as error:
        return sorted((one["loc"], one["type"], one["msg"].replace("_OurWheel", "_Wheel")) for one in error.errors())
    dumps = [made.model_dump(**how) for how in ({}, {"exclude_defaults": True}, {"exclude_none": True})]
    return dumps, set(made.model_fields_set)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine draws slowly
@given(_carts)
def test_a_spec_is_checked_as_a_model_of_pydantic(data: dict[str, Any]) -> None:
    assert _told(_Cart.model_validate, data) == _told(_TheirCart.model_validate, data)
    assert _told(lambda given: _Cart(**given), data) == _told(lambda given: _TheirCart(**given), data)


def test_a_fault_names_the_type_of_a_spec_or_a_text() -> None:
    class Hub(Spec):
        wheel: _Wheel | str

    class Theirs(pydantic.BaseModel):
        wheel: _OurWheel | str

    def places(model: Any, given: Any) -> list[Any]:
        with pytest.raises(pydantic.ValidationError) as caught:
            model.model_validate({"wheel": given})
        return [tuple(part.removeprefix("_Our").lstrip("_") for part in one["loc"]) for one in caught.value.errors()]

    for given_wheel in (5, {"radius": "wide"}):
        assert places(Hub, given_wheel) == places(Theirs, given_wheel)
    assert places(Hub, 5) == [("wheel", "Wheel"), ("wheel", "str")]


def test_a_default_has_every_field() -> None:
    assert _Whole.default() == _Whole()
    with pytest.raises(TypeError, match="_Lacking has no default: size is required"):
        _Lacking.default()


def test_a_spec_is_frozen_and_a_copy_works_out_anew() -> None:
    cart = _Cart(name="cart", wheels=[{"radius": "1 m"}], load={"hay": 2.0})
    assert cart.total == 2.0
    with pytest.raises(AttributeError, match="frozen"):
        cart.load = {}  # type: ignore[misc]
    fuller = cart.model_copy(update={"load": {"hay": 3.0}})
    assert (fuller.total, cart.total) == (3.0, 2.0)
    assert fuller != cart
    assert fuller.model_copy(update={"load": cart.load}) == cart
    assert cart.wheels[0] is fuller.wheels[0]
    assert cart.model_copy(deep=True).wheels[0] is not cart.wheels[0]


def test_defaults_are_not_shared() -> None:
    first, second = _Cart(name="cart"), _Cart(name="cart")
    assert first == second
    first.load["hay"] = 1.0
    assert second.load == {}
    assert _Cart(name="cart").load == {}


def test_what_is_pickled_is_equal_and_hashes_alike() -> None:
    wheel = _Wheel(radius="1 m", spokes=4)  # type: ignore[arg-type]
    again = pickle.loads(pickle.dumps(wheel))
    assert again == wheel
    assert hash(again) == hash(wheel)
    assert again.model_fields_set == {"radius", "spokes"}
    assert copy(wheel) == wheel
    assert vars(copy(wheel)) is not vars(wheel)
    assert wheel != _Wheel(radius="1 m", spokes=6)  # type: ignore[arg-type]


class _Fair(Spec):
    day: date
    sizes: tuple[int, ...]
    colours: frozenset[str] = frozenset()
    carts: dict[str, _Wheel] = {}
    wheel: _Wheel | None = None


class _TheirFair(pydantic.BaseModel):
    day: date
    sizes: tuple[int, ...]
    colours: frozenset[str] = frozenset()
    carts: dict[str, _OurWheel] = {}
    wheel: _OurWheel | None = None


@for_each(
    "how",
    [
        {},
        {"mode": "json"},
        {"include": {"sizes", "carts"}},
        {"exclude": {"sizes", "wheel"}},
        {"exclude_none": True, "mode": "json"},
        {"exclude_defaults": True},
        {"exclude_defaults": True, "exclude": {"day"}},
    ],
)
def test_it_is_written_as_a_model_of_pydantic(how: dict[str, Any]) -> None:
    wheels = {"radius": "1 m", "spokes": 12}
    for data in (
        {"day": "2026-05-04", "sizes": [3, 4], "colours": ["red"], "carts": {"a": wheels}},
        {"day": "2026-05-04", "sizes": [], "wheel": wheels},
    ):
        assert _Fair.model_validate(data).model_dump(**how) == _TheirFair.model_validate(data).model_dump(**how)


def test_a_spec_without_fields() -> None:
    class Bare(Spec):
        pass

    class Other(Spec):
        pass

    class Heir(Bare, _Whole):
        size: int
        tall: ClassVar[int] = 4
        _kept = 5

    assert Bare() == Bare() and Bare() != Other() and hash(Bare()) == hash(Bare())
    assert Heir.spec_fields == ("size",) and Heir.spec_defaults == {}  # a field that is declared anew has no default
    assert hash(Heir(size=3)) == hash(Heir(size=3)) and Heir(size=3).tall == 4
    with pytest.raises(pydantic.ValidationError):
        Heir()


WRONG = [
    ("size", 10**40, "more than anything here can count"),
    ("size", -(10**40), "more than anything here can count"),
    ("size", True, "true is not a number"),
    ("size", False, "false is not a number"),
    ("size", [1, True], "true and false are not numbers"),
    ("size", [False], "true and false are not numbers"),
    ("colour", "r\x1b[1m", "control characters in"),
    ("name", "r\u200be", "control characters in"),
    ("size", 7, ""),
    ("size", [1, 0], ""),
    ("colour", "r\u200be", ""),
    ("colour", "", ""),
    ("unknown", True, ""),
]


@for_each("name, value, said", WRONG)
def test_what_no_field_means(name: str, value: Any, said: str) -> None:
    found = _Lacking.spec_wrong(name, value)
    assert found.startswith(said) if said else found == ""


def test_a_switch_may_be_true() -> None:
    class Lamp(Spec):
        lit: bool
        watts: float

    assert Lamp(lit=True, watts=5.0).lit is True
    assert Lamp.spec_wrong("lit", True) == Lamp.spec_wrong("lit", [True]) == ""
    with pytest.raises(pydantic.ValidationError, match="true is not a number"):
        Lamp(lit=True, watts=True)


def test_a_copy_of_a_copy_is_what_it_was() -> None:
    cart = _Cart(name="cart", load={}, spare={"radius": "1 m"})
    assert cart.total == 0.0
    whole = cart.model_copy()
    assert vars(whole) == vars(cart) and vars(whole) is not vars(cart)  # what was worked out is kept
    assert whole.model_fields_set == {"name", "load", "spare"}
    assert cart.model_copy(update={"wheels": []}).model_fields_set == {"name", "load", "spare", "wheels"}
    assert "total" not in vars(cart.model_copy(update={"wheels": []}))
    assert dict(cart) == {"name": "cart", "wheels": [], "spare": cart.spare, "load": {}, "first": 1}
    with pytest.raises(AttributeError, match="frozen"):
        del cart.load


def test_a_start_from_what_is_kept_imports_no_pydantic(tmp_path: Path) -> None:
    code = """
import sys
from inferplan.__main__ import main
sys.argv = ["inferplan", "estimate", "llama-3.1-8b", "--gpu", "h100-sxm"]
try:
    main()
finally:
    print("pydantic" in sys.modules, file=sys.stderr)
"""
    kept = {**os.environ, "INFERPLAN_CACHE": str(tmp_path / "kept")}
    runs = [
        subprocess.run([sys.executable, "-c", code], env=kept, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert [run.stderr.split()[-1] for run in runs] == ["True", "False"]
    assert runs[0].stdout == runs[1].stdout
