"""What is typed wrong gets one clear error with the exit code of its kind, never a traceback, never a number."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from inferplan import cli
from inferplan.catalog.files import config_root
from tests.cases import for_each
from tests.cli.conftest import Run

LLAMA = ("estimate", "llama-3.1-8b", "--gpu", "h100-sxm")
LOAD = ("--rate", "1", "--prompt", "100", "--output", "10", "--ttft", "1s")
PLAN = ("plan", "llama-3.1-8b", "--gpu", "h100-sxm", *LOAD)
EXPERTS = ("plan", "gpt-oss-20b", "--gpu", "h100-sxm", "--engine", "trtllm", *LOAD)
POOLS = (
    *("simulate", "gpt-oss-20b", "--gpu", "h100-sxm", "--engine", "sglang", "--dp", "2", "--rate", "1"),
    *("--prefill-replicas", "1", "--decode-replicas", "1"),
)
MODEL = "name: x\nsource: a test\nd_model: 8\nvocab: 8\n"
LAYERS = "layers: [{ffn: {kind: mlp, d_ff: 8}}]\n"


def run(words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["inferplan", *words])
    try:
        cli.main()
    except SystemExit as left:
        return int(left.code or 0), capsys.readouterr().err
    return 0, capsys.readouterr().err


@for_each(
    ("words", "code", "said"),
    [
        ((*LLAMA, "--batch", "1.5"), 2, "not a count"),
        ((*LLAMA, "--batch", "9" * 400), 2, "more than anything"),
        ((*LLAMA, "--batch", "_"), 2, "not a count"),
        ((*LLAMA, "--tp", "1000000", "--ep", "3"), 2, "--ep one of 1, 2, 4"),
        ((*LLAMA, "--gpu-memory-utilization", "nan"), 2, "not a number"),
        ((*LLAMA, "--prune", "layers=nan"), 2, "--prune"),
        ((*LLAMA, "--prune", "layers=inf"), 2, "--prune"),
        ((*LLAMA, "--memory", "0GB", "--engine", "sglang"), 2, "no memory at all"),
        ((*LLAMA, "--activations", "fp8"), 2, "would do nothing"),
        ((*LLAMA, "--engine", "none", "--gpu-memory-utilization", "0.5"), 2, "no share"),
        ((*LLAMA, "--experts", "fp8"), 2, "no routed experts"),
        ((*LLAMA, "--engine", "vllm@"), 2, "vllm@ names no version"),
        ((*LLAMA, "--backend", "linear=a", "--backend", "linear=b"), 2, "linear= is given more than once"),
        (("estimate", "llama-3.2-1b", "--gpu", "h100-sxm", "--head", "fp8"), 2, "no head of its own"),
        ((*LLAMA, "--expert-skew", "1"), 2, "llama-3.1-8b has no routed experts for --expert-skew"),
        ((*LLAMA, "--tp", "2", "--redundant-experts", "8"), 2, "no routed experts for --redundant-experts"),
        ((*LLAMA, "--two-batch-overlap"), 2, "no routed experts for --two-batch-overlap"),
        ((*LLAMA, "--draft", "mtp"), 2, "has no prediction module"),
        (("emit", "vllm", *LLAMA[1:], "--draft-checkpoint", "a/b"), 2, "names a draft model, and there are no drafts"),
        (("simulate", *LLAMA[1:], "--rate", "1", "--balance-steps", "2"), 2, "attention_dp_config of TensorRT-LLM"),
        ((*PLAN, "--most", "1", "--tp", "4"), 2, "--tp 4 needs more devices than --most 1"),
        ((*PLAN, "--most", "4", "--tp", "4", "--pp", "2"), 2, "--tp 4 --pp 2 needs more devices than --most 4"),
        ((*PLAN, "--two-batch-overlap"), 2, "no routed experts for --two-batch-overlap"),
        ((*PLAN, "--redundant-experts", "8"), 2, "no routed experts for --redundant-experts"),
        ((*PLAN, "--kv", "fp3"), 2, "fp3"),
        ((*PLAN, "--expert-skew", "1"), 2, "no routed experts for --expert-skew"),
        ((*PLAN, "--prefill-redundant-experts", "8"), 2, "no routed experts for --prefill-redundant-experts"),
        ((*EXPERTS, "--prefill-redundant-experts", "32", "--aggregated"), 2, "--aggregated has none"),
        ((*EXPERTS, "--prefill-two-batch-overlap"), 2, "trtllm 1.0 has no two half batches"),
        ((*POOLS, "--prefill-two-batch-overlap", "--prefill-dp", "1"), 2, "--prefill-dp 1 exchanges nothing"),
        (("show", "a" * 5000), 2, "5000 characters"),
        (("show", "./no-such-folder"), 4, "no such file"),
        (("show", "../no/such/file"), 4, "no such file"),
        (("show", "a/b-"), 2, "no model named"),
    ],
)
def test_options(
    words: tuple[str, ...],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, message = run(words, capsys, monkeypatch)
    assert (found, "a bug" in message) == (code, False), message
    assert said in message


@for_each(
    ("text", "said"),
    [
        ("name: 2020-13-45\n", "month"),
        (f"d_model: {'9' * 5000}\n", "not YAML"),
        (f"{MODEL}{LAYERS}d_model: 16\n", "d_model is given twice"),
        (f"{MODEL}layers: []\n", "layers"),
        (f"{MODEL}layers: [{{repeat: 100000000, ffn: {{kind: mlp, d_ff: 8}}}}]\n", "repeat"),
        ("name: x\nderive: {from: llama-3.1-8b, prune: {layers: abc}}\n", "layers must be a number"),
        ("name: x\nderive: {from: MODEL.yaml, prune: {layers: 2}}\n", "itself"),
        ("name: x\nderive: {from: 5}\n", "the name of a model"),
        ("name: x\nderive: {from: no-such-model}\n", "MODEL.yaml:2: derive.from: no model named 'no-such-model'"),
        (f"name: x\nderive: {{from: llama-3.1-8b, prune: {{layers: {'9' * 400}}}}}\n", "layers must be a number"),
    ],
)
def test_model_files(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("MODEL.yaml").write_text(text)
    code, message = run(("show", "MODEL.yaml"), capsys, monkeypatch)
    assert (code, "a bug" in message) == (2, False), message
    assert said in message


def test_models_that_derive_from_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, base in (("a", "b"), ("b", "c"), ("c", "b")):
        Path(f"{name}.yaml").write_text(f"name: {name}\nderive: {{from: ./{base}.yaml}}\n")
    code, message = run(("show", "a.yaml"), capsys, monkeypatch)
    assert code == 2
    assert "b.yaml:2: derive.from: a model cannot derive from itself" in message


@for_each("rate", ["bandwidth: 3.35 TB/s", "bf16: 989.4 TFLOP/s"])
def test_a_rate_of_zero_is_refused(
    rate: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (config_root() / "hardware" / "h100-sxm.yaml").read_text()
    name, _, unit = rate.split()
    assert rate in text
    path = tmp_path / "gpu.yaml"
    path.write_text(text.replace(rate, f"{name} 0 {unit}"))
    code, message = run(("estimate", "llama-3.1-8b", "--gpu", str(path)), capsys, monkeypatch)
    assert (code, f"'0 {unit}' is not a positive rate" in message) == (2, True), message


@for_each(
    ("was", "becomes", "said"),
    [
        ("relative: b200-hgx", "relative: b200", "relative 'b200', which is not a device on file"),
        ("relative: b200-hgx", "relative: nothing", "relative 'nothing', which is not a device on file"),
        ("relative: b200-hgx", "", "relative is missing"),
        ("same_chip: true", "same_chip: maybe", "same_chip: Input should be a valid boolean"),
    ],
)
def test_a_relative_is_a_device_on_file(
    was: str,
    becomes: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Constants of the class stood in without a word where the relative's name was mistyped."""
    text = (config_root() / "hardware" / "gb200.yaml").read_text()
    assert was in text
    (tmp_path / "own.yaml").write_text(text.replace(was, becomes))
    code, message = run(("estimate", "llama-3.1-8b", "--gpu", str(tmp_path / "own.yaml")), capsys, monkeypatch)
    assert (code, said in message) == (2, True), message


