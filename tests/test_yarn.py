"""Longer contexts by YaRN, against model cards and the documentation of engines."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from inferplan.catalog.files import load_model, names
from inferplan.errors import SpecError, UnknownNameError
from tests.cases import for_each
from tests.cli.conftest import Run, run  # noqa: F401

CARD = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
"""``rope_scaling`` of "Processing Long Texts" in the cards of Qwen3 (of Qwen2.5 with ``type`` for ``rope_type``)."""
EXTENDED = {
    *(f"qwen3-{size}" for size in ("4b", "8b", "14b", "32b", "30b-a3b", "235b-a22b")),
    *(f"qwen3-{size}-fp8" for size in ("32b", "30b-a3b", "235b-a22b")),
    *(f"qwen2.5-{size}" for size in ("7b-instruct", "72b-instruct", "coder-7b", "coder-14b", "coder-32b")),
}
"""Those whose card says 131,072 tokens by YaRN while their config says less: Qwen3 of 0.6B and 1.7B have 32,768."""


def test_the_cards_that_publish_it_are_on_file() -> None:
    found = {name: model.yarn for name in names("models") if (model := load_model(name)).yarn is not None}
    assert set(found) == EXTENDED
    for name, yarn in found.items():
        assert yarn is not None and (yarn.rope, yarn.context, yarn.theta) == (CARD, 131_072, 1e6), name


def test_the_longer_context_changes_the_context_alone() -> None:
    """Rotary tables are no tensors of the checkpoint: 32.76 B parameters either way."""
    plain, long = load_model("qwen3-32b"), load_model("Qwen/Qwen3-32B-YaRN")
    assert (plain.max_context, long.max_context, long.name) == (40_960, 131_072, "qwen3-32b-yarn")
    assert (long.parameters, long.layers, long.checkpoint_bytes) == (
        plain.parameters,
        plain.layers,
        plain.checkpoint_bytes,
    )
    assert load_model("qwen3-30b-a3b-instruct-2507").yarn is None  # derived: its card has 262,144 of its own


@for_each("name", ["qwen3-0.6b-yarn", "llama-3.1-8b-yarn", "qwen3-32b-yarn-yarn"])
def test_a_model_without_one_is_no_name(name: str) -> None:
    with pytest.raises(UnknownNameError):
        load_model(name)


@for_each(
    "command",
    [
        "estimate qwen3-32b --gpu h100-sxm --tp 4 --prompt 131000 --output 72",
        "fit qwen3-32b --gpu h100-sxm --context 131072",
        "emit vllm qwen3-32b --gpu h100-sxm --tp 4 --context 131072",
    ],
)
def test_a_refusal_names_the_model_that_has_the_context(run: Run, command: str) -> None:  # noqa: F811
    said = run(*command.split())
    assert said.code in (2, 3) and "qwen3-32b-yarn" in said.err and "its model card" in said.err
    assert "131,072 tokens by YaRN" in said.err
    longer = run(*command.replace("qwen3-32b", "qwen3-32b-yarn").split())
    assert longer.code == 0 and "131072" in longer.out.replace(",", "")
    beyond = run(*command.replace("13107", "23107").replace("131000", "231000").split())
    assert beyond.code in (2, 3) and "yarn" not in beyond.err


@for_each(("prompt", "named"), [("100000", True), ("130000", True), ("131000", False), ("200000", False)])
def test_a_plan_is_sent_only_where_its_requests_fit(run: Run, prompt: str, named: bool) -> None:  # noqa: F811
    """The card has 131,072 tokens, of which the answer takes 100."""
    load = ("--rate", "1", "--prompt", prompt, "--output", "100", "--ttft", "100s", "--quant", "native", "--most", "1")
    said = run("plan", "qwen3-8b", "--gpu", "h100-sxm", *load)
    assert said.code == 3 and ("qwen3-8b-yarn" in said.err) == named
    assert "a shorter --prompt or --output" in said.err and "lognormal" not in said.err


def test_a_screen_says_what_the_context_rests_on(run: Run) -> None:  # noqa: F811
    """Table 1 of arXiv 2505.09388 has 128K for Qwen3-8B; every source is said within one sentence."""
    card = "as its model card (128K in tables 1 and 2 of the technical report, arXiv 2505.09388) has it; "
    assert f"131,072 tokens (4 x 32,768), {card}" in run("fit", "qwen3-8b-yarn", "--gpu", "l40s").out
    sources = [yarn.source for name in EXTENDED if (yarn := load_model(name).yarn) is not None]
    assert all(source.startswith("its model card (") and source.endswith(")") for source in sources)
    assert "131,072 by YaRN" in run("show", "qwen3-8b").out


def test_engines_are_told(run: Run) -> None:  # noqa: F811
    """docs.vllm.ai, "Context Extension"; the cards of Qwen3 for SGLang and llama.cpp."""
    where = ("qwen3-32b-yarn", "--gpu", "h100-sxm", "--tp", "4")
    words = shlex.split(run("emit", "vllm", *where).out.splitlines()[0])
    assert words[2] == "Qwen/Qwen3-32B" and words[words.index("--max-model-len") + 1] == "131072"
    told = json.loads(words[words.index("--hf-overrides") + 1])
    assert told == {"rope_parameters": CARD | {"rope_theta": 1_000_000}}
    words = shlex.split(run("emit", "sglang", *where).out.splitlines()[0])
    assert json.loads(words[words.index("--json-model-override-args") + 1]) == {"rope_scaling": CARD}
    own = ("qwen3-4b-yarn", "--gpu", "rtx-4090", "--checkpoint", "a.gguf")
    assert "--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 32768" in run("emit", "llama.cpp", *own).out
    refused = run("emit", "trtllm", *where)
    assert (refused.code, "yarn" in refused.err) == (2, True)
    assert "rope" not in run("emit", "vllm", "qwen3-32b", "--gpu", "h100-sxm", "--tp", "4").out


def test_a_file_of_ones_own_may_say_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    yarn = "yarn: {context: %d, factor: 2.0, original: 32768, theta: 1.0e+6, source: my test}"
    file.write_text(f"source: mine\nderive: {{from: qwen3-0.6b}}\n{yarn % 65536}\n", encoding="utf-8")
    assert load_model(f"{file}-yarn").max_context == 65_536
    file.write_text(f"source: mine\nderive: {{from: qwen3-0.6b}}\n{yarn % 65537}\n", encoding="utf-8")
    with pytest.raises(SpecError, match="65,537"):
        load_model(str(file))
