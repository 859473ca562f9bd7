"""A release: the source distribution, the wheel built from it, and that wheel installed outside the checkout.

The wheel and the editable install both know every model and accelerator. `make release-check` does what needs an index:
it installs the wheel with its dependencies alone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import inferplan
from tests.cases import for_each
from tests.lowest import lowest

ROOT = Path(__file__).parents[1]
KINDS = {"models": "models", "gpus": "hardware"}

PLAIN = {"click", "joblib", "numpy", "pydantic", "pyyaml", "rich"}
"""What `pip install .` brings: all that an estimate, a simulation and a plan on the screen import."""

pytestmark = pytest.mark.slow


def call(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "INFERPLAN"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution, of a copy of what git tracks (or would), and the wheel from it."""
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    source = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns(
        ".git", ".venv", "__pycache__", "*.egg-info", "build", "dist", ".*_cache", ".hypothesis"
    )
    shutil.copytree(ROOT, source / "inferplan", ignore=ignored)
    out = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source / "inferplan", cwd=source)
    return out


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    (built,) = distributions.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of an environment with the wheel and this one's other packages (not its editable hook)."""
    folder = tmp_path_factory.mktemp("environment")
    call(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin" / "python"
    install = ["install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", wheel]
    call(sys.executable, "-m", "pip", "--python", python, *install, cwd=folder)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    return folder / "bin" / "inferplan"


def names(command: list[str | Path], kind: str, cwd: Path) -> set[str]:
    record = json.loads(call(*command, kind, "--format", "json", cwd=cwd))
    return {entry["name"] for entry in record[kind]}


def on_file(kind: str) -> set[str]:
    return {path.stem for path in (ROOT / "configs" / KINDS[kind]).glob("*.yaml")}


@for_each("kind", KINDS)
def test_the_wheel_lists_everything(installed: Path, tmp_path: Path, kind: str) -> None:
    assert names([installed], kind, tmp_path) == on_file(kind)


@for_each("kind", KINDS)
def test_the_editable_install_lists_everything(tmp_path: Path, kind: str) -> None:
    command: list[str | Path] = [sys.executable, "-c", "from inferplan.cli import main; main()"]
    assert names(command, kind, tmp_path) == on_file(kind)


def test_the_wheel_is_the_one_that_ran(installed: Path, tmp_path: Path) -> None:
    script = "import inferplan.catalog.files as c; print(c.__file__); print(c.config_root())"
    lines = call(installed.parent / "python", "-c", script, cwd=tmp_path).splitlines()
    assert all(str(installed.parents[1]) in line for line in lines)


def test_the_wheel_prints_what_the_readme_shows(installed: Path, tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    command = re.search(r"&& inferplan (.*)", text)
    shown = re.search(r"(?<=```text\n).*?(?=```\n)", text, re.DOTALL)
    assert command and shown
    assert call(installed, *command[1].split(), cwd=tmp_path) == shown[0]


def test_the_first_estimate_of_the_wheel_parses_no_yaml_and_checks_nothing(installed: Path, tmp_path: Path) -> None:
    """Without a folder for what is kept. A YAML that somebody has changed there is read."""
    script = (
        "import os, sys; os.environ['INFERPLAN_CACHE'] = ''\n"
        "from inferplan.cli import main\nfrom inferplan.catalog.files import config_root\n"
        "sys.argv = 'inferplan estimate llama-3.1-8b --gpu h100-sxm --format json'.split()\nmain()\n"
        "print(sorted({'yaml', 'pydantic'} & set(sys.modules)), config_root())"
    )
    python = installed.parent / "python"
    first, loaded = call(python, "-c", script, cwd=tmp_path).rsplit("\n", 2)[:2]
    assert loaded.startswith("[] ")
    file = Path(loaded[3:]) / "hardware" / "h100-sxm.yaml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("bandwidth: 3.35 TB/s", "bandwidth: 1.5 TB/s"), encoding="utf-8")
    slower, loaded = call(python, "-c", script, cwd=tmp_path).rsplit("\n", 2)[:2]
    file.write_text(text, encoding="utf-8")
    assert loaded.startswith("['pydantic', 'yaml'] ")
    assert json.loads(slower)["tpot_s"] > 1.5 * json.loads(first)["tpot_s"]


def test_what_is_in_the_source_distribution(distributions: Path) -> None:
    """All that a test run needs (of what git tracks, where this is a checkout), and nothing that was made here."""
    (built,) = distributions.glob("*.tar.gz")
    root = f"inferplan-{inferplan.__version__}/"
    with tarfile.open(built) as archive:
        files = {name.removeprefix(root) for name in archive.getnames()}
    made = [name for name in files if re.search(r"__pycache__|\.pyc$|(^|/)(build|dist|\.venv)/", name)]
    assert made == []
    assert {"PKG-INFO", "README.md", "LICENSE", "NOTICE", "Makefile", "constraints.txt", "docs/index.md"} <= files
    if (ROOT / ".git").exists():
        tracked = call("git", "ls-files", cwd=ROOT).splitlines()
        assert {name for name in tracked if not name.startswith(".")} <= files


def test_the_metadata_is_complete(wheel: Path) -> None:
    """What a package index shows, by the core metadata specification; the version is the module's."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(archive.read(name))
    assert metadata["Version"] == inferplan.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("License-File", [])) == {"LICENSE", "NOTICE"}
    assert metadata["Author"] == "inferplan contributors"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload().startswith("# inferplan\n")  # type: ignore[union-attr]
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    required = [text for text in metadata.get_all("Requires-Dist", []) if "extra ==" not in text]
    assert {re.match(r"[\w-]+", text)[0] for text in required} == PLAIN  # type: ignore[index]


def test_every_minimum_is_stated() -> None:
    """``make minimum`` installs these; a requirement without a minimum would raise."""
    assert set(lowest()) > PLAIN


def test_what_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = archive.namelist()
        (entry_points,) = [name for name in files if name.endswith("entry_points.txt")]
        assert "inferplan = inferplan.cli:main" in archive.read(entry_points).decode()
    tops = {name.split("/")[0] for name in files if ".dist-info/" not in name}
    assert tops == {"inferplan", "calibrate"}
    assert {"inferplan/reports/page.html.j2", "inferplan/serving/plain_native.c"} <= set(files)
    static = ROOT / "inferplan/web/static"
    assert {path.relative_to(ROOT).as_posix() for path in static.rglob("*") if path.is_file()} <= set(files)
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "calibrate").rglob("*") if path.suffix == ".py"}
    assert sources <= set(files), "the calibrator with its folders"
    for folder in ("models", "hardware", "engines"):
        packed = {Path(name).name for name in files if name.startswith(f"inferplan/configs/{folder}/")}
        assert packed == {path.name for path in (ROOT / "configs" / folder).iterdir()}


SCRIPT = """\
import inferplan

deployment = inferplan.deploy("llama-3.1-8b", "h100-sxm", tp=2)
reveal_type(deployment)
reveal_type(inferplan.estimate_batch(deployment).tpot)
reveal_type(inferplan.make_plan("llama-3.1-8b", 1024, "uniform:256:0.8", rate=20, tpot=0.05))
inferplan.deploi("llama-3.1-8b", "h100-sxm")
inferplan.deploy("llama-3.1-8b", "h100-sxm", tensor=2)
inferplan.make_plan("llama-3.1-8b", 1024, 256, rate="fast")
reveal_type(inferplan.fit("llama-3.1-8b", "l40s"))
reveal_type(inferplan.fit("llama-3.1-8b"))
inferplan.cost(deployment, price=2.49)
"""
SAID = {
    4: 'Revealed type is "inferplan.estimate.deployment.Deployment"',
    5: 'Revealed type is "float | numpy.ndarray[',
    6: 'Revealed type is "inferplan.planning.plan.Plan"',
    7: 'Module has no attribute "deploi"',
    8: 'Unexpected keyword argument "tensor" for "deploy"',
    9: 'Argument "rate" to "make_plan" has incompatible type',
    10: 'Revealed type is "inferplan.answers.fit.Fitting"',
    11: 'Revealed type is "inferplan.answers.fit.Fits"',
    12: 'has incompatible type "float"; expected "Mapping[str, float | str]"',
}
"""Line of the script to a part of what mypy says about it."""


def test_a_users_type_checker_knows_the_public_names(installed: Path, tmp_path: Path) -> None:
    """mypy over a script, with the installed wheel as its only source of types for inferplan."""
    pytest.importorskip("mypy")
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    checker = [sys.executable, "-m", "mypy", "--python-executable", installed.parent / "python", "--no-error-summary"]
    done = subprocess.run([*checker, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    about = [(int(line.split(":")[1]), line) for line in done.stdout.splitlines() if line.startswith("script.py:")]
    for number, part in SAID.items():
        assert any(part in line for at, line in about if at == number), done.stdout
    assert {at for at, _ in about} == set(SAID)
    assert done.returncode == 1
