"""The Python API beside the command line: the same numbers, results that a notebook shows, refusals of wrong types."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import inferplan
from inferplan.cli import cli
from inferplan.errors import InfeasibleError, InferplanError, InputFileError, UsageError
from inferplan.reports.progress import progress_counter
from inferplan.table import SCHEMA_VERSION, plain
from tests.cases import for_each

PRICE = {"h100-sxm": 2.49}
WORDS = "llama-3.1-8b --gpu h100-sxm"


def printed(words: str) -> dict[str, Any]:
    """The JSON that a command prints, without what is of its words."""
    done = CliRunner().invoke(cli, [*words.split(), "--format", "json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    record: dict[str, Any] = json.loads(done.stdout)
    assert record.pop("schema_version") == SCHEMA_VERSION
    record.pop("command", None)
    return record


@pytest.fixture(scope="module")
def one() -> inferplan.Deployment:
    return inferplan.deploy("llama-3.1-8b", "h100-sxm")


def asked(name: str, one: inferplan.Deployment) -> Any:
    load = inferplan.Traffic(
        arrivals=inferplan.OpenLoop(rate=4),
        prompt=inferplan.Lengths(mean=512),
        output=inferplan.Lengths(mean=32),
        requests_count=100,
    )
    calls: dict[str, Any] = {
        "estimate": lambda: inferplan.estimate_batch(one, batch=8, prompt=1024, output=256),
        "compare": lambda: inferplan.compare_deployments(
            {"h100-sxm": one, "h200-sxm": inferplan.deploy("llama-3.1-8b", "h200-sxm")}, batch=8
        ),
        "fit": lambda: inferplan.fit("llama-3.1-8b", "h100-sxm", context="8k", users=4),
        "fit everywhere": lambda: inferplan.fit("llama-3.1-8b", quant="fp8", most=2),
        "cost": lambda: inferplan.cost(one, prompt=1024, output=256, price=PRICE, api_price="3/15", grid=300),
        "cost of a batch": lambda: inferplan.cost(one, 16, utilisation=0.5, prices="aws-us-east-1"),
        "explain": lambda: inferplan.explain(inferplan.estimate_batch(one, batch=8), "decode.ffn.down"),
        "sweep": lambda: inferplan.run_sweep("llama-3.1-8b", "h100-sxm", batch="1-4096*8", tp=[1, 3]),
        "recipe": lambda: inferplan.take_apart("llama-3.1-8b", "h100-sxm", ["gqa"]),
        "simulate": lambda: inferplan.simulate(one, load, progress=False),
        "plan": lambda: inferplan.make_plan("llama-3.1-8b", 512, 64, "h100-sxm", rate=5, tpot="50ms", most=1),
    }
    return calls[name]()


COMMANDS = {
    "estimate": f"estimate {WORDS} --batch 8 --prompt 1024 --output 256",
    "compare": "compare llama-3.1-8b --gpu h100-sxm,h200-sxm --batch 8",
    "fit": f"fit {WORDS} --context 8k --users 4",
    "fit everywhere": "fit llama-3.1-8b --quant fp8 --most 2",
    "cost": f"cost {WORDS} --prompt 1024 --output 256 --price h100-sxm=2.49 --api-price 3/15 --grid 300",
    "cost of a batch": f"cost {WORDS} --batch 16 --utilisation 0.5 --prices aws-us-east-1",
    "explain": f"explain decode.ffn.down {WORDS} --batch 8",
    "sweep": f"sweep {WORDS} --batch 1-4096*8 --tp 1,3 --executor serial",
    "recipe": f"recipe {WORDS} --with gqa",
    "plan": "plan llama-3.1-8b --gpu h100-sxm --prompt 512 --output 64 --rate 5 --tpot 50ms --most 1",
}
RESULTS = {**COMMANDS, "simulate": ""}


@for_each("name", COMMANDS)
def test_numbers_are_those_of_the_command_line(name: str, one: inferplan.Deployment) -> None:
    record = asked(name, one).to_dict()
    own = {key: list(map(plain, value)) if key == "points" else plain(value) for key, value in record.items()}
    assert json.loads(json.dumps(own)) == printed(COMMANDS[name])


class Tags(HTMLParser):
    """Counts what is opened and not closed, and the cells."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.cells += tag == "td"
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@for_each("name", RESULTS)
def test_a_result_is_one_line_and_its_tables(name: str, one: inferplan.Deployment) -> None:
    result = asked(name, one)
    assert len(repr(result)) < 300
    assert "\n" not in repr(result)
    assert repr(result).startswith(f"<{type(result).__name__}: ")
    html, tags = result._repr_html_(), Tags()
    tags.feed(html)
    assert not tags.open
    assert tags.cells
    assert "\n\n" not in html  # Markdown would end the HTML there
    assert not re.search(r"colou?r|background", html)  # those of the page, light or dark


