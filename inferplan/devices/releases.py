"""Kernels by engine release: what a release's own kernels took where it differs from the constants on file.

``configs/calibration/<gpu>.yaml`` holds the newest release of each engine; ``configs/calibration/releases/<gpu>.yaml``
what earlier ones had otherwise, and the other kernels that a flag chooses. A release that was not timed takes those of
the nearest that was, kernel by kernel and format by format, and says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from inferplan.devices.constants import Calibration, Constants, Fit
from inferplan.errors import UnknownNameError, UsageError
from inferplan.spec import Field, Spec

REDUCED = "all-reduce"
KERNEL_ROLES: dict[str, tuple[str, ...]] = {
    "experts": ("grouped_matmul",),
    "attention": ("attention", "mla"),
    "linear": ("matmul",),
    REDUCED: ("collective.all_reduce",),
}
"""What a flag chooses kernels for, and the kernels' names (their first parts)."""
FOUR_BITS = {"marlin": ("int4", "mxfp4")}
"""Backends of one kernel for weights of several formats, which it turns into the format of the inputs and multiplies
there (vLLM's ``fused_marlin_moe.py``: ``scalar_types.float4_e2m1f`` beside ``uint4b8``): timed in one of them it prices
the others."""
FASTEST = "the fastest of "
"""How the name of a kernel begins that is several libraries' (:mod:`tools.fitting.tables.fastest`)."""
Order = tuple[tuple[int, ...], int, int]
_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)(?:rc(\d+))?(?:\.?post(\d+))?")
_FINAL = 1 << 20


