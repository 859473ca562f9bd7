"""Where the inputs of a formula stand: the file and line of a field, or the option that set it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from inferplan.answers.explain.explanation import Input
from inferplan.catalog import files as catalog
from inferplan.catalog.assemble import Request
from inferplan.catalog.calibrations import (
    IN_SLOTS,
    calibration_file,
    class_file,
    own_kernels,
    releases_file,
    shared_step,
    slots_file,
)
from inferplan.catalog.filters import FILE as FILTERS
from inferplan.catalog.filters import filter_place
from inferplan.catalog.power import CLOCKS, power_place, power_shares
from inferplan.catalog.yaml_text import line_of
from inferplan.devices.constants import alike
from inferplan.devices.engine import EngineSpec
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import UnknownNameError
from inferplan.estimate.deployment import Deployment
from inferplan.models.spec import LayerGroup
from inferplan.terms import Field, Term
from inferplan.work.formats import FORMATS, Format

_FLAGS = {
    "memory_fraction": "--gpu-memory-utilization",
    "token_budget": "--max-num-batched-tokens",
    "block_size": "--block-size",
    "max_sequences": "--max-num-seqs",
}
"""Fields of an engine and the options that replace them."""
_OPTIONS: dict[Field, str] = {
    ("load", "context"): "--prompt + --output",
    ("load", "steps"): "--output - 1",
    ("load", "further samples"): "--samples - 1",
    ("parallel", "ranks"): "--tp * --pp * --dp * --cp",
    ("hardware", "memory", "usable"): "--memory",
    ("lora", "slots"): "--max-loras",
}


@dataclass(frozen=True, kw_only=True)
class Origins:
    """Where the inputs of one deployment stand; ``request`` is what was asked for."""

    request: Request
    deployment: Deployment

    def of(self, term: Term, phase: str = "") -> Input:
        """The input that a named term is. ``phase``: what its ``part`` fields are parts of."""
        place, source = self._place(term.field, phase)
        return Input(symbol=term.name, value=term.shown, origin=place, source=source)

    def _place(self, field: Field, phase: str) -> tuple[str, str]:
        """Place and source of a field."""
        deployment, (kind, *path) = self.deployment, field
        if kind in ("host", "link"):
            return self._beyond(kind, tuple(path), phase)
        if kind == "hardware":
            if self.request.memory and tuple(field) in _OPTIONS:
                return _OPTIONS[tuple(field)], ""
            if path[0] == "links":
                path = [*_link(deployment.hardware, str(path[1])), "bandwidth"]
            return self.at(catalog.find("hardware", self.request.gpu), *path), deployment.hardware.source
        if kind == "model":
            if path[0] == "generation" and path[1] in dict(self.request.generation):
                return f"--block-{path[1]}", ""
            return self.model_place(*path), deployment.model.source
        if kind == "engine":
            return self._engine_place(str(path[-1]), path), deployment.engine.defaults.source
        if kind == "power":
            if path[0] == "limit":
                return "--power-cap over TDP, or TDP", ""
            if path[0] == "cap":
                return "--power-cap: the kernel's clock at which it draws that (docs/power.md)", ""
            shares, place = power_shares(deployment.hardware), power_place(deployment.hardware)
            common = path[0] in ("static", "voltage")
            where = (CLOCKS,) if common else ("shares", place)
            source = shares.clock_source if common else shares.source
            return self.at(catalog.config_root() / "power.yaml", *where, *path), source
        if kind == "serving":
            mine = {"latency": "request", "eager_layer": "layer", "eager_latent": "layer"}.get(str(path[-1]), "")
            if mine and getattr(self.request.host, mine) is not None:
                return f"--host-{mine}", ""
            return self._engine_at("serving", *path), deployment.engine.serving.source
        if kind == "format":
            return self._format(str(path[0]), getattr(deployment.precision, str(path[0])))
        if kind == "calibration":
            fit = deployment.calibration.fit(str(path[0]), str(path[1]))
            assert fit is not None  # it gave the term
            source = f"{fit.source or path[0]}: {fit.n:,} measurements" if fit.n else fit.source
            return self._constant(str(path[0]), str(path[1]), path[2:]), source
        if kind == "anchor":
            return self._anchor_place(str(path[0]))
        if kind == "own":
            return _own_place(self, *path), ""
        if kind == "step":
            return self._step_place(str(path[0])), ""
        if kind in ("number", "part"):
            return f"inferplan explain {f'{phase}.' if kind == 'part' else ''}{path[0]}", ""
        return _OPTIONS.get(tuple(field), f"--{path[0]}"), ""

    def _beyond(self, kind: str, field: Field, phase: str) -> tuple[str, str]:
        """Place and source of a field of the host, which is another device, or of the link to it."""
        offload, asked, hardware = self.deployment.offload, self.request.offload, self.deployment.hardware
        assert asked.host is not None  # it gave the term
        kind = "host" if field[:2] == ("hardware", "memory") else kind  # what crosses a link lies in the host's memory
        if kind == "host" and field[0] == "number":
            return f"inferplan explain host.{field[1]}", ""
        if kind == "host" and field == ("hardware", "memory", "usable") and asked.host_memory:
            return "--host-memory", ""
        if kind == "host" and offload is not None:
            there = replace(
                self.request, gpu=asked.host, memory=asked.host_memory, nvlink_bridge=False, calibration=None
            )
            return Origins(request=there, deployment=offload.host)._place(field, phase)
        streamed = self.deployment.streamed
        if streamed is not None:
            rate = streamed.over(hardware, self.deployment.parallel.ranks).to_host.bandwidth
            if rate < streamed.link.bandwidth:  # the host's memory is slower than what its devices could take
                return self.at(catalog.find("hardware", asked.host), "memory", "bandwidth"), streamed.host.source
        if asked.host_link:
            return "--host-link", ""
        path: tuple[str | int, ...] = ("host_link", "bandwidth")
        if isinstance(hardware.host_link, str):
            path = (*_link(hardware, hardware.host_link), "bandwidth")
        return self.at(catalog.find("hardware", self.request.gpu), *path), hardware.source

    def at(self, path: Path, *field: str | int) -> str:
        """``file:line: field`` of a YAML's field; without a line where the file leaves it to the default."""
        name = ".".join(map(str, field))
        if not _states(path, field):
            return f"{_short(path)}: {name} is not stated: the default"
        return f"{_short(path)}:{line_of(path, field)}: {name}"

    def model_place(self, *field: str | int) -> str:
        """A field of the model's file; the model's name where it came from the hub."""
        path = self._model_file
        while path is not None and not _states(path, field) and _states(path, ("derive", "from")):
            path = catalog.find("models", str(catalog.read_yaml(path)["derive"]["from"]))
        return f"{self.request.model}: {'.'.join(map(str, field))}" if path is None else self.at(path, *field)

    @cached_property
    def _model_file(self) -> Path | None:
        try:
            return catalog.find("models", self.request.model)
        except UnknownNameError:
            return None

    def _engine_place(self, name: str, path: list[str | int]) -> str:
        if name in _FLAGS and getattr(self.request.flags, name) is not None:
            return _FLAGS[name]
        file = catalog.find("engines", self.request.engine.partition("@")[0])
        defaults = self.deployment.engine.defaults
        versions = catalog.read_yaml(file)["versions"]
        index = next(i for i, entry in enumerate(versions) if str(entry["version"]) == defaults.version)
        if path[0] == "tiers":
            path = ["tiers", defaults.tiers.index(defaults.tier(self.deployment.hardware)), name]
        if path[0] == "step" and defaults.step is None:
            return self._engine_at(*path)
        return self._engine_at("versions", index, *path)

    def _engine_at(self, *field: str | int) -> str:
        """A field of the engine's file, or of the file of the engine whose server it runs."""
        file = catalog.find("engines", self.request.engine.partition("@")[0])
        lender = catalog.lender_of(catalog.read_yaml(file))
        if lender is None or _states(file, field):
            return self.at(file, *field)
        newest = len(catalog.read_yaml(lender)["versions"]) - 1
        return self.at(lender, *(("versions", newest, *field[2:]) if field[0] == "versions" else field))

    def _anchor_place(self, metric: str) -> tuple[str, str]:
        """Measured runs, and what carries them to this load."""
        anchor = self.deployment.calibration.anchor
        assert anchor is not None  # it gave the term
        rows = len(anchor.measured(metric)[1])  # type: ignore[arg-type]
        where = f"{self.request.anchor or anchor.origin}: {rows} rows of {metric}_ln_ratio (docs/anchors.md)"
        return where, f"{anchor.origin}; {anchor.process.source}"

    def _step_place(self, name: str) -> str:
        """A constant of a step: of the engine's file, of the shared one, or of a calibration that has its own."""
        engine, calibration = self.deployment.engine, self.deployment.calibration
        if name == "host" and self.request.host.step is not None:
            return "--host-step"
        if calibration.shares_step and engine.step is not None and getattr(engine.step, name, None) is not None:
            return self._engine_place(name, ["step", name])
        if calibration.step == shared_step().step:
            return self.at(catalog.config_root() / "step.yaml", "step", name)
        overlay = calibration.overlay
        own = None if overlay is None else Path(overlay.file)
        if own is not None and _states(own, ("step",)):
            return self.at(own, "step", name)
        file = calibration_file(self.deployment.hardware, self.request.engine)
        return f"no constants (step.{name} is 0)" if file is None else self.at(file, "step", name)

    def _constant(self, kernel: str, label: str, key: list[str | int]) -> str:
        """Where a constant of a kernel stands: in the calibration that was asked for, or on file, as it was chosen."""
        calibration = self.deployment.calibration
        if calibration.overlay is not None and calibration.of_file(kernel, label):
            found = self._stated(Path(calibration.overlay.file), *(calibration.place(kernel, label) or ("", "")), key)
            assert found is not None  # it gave the constant
            return found
        if kernel.endswith((".adapter", ".exchanged")):  # where nobody has measured those others stand for them
            adapter, kernel = kernel.endswith("adapter"), (calibration.place(kernel, label) or (kernel, label))[0]
            if adapter and kernel == "matmul" and key == ["terms", "alone"]:
                return "1 by construction, not fitted (docs/lora.md)"
        if kernel == "elementwise" and (own := filter_place(label, str(key[-1]))):
            return self.at(catalog.config_root() / FILTERS, *own)
        if (reached := _own_constant(self, kernel, label, key)) is not None:
            return reached
        file = calibration_file(self.deployment.hardware, self.request.engine)
        assert file is not None  # a kernel with constants has them from a file
        rest = class_file(self.deployment.hardware)
        fit = calibration.fit(kernel, label)
        if fit is not None and IN_SLOTS in fit.source and key in (["overhead"], ["terms", "hops"]):
            file = slots_file()
        place = self._stated(file, kernel, label, key) or self._stated(rest, kernel, label, key)
        if place is None:
            raise KeyError(f"{kernel}/{label} in {file}")  # as the fit was found
        return place

    def _stated(self, file: Path, kernel: str, label: str, key: list[str | int]) -> str | None:
        """Where a file has a constant of a kernel in a format; ``None`` where it has none."""
        data = catalog.read_yaml(file)
        engine = self.request.engine.partition("@")[0]
        libraries = data.get("libraries", {})
        books: list[tuple[str, ...]] = [
            ("libraries", name) for name in sorted(libraries, key=lambda name: name != engine)
        ]
        for name in alike(label):
            place = self._release_place(kernel, name, key)
            if place is not None:
                return place
            for book in [*books, ("constants",)]:
                found = libraries.get(book[1], {}) if len(book) > 1 else data.get("constants", {})
                if name in found.get(kernel, {}):
                    return self.at(file, *book, kernel, name, *key)
        return None

    def _release_place(self, kernel: str, label: str, key: list[str | int]) -> str | None:
        """Where a constant of a release or of a backend stands; ``None`` for one of the device's own file."""
        calibration = self.deployment.calibration
        fit = calibration.constants.get(kernel, {}).get(label)
        words, _, source = ("" if fit is None else fit.source).partition(": ")
        engine, _, release = words.partition(" ")
        file = releases_file(calibration.name)
        path = ("engines", engine, release, "kernels", kernel, label, source, *key)
        return self.at(file, *path) if file.is_file() and _states(file, path[:7]) else None

    def _format(self, role: str, fmt: Format) -> tuple[str, str]:
        asked = self.request.quant or self.request.roles
        place = f"{role} in {fmt.name}: {'formats asked for' if asked else 'the checkpoint (native)'}"
        source = FORMATS[fmt.name].source if fmt.name in FORMATS else fmt.source
        return f"{place}; layout in inferplan/work/formats.py", source

    def format(self, role: str, fmt: Format) -> Input:
        """The width of a format that an operator reads or writes."""
        place, source = self._format(role, fmt)
        return Input(symbol=f"{role} width", value=f"{fmt.width:.6g} B", origin=place, source=source)

    def model(self, symbol: str, value: Any, *field: str | int) -> Input:
        """A field of the model."""
        place, source = self.model_place(*field), self.deployment.model.source
        return Input(symbol=symbol, value=str(value), origin=place, source=source)

    def around(self, field: str) -> Iterator[Input]:
        """The fields of what a trace found ``ahead`` of the layers or ``behind`` them."""
        part = getattr(self.deployment.model.ends, field)
        yield from self._fields(part, ("ends", field)) if part is not None else ()

    def _fields(self, part: Any, path: tuple[str | int, ...]) -> Iterator[Input]:
        """The fields of a part; tensors and operators of a trace one by one."""
        for name, value in part.dump().items():
            if not _named(value):
                yield self.model(name, value, *path, name)
                continue
            for index, entry in enumerate(value):
                rest = ", ".join(f"{key} {own}" for key, own in entry.items() if key != "name")
                yield self.model(entry["name"], rest, *path, name, index)

    def layers(self, wanted: Callable[[LayerGroup], Any]) -> Iterator[Input]:
        """Every field of the parts that ``wanted`` picks from each different layer, with its line."""
        seen: list[Any] = []
        for path, group in _walk(self.deployment.model.layers, ("layers",)):
            part = wanted(group)
            if part is None or part in seen:
                continue
            seen.append(part)
            where = "mixer" if part is group.mixer else "ffn"
            yield from self._fields(part, (*path, where))
            if group.repeat > 1:
                yield self.model("repeat", group.repeat, *path, "repeat")


