"""Fields that say how they are asked: what is read, what is refused, and what each face makes of them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import click
import pytest
from click.testing import CliRunner

from inferplan.cli.declared import asks, options_of
from inferplan.errors import UsageError
from inferplan.fields import (
    SHARE,
    Quantity,
    Real,
    Switch,
    Text,
    Topic,
    Whole,
    Words,
    ask,
    need,
    question_if_asked,
    question_of,
    question_record,
    require_limits,
)


@dataclass(frozen=True, kw_only=True)
class Kettle:
    """A question of our own: water for tea."""

    topic: ClassVar = Topic("a kettle", "there is none", "--water 1l --power 2kW", "nobody knows your kettle")
    volume: float = field(metadata=need("--water", Real(0, above=True), "Litres.", metavar="LITRES"))
    power: float = field(metadata=need("--power", Quantity("watts", above=True), "Of the kettle."))
    cups: int = ask("--cups", Whole(1, 8), "Cups.", 2, shown=True, also=("--mugs",))
    full: float | None = ask("--full", SHARE, "Share of it that is filled.", None)
    lid: bool = ask("--lid", Switch(both=True), "With its lid.", True)
    loud: bool = ask("--loud", Switch(), "It whistles.", False)
    herbs: tuple[str, ...] = ask("--herb", Text(str.upper), "A herb.", (), several=True)
    material: str = ask("--made-of", Words(("steel", "glass")), "Material.", "steel")
    owner: str = "nobody asks"

    def __post_init__(self) -> None:
        require_limits(self)


def asked(*words: str) -> Kettle | None:
    """What a command with its options makes of words."""
    found: list[Kettle | None] = []

    @click.command()
    @asks(Kettle)
    def brew(**values: Any) -> None:
        found.append(question_if_asked(Kettle, values))

    result = CliRunner().invoke(brew, words, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return found[0]


def test_options_make_the_question() -> None:
    words = "--water 1.5 --power 2kW --mugs 3 --no-lid --loud --herb mint --herb sage --made-of glass"
    made = asked(*words.split())
    assert made == Kettle(
        volume=1.5, power=2000.0, cups=3, lid=False, loud=True, herbs=("MINT", "SAGE"), material="glass"
    )
    assert asked("--water", "1", "--power", "500W") == Kettle(volume=1.0, power=500.0)


def test_nothing_is_asked_where_no_option_is_given() -> None:
    assert asked() is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--cups 3", "--cups belongs to a kettle, and there is none"),
        ("--no-lid", "--lid belongs to a kettle, and there is none"),
        ("--water 1", "a kettle needs --power"),
        ("--water 1 --power 0W", "--power must be more than 0"),
        ("--water 1 --power 2", "--power: '2' has no unit"),
    ],
)
def test_half_a_question_is_refused(words: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        asked(*words.split())


@pytest.mark.parametrize("words", ["--water 0 --power 1W", "--cups 9", "--cups 0", "--full 1.1", "--made-of gold"])
def test_limits_hold_for_words(words: str) -> None:
    with pytest.raises(click.BadParameter):
        asked(*words.split())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"volume": 0.0}, "--water must be more than 0, not 0"),
        ({"power": float("nan")}, "--power must be more than 0, not nan"),
        ({"cups": 9}, "--cups must be at most 8, not 9"),
        ({"cups": 0}, "--cups must be 1 or more, not 0"),
        ({"full": 1.5}, r"--full is in \(0, 1\], not 1.5"),
        ({"material": "gold"}, "--made-of is 'gold'"),
    ],
)
def test_limits_hold_in_python(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Kettle(**{"volume": 1.0, "power": 1.0, **wrong})


def test_python_gives_numbers_or_text() -> None:
    assert question_of(Kettle, {"water": 2, "power": "1kW"}) == question_of(Kettle, {"water": 2.0, "power": 1000})


def test_help_and_json_say_units_and_defaults() -> None:
    options = {one.name: one.keywords for one in options_of(Kettle)}
    assert [*options] == ["water", "power", "cups", "full", "lid", "loud", "herb", "made_of"]
    assert options["power"]["metavar"] == "WATTS" and options["cups"]["default"] == 2
    assert [one.name for one in options_of(Kettle, "cups", "volume")] == ["water", "cups"]
    assert question_record(Kettle(volume=1.0, power=2e3))["power_w"] == 2e3
    assert "owner" in {one.name for one in fields(Kettle)} - set(question_record(Kettle(volume=1.0, power=1.0)))


def test_a_share_is_a_number_or_per_cent() -> None:
    """99 % is 0.99; more than all is refused."""
    assert (SHARE.read("--quality", "99%"), SHARE.read("--quality", 0.5)) == (0.99, 0.5)
    with pytest.raises(UsageError, match=r"--quality is in \(0, 1\], not 1.01"):
        SHARE.require("--quality", SHARE.read("--quality", "101%"))
