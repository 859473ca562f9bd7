"""Code that comes with a checkpoint: never run unasked, and with ``--trust-remote-code`` apart."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from inferplan.errors import SpecError, UsageError
from inferplan.models.huggingface import model_from_config
from inferplan.models.tracing import apart, trace
from tests.cases import for_each

pytest.importorskip("torch")
pytest.importorskip("transformers")

CONFIG = {
    "model_type": "tiny_of_ours",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 512,
}
CODE = """
import os, socket, subprocess
from transformers import LlamaConfig, LlamaForCausalLM
class TinyConfig(LlamaConfig):
    model_type = "tiny_of_ours"
class TinyForCausalLM(LlamaForCausalLM):
    config_class = TinyConfig
    def __init__(self, config):
        super().__init__(config)
{more}
"""


def folder(place: Path, more: str = "pass") -> Path:
    """A folder whose model is Llama's under another name, which does something more while it is built."""
    lines = "\n".join(f"        {line}" for line in more.splitlines())
    (place / "code.py").unlink(missing_ok=True)
    (place / "modeling_tiny.py").write_text(CODE.format(more=lines), encoding="utf-8")
    names = {"AutoConfig": "modeling_tiny.TinyConfig", "AutoModelForCausalLM": "modeling_tiny.TinyForCausalLM"}
    (place / "config.json").write_text(json.dumps(CONFIG | {"auto_map": names}), encoding="utf-8")
    return place


def test_code_of_a_checkpoint_is_not_run_unasked(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    path = folder(tmp_path, f"open({str(marker)!r}, 'w').close()")
    with pytest.raises(SpecError, match="auto_map") as error:
        trace(path)
    assert "--trust-remote-code" in error.value.hint
    with pytest.raises(SpecError) as error:
        model_from_config(json.loads((path / "config.json").read_text(encoding="utf-8")), "tiny", "test")
    assert "--trust-remote-code" in error.value.hint
    assert not marker.exists()


def test_with_the_flag_it_is_traced_as_any_other(tmp_path: Path) -> None:
    """Llama under another name: what is described of Llama is what its code does."""
    found = trace(folder(tmp_path), trust_remote_code=True)
    described = model_from_config(CONFIG | {"model_type": "llama"}, "tiny", "test")
    assert found.basis == "traced" and found.name == tmp_path.name.lower()
    assert found.parameters == described.parameters
    assert found.kv_elements_per_token == described.kv_elements_per_token
    assert any("code of the checkpoint was run" in note for note in found.notes)


REACHES = """
for attempt in (
    lambda: socket.create_connection(("127.0.0.1", {port}), timeout=1),
    lambda: open({marker!r}, "w"),
    lambda: os.remove({kept!r}),
    lambda: os.rename({kept!r}, {marker!r}),
    lambda: os.system("touch " + {marker!r}),
    lambda: subprocess.run(["touch", {marker!r}]),
):
    try:
        attempt()
    except OSError:
        continue
    raise RuntimeError("reached")
if "SECRET" in os.environ:
    raise RuntimeError("told")
"""


def test_it_reaches_no_network_no_file_and_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "token")
    kept, marker = tmp_path / "kept", tmp_path / "marker"
    kept.write_text("here", encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        more = REACHES.format(port=server.getsockname()[1], marker=str(marker), kept=str(kept))
        assert trace(folder(tmp_path, more), trust_remote_code=True).basis == "traced"
        with pytest.raises(BlockingIOError):
            server.accept()
    assert kept.exists() and not marker.exists()


@for_each(
    ("more", "said"),
    [
        ("bytearray(2**36)", "MemoryError"),
        ("while True: pass", "its process ended"),
        ("os._exit(3)", "its process ended with 3"),
    ],
)
def test_code_that_fails_or_takes_too_much_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, said: str
) -> None:
    monkeypatch.setattr(apart, "SECONDS", 40 if "while" not in more else 5)
    with pytest.raises(SpecError) as error:
        trace(folder(tmp_path, more), trust_remote_code=True)
    assert said in error.value.because, error.value.because


def test_a_folder_without_code_has_none_to_trust(tmp_path: Path) -> None:
    path = folder(tmp_path)
    (path / "modeling_tiny.py").unlink()
    with pytest.raises(UsageError, match="not in the folder"):
        trace(path, trust_remote_code=True)
    (path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    with pytest.raises(UsageError, match="no code to trust"):
        trace(path, trust_remote_code=True)