@for_each(
    ("change", "said"),
    [
        ({"versions": []}, "versions: List should have at least 1 item"),
        ({"versions": [{"version": "1", "source": "a test", "tiers": []}]}, "tiers: List should have at least 1 item"),
        ({"versions": [{"version": "1", "until": "soon", "source": "a test"}]}, "'soon' is no version after 1"),
        ({"versions": [{"version": "2", "until": "1.9", "source": "a test"}]}, "'1.9' is no version after 2"),
    ],
)
def test_an_engine_has_versions_that_last(
    change: dict[str, list[dict[str, Any]]],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tier = {"memory_at_least": "0 GiB", "token_budget": 8, "max_sequences": 8}
    versions = [{"tiers": [tier]} | one for one in change["versions"]]
    (tmp_path / "own.yaml").write_text(json.dumps({"name": "own", "source": "a test", "versions": versions}))
    code, message = run((*LLAMA, "--engine", str(tmp_path / "own.yaml")), capsys, monkeypatch)
    assert (code, said in message) == (2, True), message


@for_each(
    ("words", "code", "said"),
    [
        (("llama-3.1-70b", "--gpu", "m4-max"), 3, "weights alone are too large; no link on file joins 2 x m4-max"),
        (
            ("llama-3.1-70b", "--gpu", "m4-max"),
            3,
            "q8_0 or q4_k_m; what one holds: inferplan fit llama-3.1-70b --have 1x-m4-max;",
        ),
        (("llama-3.1-70b", "--gpu", "m4-max", "--quant", "fp8"), 2, "llama.cpp 2025 reads GGUF files"),
        (
            ("llama-3.1-405b", "--gpu", "h100-sxm", "--most", "4"),
            3,
            "hint: a larger --most; --quant w4a16; ",
        ),
        (("deepseek-r1", "--gpu", "vr200"), 2, "hint: give it: --memory 64GB"),
        (("llama-3.1-8b", "--gpu", "h100-sxm", "--memory", "0GB"), 2, "no memory at all"),
    ],
)
def test_fit_says_what_would_help(
    words: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, message = run(("fit", *words), capsys, monkeypatch)
    assert (found, said in message) == (code, True), message


@for_each(
    ("words", "hint"),
    [
        (("--batch", "100000"), "--batch 332"),
        (("--memory", "20GB"), "--tp 2, or --weights fp8, or --max-num-seqs 128 (a smaller sampler)"),
        (("--memory", "18GB"), "--tp 2, or --weights fp8"),
        (("--memory", "4GB"), "--tp 32"),
        (("--memory", "1GB"), "a GPU with more memory"),
    ],
)
def test_a_hint_is_what_would_fit(
    words: tuple[str, ...], hint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, message = run((*LLAMA, *words), capsys, monkeypatch)
    assert (code, message.partition("hint: ")[2].strip()) == (3, hint), message


def test_fit_tries_the_division_asked_for(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["inferplan", "fit", "llama-3.1-8b", "--tp", "4", "--format", "json"])
    cli.main()
    options = json.loads(capsys.readouterr().out)["options"]
    assert {option["devices"] for option in options if option["fits"]} == {4}


@for_each(("engine", "said"), [("vllm", True), ("sglang", False)])
def test_fit_speaks_for_vllm_only_under_vllm(
    engine: str, said: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["inferplan", "fit", "llama-3.1-8b", "--gpu", "h100-sxm", "--engine", engine])
    cli.main()
    assert ("vLLM would log" in capsys.readouterr().out) == said


def test_a_folder_that_is_named_like_a_model_is_shown_how_to_give(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checkpoint").mkdir()
    monkeypatch.chdir(tmp_path)
    said = run("show", "checkpoint")
    assert (said.code, "./checkpoint for the folder of that name" in said.err) == (2, True)


def test_a_gguf_file_that_is_not_there_is_not_called_a_bad_one(run: Run) -> None:
    said = run("show", "nowhere.gguf")
    assert (said.code, "cannot read nowhere.gguf" in said.err) == (4, True)


def test_a_command_that_is_not_whole_shows_one_that_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example of its help, which exits 0 as it stands."""
    for words in (("fit",), ("estimate",), ("recipe", "llama-3.1-8b", "--gpu", "h100-sxm")):
        code, said = run(words, capsys, monkeypatch)
        hint = said.rpartition("hint: ")[2].strip()
        example, _, helped = hint.partition("; ")
        assert (code, helped) == (2, f"inferplan {words[0]} --help"), said
        assert example.split()[:2] == ["inferplan", words[0]]
        assert run(tuple(example.split()[1:]), capsys, monkeypatch)[0] == 0, example


def test_another_term_is_named_where_the_term_is_what_lacks(run: Run) -> None:
    """rental-3-year and AWS sell an H100 for three years, and nobody an H200 for one: configs/prices."""
    load = ("--rate", "1", "--prompt", "1000", "--output", "100", "--ttft", "5ms", "--quant", "native", "--most", "1")
    slow = run("plan", "llama-3.1-8b", "--gpu", "h100-sxm", "--term", "reserved-3y", *load)
    assert slow.code == 3 and "hint: relax to --ttft " in slow.err and "reserved" not in slow.err
    unsold = run("plan", "llama-3.1-8b", "--gpu", "h200-sxm", "--term", "reserved-1y", *load)
    assert unsold.code == 3 and "hint: --term reserved, or " in unsold.err


def test_formats_are_named_that_hold_the_load(run: Run) -> None:
    """A token has 131,072 bytes of cache (32 layers x 2 x 8 heads x 128 x 2 bytes): 200 requests of 1,100 have 28.8 GB,
    which leave 5.5 GB of a V100 for 8.03 GB of 8-bit weights, or for 3.49 GB of 4 bits and 2.10 GB of tables."""
    asked = ("estimate", "llama-3.1-8b", "--gpu", "v100-sxm2-32gb", "--quant", "fp8", "--output", "100", "--prompt")
    assert "hint: --activations fp16, or --quant w4a16" in run(*asked, "1000", "--batch", "1").err
    none = run(*asked, "1000", "--batch", "200").err
    assert "no format that runs there fits; GPUs that hold it: " in none
    assert "inferplan fit llama-3.1-8b --context 1100 --in-flight 200" in none
    two = run(*asked[:1], "llama-3.1-70b", *asked[2:], "1000", "--batch", "900", "--tp", "2").err
    assert "GPUs that hold it: inferplan fit llama-3.1-70b --tp 2 --context 1100 --in-flight 900" in two


def test_a_division_that_no_gpu_holds_is_not_left_out_in_silence(run: Run) -> None:
    """70.6 B weights in 16 bits are 141 GB, and 30 requests of 131,072 tokens have 327,680 bytes of cache a token, 1.29
    TB in all: more than two of any GPU on file have."""
    load = ("--context", "131072", "--in-flight", "30")
    said = run("fit", "llama-3.1-70b", "--gpu", "l4", "--tp", "2", *load)
    found = re.search(r"GPUs that hold it with another --tp than 2: inferplan (fit llama-3.1-70b .*)", said.err)
    assert said.code == 3 and found and "--tp" not in found[1]
    assert run(*found[1].split()).code == 0
    kept = run("fit", "llama-3.1-405b", "--gpu", "l4", "--tp", "2", "--in-flight", "4")
    assert "GPUs that hold it: inferplan fit llama-3.1-405b --tp 2 --in-flight 4" in kept.err


def test_fit_names_the_term_as_it_was_typed(run: Run) -> None:
    assert "the cheapest reserved-3y bill" in run("fit", "llama-3.1-8b", "--term", "reserved-3y", "--quant", "fp8").out
