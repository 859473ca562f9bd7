"""Bad input: one clear message on stderr, nothing on stdout, the exit code of the design, never a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from inferplan.cli import cli
from inferplan.errors import UsageError
from tests.cases import for_each
from tests.cli.conftest import Ran, Run

ROOT = Path(__file__).parents[2] / "configs"
HUGE = "9" * 400
E = ["estimate", "llama-3.1-8b", "--gpu", "h100-sxm"]


def refused(ran: Ran, code: int, *words: str) -> None:
    assert ran.code == code, ran.err
    assert ran.out == ""
    assert ran.err.startswith(("error: ", '{"schema_version": 2, "error": {"what": '))
    for word in words:
        assert word in ran.err


USAGE = [
    (["estimate", "lama-3.1-8b", "--gpu", "h100"], ["no model named 'lama-3.1-8b'", "did you mean llama-3.1-8b"]),
    (["estimate", "llama-3.1-8b", "--gpu", "h1000"], ["no GPU named 'h1000'", "did you mean h100"]),
    (["estimate", "", "--gpu", "h100"], ["MODEL is empty"]),
    (["estimate", "llama-3.1-8b", "--gpu", ""], ["--gpu is empty"]),
    (["estimate", "llama-3.1-8b"], ["--gpu"]),
    (["estimate"], ["MODEL"]),
    (["estimat"], ["No command named 'estimat'. Did you mean estimate"]),
    (["--bogus"], ["--bogus"]),
    (["show", "nothing-like-it"], ["no model named"]),
    ([*E, "--draft", "ngram"], ["no model named 'ngram'", "free for n-grams"]),
    (["estimate", "deepseek-v3", "--gpu", "h200-sxm", "--draft", "eagle"], ["--draft mtp of deepseek-v3 itself"]),
    ([*E, "--bogus", "1"], ["--bogus"]),
    ([*E, "--tp", "3"], ["--tp 3 does not divide 32 query heads", "1, 2, 4, 8"]),
    ([*E, "--tp", "0"], ["--tp", "1 or more"]),
    ([*E, "--tp", "-2"], ["--tp", "not a count"]),
    ([*E, "--tp", "two"], ["--tp", "not a count"]),
    ([*E, "--pp", "64"], ["32 layers", "--pp at most 32"]),
    ([*E, "--ep", "2"], ["--ep 2", "--tp 2"]),
    ([*E, "--tp", "2", "--ep", "2"], ["no routed experts"]),
    ([*E, "--batch", "nan"], ["not a count"]),
    ([*E, "--batch", "inf"], ["not a count"]),
    ([*E, "--batch", "1e400"], ["not a count"]),
    ([*E, "--batch", "0"], ["1 or more"]),
    ([*E, "--batch", "1.5"], []),
    ([*E, "--batch", HUGE], ["more than anything here can count"]),
    ([*E, "--prompt", HUGE], ["more than anything here can count"]),
    ([*E, "--prompt", "131072"], ["131,328 tokens", "context is 131,072"]),
    ([*E, "--quant", "fp9"], ["cannot read the precision 'fp9'"]),
    ([*E, "--kv", "fp9"], ["no number format named 'fp9'", "fp8"]),
    ([*E, "--quant", "nvfp4"], ["no fp4 arithmetic", "h100-sxm", "--activations"]),
    (["estimate", "llama-3.1-8b", "--gpu", "a100", "--quant", "fp8"], ["no fp8 arithmetic", "a100-80gb-sxm"]),
    (["estimate", "llama-3.1-8b", "--gpu", "v100-sxm2-32gb", "--quant", "bf16"], ["no bf16 arithmetic"]),
    (["estimate", "llama-3.1-8b", "--gpu", "b100"], ["not on file", "--memory"]),
    ([*E, "--memory", "64"], ["no unit"]),
    ([*E, "--memory", "-5GB"], ["zero or more"]),
    ([*E, "--memory", "0GB"], ["no memory at all"]),
    ([*E, "--memory", "nanGB"], ["not a quantity"]),
    ([*E, "--memory", "1e400GB"], ["finite"]),
    ([*E, "--engine", "nothing"], ["no engine named"]),
    ([*E, "--engine", "vllm@0.0.1"], ["older than every version"]),
    ([*E, "--format", "xml"], ["xml"]),
    ([*E, "-o", "report.xyz"], ["report.xyz", ".json"]),
    (["estimate", "gpt2", "--gpu", "h100"], ["1,280 tokens", "context is 1,024"]),
    (["fit", "llama-3.1-8b", "--context", "200k"], ["200,000 tokens", "131,072"]),
    (["fit", "llama-3.1-8b", "--gpu", "h100", "--context", "200k"], ["200,000 tokens"]),
    (["estimate", "deepseek-r1", "--gpu", "h200-sxm", "--dp", "8", "--expert-skew", "nan"], ["nan is not a number"]),
    (
        ["simulate", "llama-3.1-8b", "--gpu", "h100-sxm", "--rate", "5", "--kv-link", "NVLink"],
        ["described, and there is none", "--prefill-replicas 1"],
    ),
    (
        [
            "simulate",
            "llama-3.1-8b",
            "--gpu",
            "h100",
            "--rate",
            "5",
            "--prefill-replicas",
            "1",
            "--decode-replicas",
            "1",
            "--replicas",
            "3",
        ],
        ["a number of replicas (--replicas)"],
    ),
    (
        ["estimate", "mixtral-8x7b-v0.1", "--gpu", "h100", "--dp", "16", "--ep", "16"],
        ["--ep 16 is more than the 8 slots", "--redundant-experts 8"],
    ),
    (["estimate", "llama-3.1-8b", "--gpu", "h100", "--gpu", "b200"], ["--gpu is given 2 times, and takes one value"]),
]


@for_each(("arguments", "words"), USAGE, ids=lambda value: " ".join(value)[:60] if value else "-")
def test_usage_is_exit_2(run: Run, arguments: list[str], words: list[str]) -> None:
    refused(run(*arguments), 2, *words)


INFEASIBLE = [
    (["estimate", "llama-3.1-70b", "--gpu", "h100"], ["does not fit", "because: weights 141.1 GB", "hint: --tp 2"]),
    ([*E, "--batch", "100000"], ["does not fit", "--batch "]),
    ([*E, "--memory", "1GB"], ["does not fit"]),
    (["fit", "llama-3.1-405b", "--gpu", "l4", "--most", "2"], ["does not fit"]),
    (["fit", "llama-3.1-405b", "--most", "1", "--context", "128k", "--users", "100000"], ["fits on no accelerator"]),
]


@for_each(("arguments", "words"), INFEASIBLE, ids=lambda value: " ".join(value)[:60])
def test_infeasible_is_exit_3(run: Run, arguments: list[str], words: list[str]) -> None:
    refused(run(*arguments), 3, *words)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "binary.yaml").write_bytes(bytes(range(256)) * 4)
    (tmp_path / "binary.gguf").write_bytes(bytes(range(256)) * 4)
    (tmp_path / "folder.yaml").mkdir()
    return tmp_path


@for_each("name", ["absent.yaml", "absent.json", "binary.yaml", "folder.yaml"])
@for_each("where", ["model", "gpu", "calibration", "show"])
def test_unreadable_file_is_exit_4(run: Run, folder: Path, name: str, where: str) -> None:
    path = str(folder / name)
    arguments = {
        "model": ["estimate", path, "--gpu", "h100"],
        "gpu": ["estimate", "llama-3.1-8b", "--gpu", path],
        "calibration": [*E, "--calibration", path],
        "show": ["show", path],
    }[where]
    refused(run(*arguments), 4, "cannot read", name)


def test_unwritable_output_is_exit_4(run: Run, tmp_path: Path) -> None:
    for path in (str(tmp_path / "absent" / "report.json"), "/dev/full"):
        refused(run(*E, "--format", "json", "-o", path), 4, "cannot write")


def test_output_onto_a_folder(run: Run, tmp_path: Path) -> None:
    refused(run(*E, "--format", "json", "-o", str(tmp_path)), 4, "cannot write", "directory")


TEXTS = {
    "empty": "",
    "list": "- 1\n",
    "scalar": "42\n",
    "unclosed": "name: x\nlayers: [1\n",
    "tabs": "name:\tx\n\tvocab: 3\n",
    "unknown alias": "name: *x\n",
    "python": "!!python/object/apply:os.system ['true']\n",
    "nul": "a\0b: 1\n",
    "deep": "[" * 3000,
    "duplicate top level": "--- 1\n--- 2\n",
}


@for_each("text", TEXTS.values(), ids=TEXTS.keys())
@for_each("where", ["model", "gpu", "calibration"])
def test_text_that_is_no_spec(run: Run, tmp_path: Path, text: str, where: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text, encoding="utf-8")
    arguments = {
        "model": ["estimate", str(path), "--gpu", "h100"],
        "gpu": ["estimate", "llama-3.1-8b", "--gpu", str(path)],
        "calibration": [*E, "--calibration", str(path)],
    }[where]
    refused(run(*arguments), 2, "spec.yaml")


def changed(tmp_path: Path, kind: str, name: str, *changes: tuple[str, str]) -> str:
    """A copy of a catalogue file with lines replaced: each change is the start of a line and its new text."""
    lines = (ROOT / kind / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    for start, new in changes:
        where = next(index for index, line in enumerate(lines) if line.strip().startswith(start))
        indent = lines[where][: len(lines[where]) - len(lines[where].lstrip())]
        lines[where] = indent + new
    path = tmp_path / f"{name}.yaml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def line_of(path: str, start: str) -> int:
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return next(index for index, line in enumerate(lines, 1) if line.strip().startswith(start))


def test_every_error_of_a_device_file_at_once(run: Run, tmp_path: Path) -> None:
    """A bare number, an unknown field, a negative peak: file, line, field and reason of each."""
    path = changed(
        tmp_path,
        "hardware",
        "h100-sxm",
        ("bandwidth:", "bandwidth: 3.35"),
        ("vendor:", "vendr: NVIDIA"),
        ("fp16:", "fp16: -1 TFLOP/s"),
        ("fp8:", "fp8: 1978.9 GB/s"),
        ("confidence:", "confidence: certain"),
    )
    ran = run("estimate", "llama-3.1-8b", "--gpu", path)
    refused(ran, 2, "is not a valid HardwareSpec", "problems)")
    for start, field, reason in (
        ("bandwidth:", "memory.bandwidth", "3.35 has no unit"),
        ("vendr:", "vendr", "unknown field; did you mean vendor?"),
        ("fp16:", "peak.fp16", "must be zero or more"),
        ("fp8:", "peak.fp8", "has the unit 'GB/s', which is not one of FLOP/s"),
        ("confidence:", "confidence", "'high', 'medium' or 'low'"),
    ):
        lines = [text for text in ran.err.splitlines() if f"{path}:{line_of(path, start)}: {field}: " in text]
        assert len(lines) == 1, (field, ran.err)
        assert reason in lines[0]
    assert ": vendor: Field required" in ran.err


def test_every_error_of_a_model_file_at_once(run: Run, tmp_path: Path) -> None:
    path = changed(tmp_path, "models", "llama-3.1-8b", ("d_model:", "d_model: .nan"), ("vocab:", "vocab: -3"))
    ran = run("show", path)
    refused(ran, 2, f"{path}:{line_of(path, 'd_model')}: d_model", f"{path}:{line_of(path, 'vocab')}: vocab")


@for_each(
    ("start", "new", "word"),
    [
        ("d_model:", f"d_model: {HUGE}", "more than anything here can count"),
        ("- repeat:", "- repeat: 100000000000", "less than or equal to 10000"),
        ("d_model:", "d_model: four", "integer"),
        ("d_model:", "d_model: 0", "greater than or equal to 1"),
        ("layers:", "laiers:", "layers"),
    ],
)
def test_numbers_no_model_can_have(run: Run, tmp_path: Path, start: str, new: str, word: str) -> None:
    refused(run("show", changed(tmp_path, "models", "llama-3.1-8b", (start, new))), 2, word)


@for_each(
    ("start", "new"),
    [
        ("bandwidth:", "bandwidth: 0 TB/s"),
        ("bandwidth:", "bandwidth: 1e-300 TB/s"),
        ("bf16:", "bf16: 0 TFLOP/s"),
        ("bandwidth:", "bandwidth: .inf"),
        ("bandwidth:", "bandwidth: 1e400 TB/s"),
        ("bandwidth:", "bandwidth: fast"),
    ],
)
def test_rates_no_device_can_have(run: Run, tmp_path: Path, start: str, new: str) -> None:
    refused(run("estimate", "llama-3.1-8b", "--gpu", changed(tmp_path, "hardware", "h100-sxm", (start, new))), 2)


def test_no_command_is_help_on_stderr(run: Run) -> None:
    ran = run()
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("Usage: inferplan")


@for_each("text", ["{bad", "[]", "{}", '{"model_type": "no-such-thing"}', '{"model_type": "internlm2"}'])
def test_configs_that_are_none(run: Run, tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    refused(run("estimate", str(path), "--gpu", "h100"), 2)


def test_weight_only_formats_compute_wide(run: Run) -> None:
    """What is not refused: 4-bit weights on Hopper and fp8 weights on Ampere run in bf16."""
    assert run(*E, "--weights", "nvfp4").code == 0
    assert run(*E, "--weights", "mxfp4").code == 0
    assert run("estimate", "llama-3.1-8b", "--gpu", "a100", "--weights", "fp8").code == 0


def test_an_empty_text_is_no_value_of_any_option() -> None:
    """Of every command, those below a group too: --quant "$Q" with Q unset must not plan for another format."""
    group, top = cli, click.Context(cli, info_name="inferplan")

    def options(name: str, command: click.Command) -> Iterator[tuple[list[str], click.Option]]:
        if isinstance(command, click.Group):
            for below, one in command.commands.items():
                yield from (([name, *words], option) for words, option in options(below, one))
        else:
            yield from (([name], one) for one in command.params if isinstance(one, click.Option) and not one.is_flag)

    count, wrong = 0, []
    for name in group.list_commands(top):
        command = group.get_command(top, name)
        assert command is not None
        for words, option in options(name, command):
            count += 1
            with pytest.raises(UsageError) as caught:
                group.resolve_command(top, [*words, option.opts[-1], " " * (count % 2)])
            if f"{option.opts[0]} is empty" not in caught.value.what:
                wrong.append((words, option.opts[0], caught.value.what))
    assert wrong == [] and count > 800