def test_what_a_name_says_is_escaped(one: inferplan.Deployment) -> None:
    label = "<script>alert(1)</script>"
    html = inferplan.compare_deployments({label: one})._repr_html_()
    assert label not in html
    assert "&lt;script&gt;" in html


def test_points_that_do_not_run_are_seen(one: inferplan.Deployment) -> None:
    found = inferplan.run_sweep("llama-3.1-8b", "h100-sxm", batch=[1, 4096], tp=[1, 3])
    assert found.refused == {"--tp 3 does not divide 32 query heads": 2, "does not fit": 1}
    notice = "3 of 4 points do not run: --tp 3 does not divide 32 query heads (2); does not fit (1)"
    assert repr(found) == f"<Sweep: {notice}>"
    assert found._repr_html_().index(notice) < found._repr_html_().index("<table")
    assert list(found.to_frame()["status"]) == ["ok", "does not fit", *["--tp 3 does not divide 32 query heads"] * 2]


def test_one_string_is_one_gpu_and_text_is_read_as_the_command_line_reads_it(one: inferplan.Deployment) -> None:
    assert [row["gpu"] for row in inferplan.run_sweep("llama-3.1-8b", "h100-sxm", batch=8).rows] == ["h100-sxm"]
    both = inferplan.run_sweep("llama-3.1-8b", "h100-sxm,l40s", batch="1-8*8", ideal=True)
    assert [(row["gpu"], row["batch"]) for row in both.rows] == [
        (gpu, n) for gpu in ("h100-sxm", "l40s") for n in (1, 8)
    ]
    assert inferplan.estimate_batch(one, batch=2, prompt="8k").load.prompt == 8000
    assert inferplan.estimate_batch(one, batch=8.0).load.batch == 8


