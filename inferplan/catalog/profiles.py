"""Named load profiles, one YAML each in ``configs/profiles``: the shape of a real service's load, with its source."""

from __future__ import annotations

from pathlib import Path

from inferplan.catalog.files import load
from inferplan.errors import UnknownNameError
from inferplan.spec import Field, Spec
from inferplan.traffic.profile import STEPS_HINT, Profile, read_profile, stated_profile
from inferplan.units import Seconds


class ProfileSpec(Spec):
    """Requests a second in steps of equal length, the last until ``end``, where the profile begins again."""

    name: str
    source: str
    licence: str
    notes: list[str] = []
    step: Seconds
    end: Seconds
    rates: list[float] = Field(min_length=1)

    def profile(self) -> Profile:
        """As the simulation takes it. Raises ``UsageError`` for rates and times that are none."""
        starts = tuple(index * self.step for index in range(len(self.rates)))
        return Profile(name=self.name, starts=starts, rates=tuple(self.rates), end=self.end, source=self.source)


def load_profile(name: str) -> Profile:
    """A profile by name, of a YAML or CSV file, or of its steps (``00:00=0.1,07:00=0.8``).

    Raises ``UnknownNameError`` with close matches.
    """
    if name.lower().endswith(".csv"):
        return read_profile(Path(name))
    if "=" in name and not name.lower().endswith((".yaml", ".yml")):
        return stated_profile(name)
    try:
        return load("profiles", name, ProfileSpec).profile()
    except UnknownNameError as error:
        raise UnknownNameError(
            error.what, because=error.because, hint=f"{error.hint}, a CSV, or {STEPS_HINT}"
        ) from None
