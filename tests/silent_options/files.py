"""The files that the values and the bases of the scan name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests.builders import LLAMA_3_1_8B
from tests.cli.bad_input_files import placed
from tests.silent_options.scan import ask
from tests.test_lora import folder as adapter
from tools.same_answers.questions import FILES as ASKED

_LOG = (
    "INFO Model loading took 14.99 GiB memory and 3.1 seconds\n"
    "INFO init engine (profile, create kv cache, warmup model) took 21.5 seconds\n"
)
_ROWS = "".join(f"llama-3.1-8b,{isl},256,8,60,7.4\n" for isl in range(1024, 2424, 100))
FILES: Mapping[str, str] = {
    "bench.csv": ASKED["bench.csv"],
    "bare.csv": f"model,isl,osl,concurrency,ttft_ms,tpot_ms\n{_ROWS}",
    "one.csv": "model,isl,osl,concurrency,ttft_ms,tpot_ms\nllama-3.1-8b,1024,16,1,45,7.4\n",
    "trace.csv": ASKED["trace.csv"],
    "config.json": json.dumps(LLAMA_3_1_8B),
    "start.log": _LOG,
    "day.csv": "time,rate\n00:00,1\n08:00,3\n16:00,2\n",
    "ran.csv": "timestamp,replicas\n0,1\n5,3\n",
    "grid.csv": "time,grams\n00:00,100\n06:00,500\n18:00,300\n",
    "base.json": json.dumps(
        {"schema_version": 2, "plan": {"cost": 0.5, "currency": "USD", "hours": None, "deployment": {}}}
    ),
    "own.yaml": "name: own\nconstants: {norm: {any: {memory: 0.5}}}\n",
}


def place(folder: Path) -> None:
    """Write all of them into a folder, and an anchor of the measured rows; pictures of the same are the same from here
    on."""
    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = "scan"
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name in ("prices.json",):
        placed(name, folder)
    (folder / "adapter").mkdir()
    adapter(folder / "adapter", {"q": 16, "v": 16})
    fit = (
        f"anchor fit {folder / 'bare.csv'} --gpu h100-sxm --engine vllm --quant bf16 --tp 1 -o {folder / 'anchor.yaml'}"
    )
    made = ask(fit.split(), keep=True)
    assert made.code == 0, made.said