def release_order(version: str) -> Order | None:
    """Where a release stands among the others of its engine: 1.2.0rc6 < 1.2.0rc6.post2 < 1.2.0 < 1.2.0.post1.

    ``None`` for a name without a number.
    """
    found = _VERSION.match(version)
    if found is None:
        return None
    numbers = [int(part) for part in found[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers), int(found[2]) if found[2] else _FINAL, int(found[3] or 0)


def release_number(version: str | None) -> str | None:
    """The release of a version, of which candidates and later builds are one: ``"1.2.0"`` of ``"v1.2.0rc6.post2"``.

    ``None`` for a name without a number.
    """
    found = _VERSION.match(version or "")
    return found[1] if found else None


class ReleaseDates(Spec):
    """``configs/releases.yaml``: the day of each release of an engine, oldest first."""

    source: str
    released: dict[str, date]
    own: tuple[str, ...] = ()
    """Of :data:`KERNEL_ROLES`: what a deployment of a stated release takes from it rather than from the newest, where
    that is nearer to measured rows of other systems (docs/calibration.md)."""

    def day(self, version: str) -> int | None:
        """The day (ordinal) of a release; for one that is not on file that of the last one before it, for a line of
        releases (``0.5``) that of the last one in it."""
        wanted = release_order(version)
        line = [name for name in self.released if name.startswith(f"{version}.")]
        if line and not any(_order(name) == wanted for name in self.released):
            wanted = max(map(_order, line))
        earlier = [day for name, day in self.released.items() if wanted and _order(name) <= wanted]
        return max(earlier).toordinal() if earlier else None

    def lists(self, version: str) -> bool:
        """Whether this very release is on file."""
        return any(_order(name) == release_order(version) for name in self.released)

    def beyond(self, version: str) -> bool:
        """Whether a release is of a line newer than every one on file."""
        return _order(version)[0] > max(_order(name)[0] for name in self.released)

    def before(self, day: date) -> str | None:
        """The newest final release that was out on ``day``, by version; ``None`` before the first."""
        out = [name for name, released in self.released.items() if released <= day]
        return max(out, key=_order) if out else None


def _order(version: str) -> Order:
    return release_order(version) or ((), 0, 0)


class Release(Spec):
    """What was timed of one release on one device.

    kernels: ``kernels[kernel][label][source]``, the engine's usual one first; ``source`` is the table's name of what
    ran. same: labels whose usual kernel takes what that of the newest release takes, within the file's share.
    """

    kernels: dict[str, dict[str, dict[str, Fit]]] = {}
    same: dict[str, list[str]] = {}

    def usual(self, kernel: str, label: str) -> bool:
        """Whether the release's usual kernel of a format was timed."""
        return label in self.same.get(kernel, ()) or bool(self.kernels.get(kernel, {}).get(label))


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Constants with the kernels of a release, and which release each kernel and format came from.

    taken: of the roles that are the release's own. newest: of the others. fastest: formats of matmuls that are the
    fastest library's, of whatever release.
    """

    calibration: Calibration
    engine: str
    version: str
    taken: Mapping[tuple[str, str], str]
    newest: Mapping[tuple[str, str], str]
    fastest: Sequence[str] = ()

    @property
    def note(self) -> str:
        """Which releases' kernels price, and what stands in for the release that was asked for."""
        own, rest = _by_release(self.taken), _by_release(self.newest)
        asked, words = release_order(self.version), []
        if own and all(release_order(release) == asked for release in own):
            words.append(f"its own kernels for {', '.join(sorted(set().union(*own.values())))}")
        elif own:
            words.append(f"kernels of {_listed(own)}, the nearest that were timed")
        if rest:
            words.append(f"{'' if own else 'kernels '}of the newest, {_listed(rest)}")
        if self.fastest:
            words.append(f"linear in {', '.join(self.fastest)} of the fastest library")
        return f"{self.engine} {self.version}: {'; '.join(words)}" if words else ""


def require_role(role: str) -> None:
    """Raise ``UsageError`` for what has no kernels that a flag chooses."""
    if role not in KERNEL_ROLES:
        raise UsageError(f"{role!r:.60} has no kernels to choose", hint=f"one of {', '.join(KERNEL_ROLES)}")


def _by_release(taken: Mapping[tuple[str, str], str]) -> dict[str, set[str]]:
    """The roles of the kernels that each release gave, the newest first."""
    kernels: dict[str, set[str]] = {}
    for (kernel, _), release in taken.items():
        kernels.setdefault(release, set()).add(role_of(kernel))
    return dict(sorted(kernels.items(), key=lambda item: _order(item[0]), reverse=True))


def _listed(kernels: Mapping[str, set[str]]) -> str:
    return ", ".join(f"{release} ({', '.join(sorted(roles))})" for release, roles in kernels.items())


def role_of(kernel: str) -> str:
    """The role of a kernel: ``experts`` for ``grouped_matmul``."""
    return next((role for role, starts in KERNEL_ROLES.items() if kernel.startswith(starts)), kernel)


@dataclass(frozen=True)
class OnFile:
    """What is known of an engine beside its releases: their days, the sources of the usual kernels
    (``{"grouped_matmul/bf16": "sglang_fused_moe_triton"}``) and their constants."""

    dates: ReleaseDates
    usual: Mapping[str, str]
    constants: Constants


class Releases(Spec):
    """The releases of a device. newest: those behind the constants on file, by engine. share: the median difference
    over shapes from which a release has constants of its own."""

    name: str
    provenance: dict[str, Any] = {}
    share: float = Field(gt=0.0)
    newest: dict[str, str]
    engines: dict[str, dict[str, Release]] = {}

    def chosen(
        self, calibration: Calibration, engine: str, version: str, dates: ReleaseDates, roles: Sequence[str]
    ) -> Chosen:
        """``calibration`` with the kernels of ``roles`` of the release of ``engine`` that is nearest to ``version``."""
        own = calibration.libraries.get(engine, {})
        taken: dict[tuple[str, str], str] = {}
        newest: dict[tuple[str, str], str] = {}
        fastest = []
        changed: Constants = {kernel: dict(formats) for kernel, formats in own.items()}
        for place in self._timed(engine):
            kernel, label = place
            on_file = label in own.get(kernel, {})
            mine = role_of(kernel) in roles
            if not mine and not on_file:
                continue
            release, fit = (
                self._nearest(engine, version, place, on_file, dates) if mine else (self.newest[engine], None)
            )
            if fit is not None:
                changed.setdefault(kernel, {})[label] = fit
            named = calibration.provenance.get("kernels", {}).get(engine, {}).get(f"{kernel}/{label}", "")
            if fit is None and named.startswith(FASTEST):
                fastest.append(label)
            elif release == self.newest[engine]:
                (taken if mine else newest)[place] = _behind(named) or release
            else:
                taken[place] = release
        libraries = {**calibration.libraries, engine: changed}
        return Chosen(
            calibration=calibration.model_copy(update={"libraries": libraries}),
            engine=engine,
            version=version,
            taken=taken,
            newest=newest,
            fastest=sorted(fastest),
        )

    def _nearest(
        self, engine: str, version: str, place: tuple[str, str], on_file: bool, dates: ReleaseDates
    ) -> tuple[str, Fit | None]:
        """The release nearest to ``version`` with the usual kernel of a place, and its constants; ``None`` for those
        on file."""
        kernel, label = place
        there = [name for name, found in self.engines[engine].items() if found.usual(kernel, label)]
        there += [self.newest[engine]] if on_file else []
        nearest = min(dict.fromkeys(there), key=lambda name: _distance(name, version, dates))
        release = self.engines[engine].get(nearest, Release())
        sources = release.kernels.get(kernel, {}).get(label, {})
        kept = on_file and (nearest == self.newest[engine] or label in release.same.get(kernel, ()))
        if kept or not sources:
            return nearest, None
        source, fit = next(iter(sources.items()))
        return nearest, fit.model_copy(update={"source": f"{engine} {nearest}: {source}"})

    def _timed(self, engine: str) -> Iterator[tuple[str, str]]:
        """Every kernel and format that some release was timed with."""
        found: dict[tuple[str, str], None] = {}
        for release in self.engines.get(engine, {}).values():
            for kernel, formats in release.kernels.items():
                found |= dict.fromkeys((kernel, label) for label in formats)
            for kernel, labels in release.same.items():
                found |= dict.fromkeys((kernel, label) for label in labels)
        yield from found

    def backend(self, engine: str, version: str, role: str, name: str, given: OnFile) -> Constants:
        """The constants of the kernels of ``role`` whose source has the backend ``name`` as a word, of the nearest
        release; on file for a format whose usual kernel it is. ``@RELEASE`` for a name: the usual kernels of that
        release.

        Raises ``UsageError`` for a role that has no kernels, ``UnknownNameError`` for a backend that nobody timed.
        """
        require_role(role)
        if name.startswith("@"):
            return self._of_release(engine, name[1:], role, given)
        named = _names(name)
        usual = {place: source for place, source in given.usual.items() if place.startswith(KERNEL_ROLES[role])}
        known: set[str] = set(usual.values())
        found: dict[tuple[str, str], dict[str, Fit]] = {}
        result: Constants = {}
        for release, entry in self.engines.get(engine, {}).items():
            for kernel, label, source, fit in _entries(entry):
                if kernel.startswith(KERNEL_ROLES[role]):
                    known.add(source)
                    if named(source) and not named(usual.get(f"{kernel}/{label}", "")):
                        update = {"source": f"{engine} {release}: {source}"}
                        found.setdefault((kernel, label), {}).setdefault(release, fit.model_copy(update=update))
        if not any(map(named, known)):
            raise UnknownNameError(
                f"no kernel {name!r} of {engine} for {role} was timed on {self.name}",
                hint=f"timed: {', '.join(sorted(known)) or 'none'}",
            )
        for place, source in usual.items():
            kernel, _, label = place.partition("/")
            if named(source) and label in given.constants.get(kernel, {}):
                result.setdefault(kernel, {})[label] = given.constants[kernel][label]
        for (kernel, label), releases in found.items():
            nearest = min(releases, key=lambda one: _distance(one, version, given.dates))
            result.setdefault(kernel, {})[label] = releases[nearest]
        return {kernel: fits | _of_four_bits(name, fits) for kernel, fits in result.items()}

    def _of_release(self, engine: str, version: str, role: str, given: OnFile) -> Constants:
        """The usual kernels of ``role`` of the release nearest to ``version``. Raises ``UnknownNameError`` for none."""
        if given.dates.day(version) is None or given.dates.beyond(version):
            raise UnknownNameError(
                f"no release {version!r} of {engine} is on file", hint=f"--backend {role}=@{self.newest[engine]}"
            )
        result: Constants = {}
        for kernel, label in self._timed(engine):
            if role_of(kernel) == role:
                on_file = given.constants.get(kernel, {}).get(label) if f"{kernel}/{label}" in given.usual else None
                fit = self._nearest(engine, version, (kernel, label), on_file is not None, given.dates)[1] or on_file
                if fit is not None:
                    result.setdefault(kernel, {})[label] = fit
        return result


def _names(backend: str) -> Callable[[str], bool]:
    """Whether a source of kernels names a backend by whole words: ``cutlass`` is one of
    ``vllm CutlassFP8ScaledMMLinearKernel``, ``flash_attn`` are two of ``vllm_flash_attn_fa3``, ``tri`` is none of
    ``vllm_fp8moe_triton``."""
    words = re.escape(backend.replace("-", "_"))
    start = r"(?:(?<![A-Za-z0-9])|(?<=[a-z0-9])(?=[A-Z]))"
    end = r"(?:(?![A-Za-z0-9])|(?<=[a-z0-9])(?=[A-Z]))"
    named = re.compile(f"{start}(?i:{words}){end}")
    return lambda source: named.search(source) is not None


def _of_four_bits(name: str, fits: Mapping[str, Fit]) -> dict[str, Fit]:
    """Constants of a backend (:data:`FOUR_BITS`) for formats that it was not timed in; the error is that of the
    one it was."""
    found: dict[str, Fit] = {}
    formats = FOUR_BITS.get(name.lower(), ())
    for label, fit in fits.items():
        weights, _, inputs = label.partition("x")
        for other in formats if weights in formats else ():
            update = {"basis": "transferred", "source": f"{name} in {label}"}
            found.setdefault(f"{other}x{inputs}", fit.model_copy(update=update))
    return {label: fit for label, fit in found.items() if label not in fits}


def _entries(release: Release) -> Iterator[tuple[str, str, str, Fit]]:
    for kernel, formats in release.kernels.items():
        for label, sources in formats.items():
            for source, fit in sources.items():
                yield kernel, label, source, fit


def own_source(source: str, engine: str) -> str:
    """The kernel of ``engine`` among those that ``the fastest of trtllm torch_flow, vllm Cutlass...`` names."""
    pooled = source.removeprefix(FASTEST)
    own = [part for part in pooled.split(", ") if part.startswith(f"{engine} ")]
    return source if pooled == source else ", ".join(own)


def _behind(named: str) -> str | None:
    """The older release whose rows stand in on file for refused ones of the newest (``vllm_fused_moe of 0.19.0``)."""
    release = named.rpartition(" of ")[2]
    return release if _VERSION.fullmatch(release) else None


def _distance(name: str, version: str, dates: ReleaseDates) -> tuple[int, int]:
    """Days between two releases; of two equally near ones the newer."""
    own, asked = dates.day(name), dates.day(version)
    newness = -(own or 0)
    if own is None or asked is None:
        return (0 if name == version else 1), newness
    return abs(own - asked), newness
