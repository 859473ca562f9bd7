"""A ModelSpec as the YAML that a person would write: scalars first, then its layers, one part a line."""

from __future__ import annotations

from typing import Any

import yaml

from inferplan.models.spec import ModelSpec

_FLOW_WIDTH = 118
_BLOCKS = ("native", "generation", "published")


def to_yaml(model: ModelSpec) -> str:
    """The text of a catalogue file."""
    data = model.to_dict()
    lines = []
    for key, value in data.items():
        if key in ("layers", "encoder"):
            continue
        if key in _BLOCKS and len(f"{key}: {_flow(value)}") > _FLOW_WIDTH:
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
            else:
                entries.append(f"{indent}  {key}: {_flow(value)}")
        entries[0] = f"{indent}- {entries[0].lstrip()}"
        lines += entries
    return lines


def _flow(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), sort_keys=False, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...").strip()
