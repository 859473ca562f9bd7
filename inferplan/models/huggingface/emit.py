"""A ModelSpec as the YAML that a person would write: scalars first, then its layers, one part a line."""

from __future__ import annotations

from typing import Any

import yaml

from inferplan.models.spec import ModelSpec

_FLOW_WIDTH = 118
_BLOCKS = ("made_from", "native", "generation", "published", "instruct_checkpoint")


def to_yaml(model: ModelSpec) -> str:
    """The text of a catalogue file."""
    data = model.to_dict()
    lines = []
    for key, value in data.items():
        if key in ("layers", "encoder"):
            continue
        if key == "ends" and any(map(_traced, value.values())):
            lines += ["ends:", *(line for name, part in value.items() for line in _part(name, part, "  "))]
        elif key in _BLOCKS and len(f"{key}: {_flow(value)}") > _FLOW_WIDTH:
            lines += [f"{key}:", *(f"  {k}: {_flow(v)}" for k, v in value.items())]
        elif key == "notes":
            lines += ["notes:", *(f"  - {_flow(note)}" for note in value)]
        else:
            lines.append(f"{key}: {_flow(value)}")
    if "encoder" in data:
        fields = {key: value for key, value in data["encoder"].items() if key != "layers"}
        lines += ["encoder:", *(f"  {key}: {_flow(value)}" for key, value in fields.items())]
        lines += ["  layers:", *_groups(data["encoder"]["layers"], "    ")]
    lines += ["layers:", *_groups(data["layers"], "  ")]
    return "\n".join(lines) + "\n"


def _groups(groups: list[dict[str, Any]], indent: str) -> list[str]:
    lines = []
    for group in groups:
        entries = []
        for key, value in group.items():
            if key == "pattern":
                entries += [f"{indent}  pattern:", *_groups(value, indent + "    ")]
            elif _traced(value):
                entries += _part(key, value, indent + "  ")
            else:
                entries.append(f"{indent}  {key}: {_flow(value)}")
        entries[0] = f"{indent}- {entries[0].lstrip()}"
        lines += entries
    return lines


def _traced(value: Any) -> bool:
    return isinstance(value, dict) and value.get("kind") == "traced"


def _part(key: str, part: Any, indent: str) -> list[str]:
    """A traced layer: each tensor and each operator on a line of its own."""
    if not _traced(part):
        return [f"{indent}{key}: {_flow(part)}"]
    lines = [f"{indent}{key}:"]
    for name, value in part.items():
        if isinstance(value, list):
            lines += [f"{indent}  {name}:", *(f"{indent}    - {_flow(one)}" for one in value)]
        else:
            lines.append(f"{indent}  {name}: {_flow(value)}")
    return lines


def _flow(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), sort_keys=False, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...").strip()
