"""``inferplan ask``: five questions, asked one by one; the answer ends with the command that gives it."""

from __future__ import annotations

import os
import shlex
import stat
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

import click

from inferplan.catalog.assemble import load_engine, usual_engine
from inferplan.catalog.counted import counted, devices_meant
from inferplan.catalog.files import load_hardware, load_model
from inferplan.catalog.people import MOST_LOAD
from inferplan.cli.layers import Layered
from inferplan.cli.numbers import Count
from inferplan.cli.options import WORDS
from inferplan.errors import InferplanError, UsageError
from inferplan.estimate.formats import default_quants


class Question(NamedTuple):
    """title: as it stands in the list. needs: what has to be known, by option; may: what may be left out. words: the
    command that answers."""

    title: str
    needs: tuple[str, ...]
    words: Callable[[Mapping[str, str]], list[str]]
    may: tuple[str, ...] = ()


def _run(said: Mapping[str, str]) -> list[str]:
    return ["fit", *([said["model"]] if said.get("model") else []), "--have", said["have"]]


def _people(said: Mapping[str, str]) -> list[str]:
    meant = devices_meant(said["have"])
    if len(meant) > 1:
        raise UsageError(
            f"{said['have']} says how much memory there is, not how fast it is",
            because=f"{len(meant)} GPUs on file are sold with it",
            hint=f"one of their names: --have {meant[0].number}x-{meant[0].gpu} (inferplan gpus)",
        )
    gpu = said["have"] if counted(said["have"]).number is not None else f"1x-{said['have']}"
    return ["plan", said["model"], "--gpu", gpu, *_load(said)]


def _buy(said: Mapping[str, str]) -> list[str]:
    return ["plan", said["model"], *_load(said)]


def _load(said: Mapping[str, str]) -> list[str]:
    return ["--workload", said["workload"], "--people", said.get("people", MOST_LOAD)]


def _format(said: Mapping[str, str]) -> list[str]:
    model, gpu = said["model"], counted(said["have"]).gpu
    engine = load_engine(usual_engine(model, gpu))
    quants = default_quants(load_model(model), load_hardware(gpu), engine)
    return ["compare", model, "--gpu", said["have"], "--quant", ",".join(quant or "native" for quant in quants)]


def _slow(said: Mapping[str, str]) -> list[str]:
    count, gpu = counted(said["have"])
    _note_assumed(said, count)
    facts = ["--model", said["model"], "--gpu", gpu, "--tp", f"{count or 1}"]
    if said["server"].startswith(("http://", "https://")):
        return ["measure", said["server"], *facts, *(["--quant", said["quant"]] if "quant" in said else [])]
    return ["validate", said["server"], *facts, "--quant", said.get("quant", "native")]


def _note_assumed(said: Mapping[str, str], count: int | None) -> None:
    """Say on stderr what the server is taken for."""
    divided = "one GPU" if (count or 1) == 1 else f"{count} GPUs by tensor parallelism"
    formats = said.get("quant", "the formats of its checkpoint, unless it says others: --quant")
    click.echo(f"note: the server is taken to run {said['model']} on {divided}, in {formats}", err=True)


QUESTIONS = {
    "run": Question("Will it run on the GPUs that I have?", ("have",), _run, ("model",)),
    "people": Question("How many people can my GPUs serve?", ("model", "have", "workload"), _people, ("people",)),
    "buy": Question("What do I buy?", ("model", "people", "workload"), _buy),
    "format": Question("Which number format?", ("model", "have"), _format),
    "slow": Question("Is my server slow?", ("model", "have", "server"), _slow, ("quant",)),
}
_ASKED = {
    "have": "Your GPUs, such as 2x-a6000, or their memory, such as 2x24GB",
    "model": "The model, such as llama-3.1-8b",
    "people": "People who use it in the busy hour",
    "workload": "What they do: chat, code, rag, agent, ...",
    "server": "The address of the server, or a file of its benchmark",
}
_USUAL = {"workload": "chat", "people": "100"}
_UNASKED = ("workload",)
"""What has its usual value where nobody is asked."""
_SUCH = {
    "have": "2x-a6000",
    "model": "llama-3.1-8b",
    "people": "100",
    "workload": "chat",
    "server": "bench.json",
    "quant": "fp8",
}


