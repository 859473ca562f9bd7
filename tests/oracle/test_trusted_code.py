"""Code that comes with a checkpoint: never run unasked, and with ``--trust-remote-code`` apart."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

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
    assert found.made_from.trust == "traced" and found.made_from.file == found.source == str(tmp_path)


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


PASSES_HOOKS = """
import json, sys
from multiprocessing.util import spawnv_passfds
place = os.open({place!r}, os.O_PATH)
reached = []
for attempt in (
    lambda: os.open("made", os.O_CREAT | os.O_WRONLY, dir_fd=place),
    lambda: os.remove("kept", dir_fd=place),
    lambda: os.mkfifo({place!r} + "/made"),
    lambda: os.utime("kept", dir_fd=place),
    lambda: os.chmod("kept", 0o777, dir_fd=place),
    lambda: open({place!r} + "/kept").read(),
    lambda: os.listdir({place!r}),
    lambda: open("/proc/" + str(os.getppid()) + "/environ", "rb").read(),
    lambda: spawnv_passfds(b"/usr/bin/touch", [b"touch", b"made"], []),
    lambda: __import__("ctypes").CDLL(None).system(b"touch made"),
):
    try:
        reached.append(attempt())
    except OSError:
        continue
if reached:
    raise RuntimeError("reached " + str(reached))
"""


def test_the_kernel_holds_what_passes_hooks(tmp_path: Path) -> None:
    """Calls that raise no audit event, or name a file beside an open folder."""
    (tmp_path / "folder").mkdir()
    plain = trace(folder(tmp_path / "folder"), trust_remote_code=True)
    if any(word in plain.notes[-1] for word in ("hooks", "could read")):
        pytest.skip(plain.notes[-1])
    (tmp_path / "kept").write_text("here", encoding="utf-8")
    before = (tmp_path / "kept").stat()
    found = trace(folder(tmp_path / "folder", PASSES_HOOKS.format(place=str(tmp_path))), trust_remote_code=True)
    assert found.parameters == plain.parameters
    after = (tmp_path / "kept").stat()
    assert (after.st_mtime_ns, after.st_mode) == (before.st_mtime_ns, before.st_mode)
    assert sorted(os.listdir(tmp_path)) == ["folder", "kept"]


COMPILED = """
import ctypes, json, os, resource, sys, types
from pathlib import Path
for name in ("transformers", "transformers.generation", "transformers.modeling_utils"):
    sys.modules[name] = types.ModuleType(name)  # what they load is not asked
sys.addaudithook = lambda hook: None
from inferplan.models.tracing.confinement import confine
place, parent = Path(sys.argv[1]), os.getppid()
said = confine(place / "own", place / "folder", {resource.RLIMIT_FSIZE: 2**20})
library, kept = ctypes.CDLL(None), os.fsencode(place / "kept")
print(json.dumps([said, {
    "write": library.open(os.fsencode(place / "own" / "a"), os.O_CREAT | os.O_WRONLY, 0o600),
    "read": library.open(os.fsencode(place / "folder" / "code"), os.O_RDONLY),
}, {
    "write": library.open(kept, os.O_WRONLY),
    "read": library.open(kept, os.O_RDONLY),
    "remove": library.unlink(kept),
    "chmod": library.chmod(kept, 0o777),
    "fork": library.fork(),
    "execute": library.execv(b"/bin/true", (ctypes.c_char_p * 2)(b"true", None)),
    "signal": library.kill(parent, 0),
    "trace": library.ptrace(16, parent, None, None),
    "network": library.connect(library.socket(2, 2, 0), b"\\2\\0\\0\\x63\\x7f\\0\\0\\1" + bytes(8), 16),
    "processes": library.unshare(0x20000000),
    "write again": library.mount(None, b"/", None, 0x1020, None),
}]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone holds compiled code")
def test_compiled_code_is_held_too(tmp_path: Path) -> None:
    """Without the hook: system calls give -1 where they are held, and descriptors in the folders that they may use."""
    for name in ("own", "folder"):
        (tmp_path / name).mkdir()
    for name in ("kept", "folder/code"):
        (tmp_path / name).write_text("here", encoding="utf-8")
    ran = subprocess.run([sys.executable, "-c", COMPILED, str(tmp_path)], capture_output=True, check=True)
    said, allowed, refused = json.loads(ran.stdout)
    if any(word in said for word in ("hooks", "could read")):
        pytest.skip(said)
    assert min(allowed.values()) > 2 and set(refused.values()) == {-1}, (allowed, refused)
    assert (tmp_path / "kept").read_text(encoding="utf-8") == "here"


FORGES = """
import json, sys
from inferplan.models.huggingface import model_from_config
fields = {config!r} | {{"model_type": "llama", "num_hidden_layers": 1}}
forged = model_from_config(fields, "forged", "forged").to_dict() | {more!r}
forged["made_from"] = {{"file": "forged", "tensors": True}}
os.write(json.loads(sys.argv[1])["to"], json.dumps({{"model": forged}}).encode())
os._exit(0)
"""


def test_a_forged_answer_is_no_more_than_a_trace(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="gave no model"):
        trace(folder(tmp_path, FORGES.format(config=CONFIG, more={})), trust_remote_code=True)
    more = {"basis": "traced", "aliases": ["org/name"], "licence": "mit"}
    found = trace(folder(tmp_path, FORGES.format(config=CONFIG, more=more)), trust_remote_code=True)
    assert found.made_from.trust == "traced" and not found.made_from.tensors
    assert "forged" not in (found.name, found.source, found.made_from.file)
    assert not found.aliases and not found.licence
    assert "the code of the checkpoint was run" in found.notes[-1]


def test_brackets_without_end_are_no_model(tmp_path: Path) -> None:
    more = "import json, sys\nos.write(json.loads(sys.argv[1])['to'], b'[' * 50_000)\nos._exit(0)"
    with pytest.raises(SpecError, match="gave no model"):
        trace(folder(tmp_path, more), trust_remote_code=True)


def test_code_that_waits_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "WAIT", 20)
    began = time.monotonic()
    with pytest.raises(SpecError) as error:
        trace(folder(tmp_path, "import time\ntime.sleep(10_000)"), trust_remote_code=True)
    assert "did not end" in error.value.because and time.monotonic() - began < 60


def test_a_system_that_holds_nothing_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has neither the limits nor their module."""
    monkeypatch.setattr(apart, "os", SimpleNamespace(name="nt"))
    with pytest.raises(UsageError):
        trace(folder(tmp_path), trust_remote_code=True)
    without = "import sys; sys.modules['resource'] = None; import inferplan.models.tracing.apart"
    subprocess.run([sys.executable, "-c", without], check=True)


def test_a_folder_without_code_has_none_to_trust(tmp_path: Path) -> None:
    path = folder(tmp_path)
    (path / "modeling_tiny.py").unlink()
    with pytest.raises(UsageError, match="not in the folder"):
        trace(path, trust_remote_code=True)
    (path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    with pytest.raises(UsageError, match="no code to trust"):
        trace(path, trust_remote_code=True)