WRONG = [
    (lambda one: inferplan.estimate_batch(one, batch=1.5), "batch is a count, not 1.5"),
    (lambda one: inferplan.estimate_batch(one, batch="lots"), "'lots' is not a count"),
    (lambda one: inferplan.estimate_batch(one, batch=None), "batch is a count, not NoneType"),
    (lambda one: inferplan.estimate_batch(one, batch=True), "batch is a count, not bool"),
    (lambda one: inferplan.estimate_batch(one, batch=0), "batch is 0"),
    (lambda one: inferplan.estimate_batch(one, batch=float("nan")), "batch is a count"),
    (lambda one: inferplan.estimate_batch("llama-3.1-8b"), "a Deployment is needed here, not a str"),
    (lambda one: inferplan.estimate_batch(one, techniques=3), "techniques is a Techniques, not int"),
    (lambda one: inferplan.deploy(3, "h100-sxm"), "model is text, not int"),
    (lambda one: inferplan.deploy("llama-3.1-8b", ["h100-sxm"]), "gpu is text, not list"),
    (lambda one: inferplan.deploy("llama-3.1-8b", "h100-sxm", tp="two"), "tp: 'two' is not a count"),
    (lambda one: inferplan.deploy("llama-3.1-8b", "h100-sxm", ideal="yes"), "ideal is True or False, not str"),
    (lambda one: inferplan.deploy("llama-3.1-8b", "h100-sxm", quant=8), "quant is text, not int"),
    (lambda one: inferplan.deploy("llama-3.1-8b", "h100-sxm", roles=("kv", "fp8")), "roles is 2 values, not str"),
    (lambda one: inferplan.run_sweep("llama-3.1-8b", 5), "gpu is text, not int"),
    (lambda one: inferplan.run_sweep("llama-3.1-8b", "h100-sxm", batch={"a": 1}), "batch is one value or a list"),
    (lambda one: inferplan.run_sweep("llama-3.1-8b", "h100-sxm", batch=[]), "batch holds no values"),
    (lambda one: inferplan.run_sweep("llama-3.1-8b", "h100-sxm", tp=3), "no point of this grid can exist"),
    (lambda one: inferplan.compare_deployments([one]), "compared by label"),
    (lambda one: inferplan.make_plan("llama-3.1-8b", [1], 2, rate=1, ttft=1), "prompt is float or str or Lengths"),
    (lambda one: inferplan.make_plan("llama-3.1-8b", 1, 2, rate=1, ttft="soon"), "ttft: 'soon' is not a quantity"),
    (
        lambda one: inferplan.make_plan("llama-3.1-8b", 1, 2, rate=1, ttft=1, survive="rack", restart="1min"),
        "neither a number of replicas nor a node",
    ),
    (lambda one: inferplan.make_plan("llama-3.1-8b", 1, 2, rate="fast", ttft=1), "rate: 'fast' is not a number"),
    (lambda one: inferplan.make_plan("llama-3.1-8b", 1, 2, rate=1, ttft=1, price=3), "price is a dict, not int"),
    (lambda one: inferplan.make_plan("llama-3.1-8b", 1, 2, rate=1, ttft=1, term="never"), "term is 'never'"),
    (lambda one: inferplan.simulate(one, 3), "a Traffic is needed here, not a int"),
    (lambda one: inferplan.fit("llama-3.1-8b", colour="red"), "fit has no colour"),
    (lambda one: inferplan.fit("llama-3.1-8b", contxt=8), "fit has no contxt"),
    (lambda one: inferplan.cost(one, api_price="cheap"), "--api-price cheap is not a price"),
    (lambda one: inferplan.explain(3, "tpot"), "a Deployment is needed here, not a int"),
    (lambda one: inferplan.emit("sglang", one), "emit sglang of a deployment under vllm"),
    (lambda one: inferplan.emit("pie", one), "emit does not support 'pie'"),
    (lambda one: inferplan.plot("pie", model="llama-3.1-8b", gpu="h100-sxm"), "no picture named 'pie'"),
    (lambda one: inferplan.plot(inferplan.estimate_batch(one), "pie"), "Estimate has no picture named 'pie'"),
    (lambda one: inferplan.plot(inferplan.estimate_batch(one), gpu="l40s"), "a result has gpu already"),
    (lambda one: inferplan.plot("memory"), "models that are named"),
    (inferplan.plot, "Deployed has no picture"),
    (lambda one: inferplan.take_apart("llama-3.1-8b", "h100-sxm", 3), "ingredients is text, not int"),
]


@for_each("call, what", WRONG, ids=[what for _, what in WRONG])
def test_a_value_of_another_type_is_an_error_of_the_library(call: Any, what: str, one: inferplan.Deployment) -> None:
    with pytest.raises(InferplanError, match=re.escape(what)) as found:
        call(one)
    assert isinstance(found.value, UsageError)


def test_a_misspelt_option_has_a_hint() -> None:
    with pytest.raises(UsageError) as found:
        inferplan.fit("llama-3.1-8b", contxt=8)  # type: ignore[call-overload]
    assert found.value.hint == "did you mean context?"


def test_fit_refuses_what_does_not_fit() -> None:
    with pytest.raises(InfeasibleError, match="does not hold"):
        inferplan.fit("llama-3.1-70b", "l40s", tp=1)


def test_an_explanation_needs_what_was_asked_for(one: inferplan.Deployment) -> None:
    from dataclasses import replace

    from inferplan.work.parallel import Parallelism

    with pytest.raises(UsageError, match="differs from its request") as found:
        inferplan.explain(replace(one, parallel=Parallelism(tp=2)), "tpot")
    assert "parallel" in found.value.because
    bare = inferplan.compare_deployments({"one": one}).candidates[0].estimate
    assert bare is not None
    assert inferplan.explain(bare, "tpot").value == pytest.approx(float(bare.tpot))