def _link(hardware: HardwareSpec, name: str) -> tuple[str | int, ...]:
    """The path in the YAML of a link that joins the devices: of its bridge, which is no part of ``links`` there."""
    if hardware.bridge is not None and hardware.bridge.name == name:
        return ("bridge",)
    return "links", [link.name for link in hardware.links if link != hardware.bridge].index(name)


def _own_constant(origins: Origins, kernel: str, label: str, key: list[str | int]) -> str | None:
    """Where an engine's file has what its kernels reach of a device's memory and arithmetic; ``None`` elsewhere."""
    hardware, fit = origins.deployment.hardware, origins.deployment.calibration.fit(kernel, label)
    entry, weights = own_kernels(hardware, origins.request.engine.partition("@")[0]), label.rpartition("x")[0]
    if entry is None or fit is None:
        return None
    if key == ["math"] and kernel.startswith("grouped_matmul") and weights in entry.flop:
        return _own_place(origins, "flop", weights)
    if key == ["math"] and kernel in entry.cores:
        return _own_place(origins, "cores", kernel, weights if weights in entry.cores[kernel] else "any")
    if key == ["memory"] and fit.memory == entry.reads:
        return _own_place(origins, "reads")
    if key == ["memory"] and fit.memory == entry.experts_of(hardware):
        joined = hardware.sockets in entry.sockets
        return _own_place(origins, *(("sockets", hardware.sockets) if joined else ("reads_experts",)))
    return None