@click.command("ask", cls=Layered)
@click.argument("question", required=False, type=click.Choice([*QUESTIONS]))
@click.option("--model", metavar="MODEL", help="A name (inferplan models), a path or a Hugging Face id.")
@click.option(
    "--have", "--gpu", "have", metavar="GPUS", help="Your GPUs: 2x-a6000; for run their memory is enough: 2x24GB."
)
@click.option("--people", type=Count(), help="People who use it in the busy hour.")
@click.option("--workload", metavar="NAME", help="What they do: chat, code, rag, agent, ... [chat]")
@click.option("--server", metavar="URL|FILE", help="slow: the server's address, or a file of a benchmark of it.")
@click.option("--quant", metavar="FORMAT", help="slow: the format that it runs [native].")
def ask_command(question: str | None, **values: str | int | None) -> None:
    """Answers one of five questions, and ends with the command that gives the answer.

    \b
    run      Will it run on the GPUs that I have? Without a model: what will?
    people   How many people can my GPUs serve? (--people 300: do they?)
    buy      What do I buy?
    format   Which number format?
    slow     Is my server slow?

    On a terminal, or with answers in a pipe or a file, it asks for what is not given. From these a named question reads
    only what it cannot do without, and what comes after that.

    Example: inferplan ask run --model llama-3.1-70b --have 2x-a6000
    """
    said = {name: str(value) for name, value in values.items() if value is not None}
    asks, heard = asks_back(), question is None
    name = question or _chosen(asks)
    asked = QUESTIONS[name]
    if beside := [f"--{one}" for one in said if one not in (*asked.needs, *asked.may)]:
        needed = " ".join(f"--{one} {_SUCH[one]}" for one in (*asked.needs, *asked.may))
        raise UsageError(f"ask {name} does not take {', '.join(beside)}", hint=f"inferplan ask {name} {needed}")
    if question is None and name == "run" and "model" not in said and asks:
        said["model"] = _prompted("model", " (none: all on file)", "")
    for one in asked.needs:
        if one not in said:
            heard = heard or one not in _UNASKED or sys.stdin is None or sys.stdin.isatty()
            said[one] = _missing(name, one, asks and heard)
    words = asked.words(said)
    try:
        _answer(words)
    finally:
        click.echo(f"\nThe command that answers this: {shlex.join(['inferplan', *words])}", err=True)


def asks_back() -> bool:
    """Whether somebody sits at a terminal who can be asked, or answers through a pipe or a file, however slowly. A
    program that runs commands is asked nothing."""
    if sys.stdin is None or click.get_current_context().meta.get(WORDS) is not None:
        return False
    if sys.stdin.isatty():
        return sys.stdout is not None and sys.stdout.isatty()
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode)


def _chosen(asks: bool) -> str:
    """The question that is asked. Raises ``UsageError`` where nobody can be asked for it."""
    if not asks:
        raise UsageError(
            "ask needs a question",
            because=f"it is one of {', '.join(QUESTIONS)}",
            hint="inferplan ask run --have 2x24GB",
        )
    err = not sys.stdin.isatty()
    click.echo("What do you want to know?\n", err=err)
    for number, (name, question) in enumerate(QUESTIONS.items(), 1):
        click.echo(f"  {number}  {name:<7} {question.title}", err=err)
    choices = {str(number): name for number, name in enumerate(QUESTIONS, 1)} | {name: name for name in QUESTIONS}
    return choices[click.prompt("\nA number or a name", type=click.Choice([*choices]), show_choices=False, err=err)]


def _missing(name: str, one: str, asks: bool) -> str:
    """A fact that is not given: asked for, or its usual value. Raises ``UsageError`` for one that has none."""
    if asks:
        try:
            return _prompted(one, "", _USUAL.get(one))
        except click.Abort:
            if sys.stdin.isatty():
                raise  # else the pipe has no more answers
    if one in _UNASKED:
        return _USUAL[one]
    whole = " ".join(f"--{option} {_SUCH[option]}" for option in QUESTIONS[name].needs)
    raise UsageError(f"ask {name} needs --{one}", because=_ASKED[one], hint=f"inferplan ask {name} {whole}")


def _prompted(one: str, more: str, usual: str | None) -> str:
    """What is typed, asked for again until it is known."""
    text: str = click.prompt(
        _ASKED[one] + more,
        default=usual,
        show_default=bool(usual),
        value_proc=_checked(one),
        err=not sys.stdin.isatty(),
    )
    return text


def _checked(one: str) -> Callable[[str], str]:
    """What a typed fact is read by, so that a typing error is said at once."""

    def read(typed: str) -> str:
        text = typed.strip()
        try:
            if one == "model" and text:
                load_model(text)
            elif one == "have":
                devices_meant(text)
            elif one == "people":
                Count().convert(text, None, None)
        except InferplanError as error:
            raise click.UsageError(f"{error.what}; {error.hint}" if error.hint else error.what) from None
        return text

    return read


def _answer(words: list[str]) -> None:
    """Run the command that answers, as if it had been typed."""
    here = click.get_current_context()
    group = here.find_root().command
    with group.make_context("inferplan", list(words)) as context:
        context.meta.update(here.meta | {WORDS: words})
        group.invoke(context)