def test_emit_is_the_command_and_the_plan_is_its_file(tmp_path: Path, one: inferplan.Deployment) -> None:
    words = ["emit", "vllm", *WORDS.split(), "--context", "16384"]
    assert str(inferplan.emit("vllm", one, context=16384)) == CliRunner().invoke(cli, words).stdout.rstrip("\n")
    plan = asked("plan", one)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"schema_version": SCHEMA_VERSION, **plain(plan.to_dict())}))
    for target in ("vllm", "k8s"):
        shown = CliRunner().invoke(cli, ["emit", target, str(path)]).stdout.rstrip("\n")
        assert shown == str(inferplan.emit(target, plan)) == str(inferplan.emit(target, path))


def test_validate_is_the_command(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    header = "model,gpu,engine,isl,osl,concurrency,ttft_ms,tpot_ms"
    path.write_text(f"{header}\nllama-3.1-8b,h100-sxm,vllm,1024,256,8,90,7.4\n")
    found = inferplan.validate(path, quant="bf16", tp=1)
    assert plain(found.to_dict()) == printed(f"validate {path} --quant bf16 --tp 1")
    assert len(inferplan.plot(found).axes) >= 1
    with pytest.raises(InputFileError, match="no row can be priced"):
        inferplan.validate(path)


def test_pictures_of_results_and_by_name(one: inferplan.Deployment) -> None:
    estimate = asked("estimate", one)
    figure = inferplan.plot(estimate)
    named = inferplan.plot("roofline", model="llama-3.1-8b", gpu="h100-sxm", batch=8)
    assert figure.axes[0].get_title("left") == named.axes[0].get_title("left")
    assert figure._repr_png_().startswith(b"\x89PNG")
    swept = inferplan.run_sweep("llama-3.1-8b", ["h100-sxm", "l40s"], batch=[1, 8, 4096])
    lines = inferplan.plot(swept).axes[0].get_lines()
    assert [list(line.get_xdata()) for line in lines] == [
        [row["output_tokens_per_s_per_device"] for row in swept.rows if row["gpu"] == gpu and row["status"] == "ok"]
        for gpu in ("h100-sxm", "l40s")
    ]


def test_the_public_names_and_no_others() -> None:
    assert dir(inferplan) == sorted(["__doc__", "__version__", *inferplan.PUBLIC])


def test_nothing_is_drawn_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    inferplan.run_sweep("llama-3.1-8b", "h100-sxm", ideal=True)
    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@for_each("wanted", [True, False])
def test_a_terminal_has_a_bar_unless_nobody_wants_it(wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    inferplan.run_sweep("llama-3.1-8b", "h100-sxm", ideal=True, progress=wanted)
    assert ("structures" in terminal.getvalue()) == wanted


def test_a_notebook_has_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    handle = SimpleNamespace(update=lambda what: shown.append(what._repr_html_()))
    notebook, display = ModuleType("IPython"), ModuleType("IPython.display")
    notebook.get_ipython = lambda: SimpleNamespace(kernel=1)  # type: ignore[attr-defined]
    display.display = lambda what, display_id: (shown.append(what._repr_html_()), handle)[1]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr("inferplan.reports.progress._PAUSE", -1.0)
    with progress_counter("runs", 4) as progress:
        assert progress is not None
        progress(2)
    assert shown == [
        '<progress max="4" value="0"></progress> 0 of 4 runs',
        '<progress max="4" value="2"></progress> 2 of 4 runs',
        '<progress max="4" value="4"></progress> 4 of 4 runs',
        "",
    ]
    shown.clear()
    with progress_counter("runs", 4, wanted=False) as silent:
        assert silent is None
    assert not shown


def test_a_result_of_a_lower_floor_shows_itself() -> None:
    """Also where nobody has touched the package's own names."""
    code = (
        "from inferplan.catalog.assemble import Request, assemble\n"
        "print(repr(assemble(Request(model='llama-3.1-8b', gpu='h100-sxm'))))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "<Deployment: llama-3.1-8b in bf16 on 1 x h100-sxm>"
