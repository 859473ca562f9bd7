"""The files that the values and the bases of the scan name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests.builders import LLAMA_3_1_8B
from tools.same_answers.questions import FILES as ASKED

_ADAPTER = {
    "peft_type": "LORA",
    "r": 16,
    "lora_alpha": 16,
    "target_modules": ["q_proj", "v_proj"],
    "base_model_name_or_path": "meta-llama/Llama-3.1-8B",
}
_LOG = (
    "INFO Model loading took 14.99 GiB memory and 3.1 seconds\n"
    "INFO init engine (profile, create kv cache, warmup model) took 21.5 seconds\n"
)
FILES: Mapping[str, str] = {
    "bench.csv": ASKED["bench.csv"],
    "trace.csv": ASKED["trace.csv"],
    "config.json": json.dumps(LLAMA_3_1_8B),
    "adapter/adapter_config.json": json.dumps(_ADAPTER),
    "start.log": _LOG,
    "day.csv": "time,rate\n00:00,1\n08:00,3\n16:00,2\n",
    "grid.csv": "time,grams\n00:00,100\n06:00,500\n18:00,300\n",
    "own.yaml": "name: own\nconstants: {norm: {any: {memory: 0.5}}}\n",
}


def place(folder: Path) -> None:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