def _own_place(origins: Origins, *field: str | int) -> str:
    """A field of the engine's own kernels on the device."""
    engine = origins.request.engine.partition("@")[0]
    entry = own_kernels(origins.deployment.hardware, engine)
    kernels = catalog.load("engines", engine, EngineSpec).kernels
    index = next(i for i, one in enumerate(kernels) if one == entry)
    return origins.at(catalog.find("engines", engine), "kernels", index, *field)


def _named(value: Any) -> bool:
    """Whether a field is a list of things with names."""
    return isinstance(value, list) and all(isinstance(entry, dict) and "name" in entry for entry in value)


def _states(path: Path, field: Sequence[str | int]) -> bool:
    """Whether a YAML has the field."""
    if path.suffix not in (".yaml", ".yml"):
        return False
    node = catalog.read_yaml(path)
    for part in field:
        try:
            node = node[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True


def _short(path: Path) -> str:
    """A shipped file by its place under ``configs``; any other path as given."""
    try:
        return f"configs/{path.relative_to(catalog.config_root())}"
    except ValueError:
        return str(path)


def _walk(groups: list[LayerGroup], path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], LayerGroup]]:
    for index, group in enumerate(groups):
        here = (*path, index)
        if group.pattern:
            yield from _walk(group.pattern, (*here, "pattern"))
        else:
            yield here, group
