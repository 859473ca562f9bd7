"""Asks one checkout every question, each in a process of its own: ``python ask.py QUESTIONS.json ANSWERS.jsonl``.

It runs with ``PYTHONPATH`` at the checkout and imports nothing but what stands there.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

CPU_SECONDS = 60
"""A question that takes longer is ended and counts as not answered."""
_WITHOUT_FORMAT = frozenset({"emit", "import", "settings", "nonsense", "completion", "report", "plot"})
"""Commands whose answer is text, a picture or a page."""


def main(questions: str, answers: str) -> None:
    asked = json.loads(Path(questions).read_text())
    cli = import_module("inferplan.cli")
    for module in {module for module, _ in cli.COMMANDS.values()} - {"calibrate", "web", "measure"}:
        import_module(f"inferplan.cli.{module}")
    with tempfile.TemporaryDirectory() as folder, Path(answers).open("w") as kept:
        os.chdir(folder)
        for name, text in asked["files"].items():
            Path(name).write_text(text)
        for question in asked["questions"]:
            kept.write(json.dumps(_answer(cli, question)) + "\n")
            kept.flush()


def _answer(cli: Any, question: dict[str, Any]) -> dict[str, Any]:
    """Exit code, class of the error and what is printed, of one question in a child."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        child = os.fork()
        if not child:
            _in_child(cli, question, out.fileno(), error.fileno())
        _, status = os.waitpid(child, 0)
        for stream in (out, error):
            stream.seek(0)
        printed, kind = out.read().decode(errors="replace"), error.read().decode()
    code = os.waitstatus_to_exitcode(status)
    return {"code": code, "error": kind, "answer": _parsed(printed)}


def _in_child(cli: Any, question: dict[str, Any], out: int, error: int) -> None:
    """Run the question and leave; ``error`` gets the class of what is raised."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))  # SIGXCPU, then SIGKILL
    os.dup2(out, 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    code = 0
    try:
        if question["python"]:
            sys.stdout.write(json.dumps(_evaluated(question["python"]), default=str))
        else:
            known = cli.refusal

            def noted(raised: Exception) -> Any:
                os.write(error, type(raised).__name__.encode())
                return known(raised)

            cli.refusal = noted
            sys.argv = ["inferplan", *_words(question["words"])]
            cli.main()
        sys.stdout.flush()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    except Exception as raised:
        os.write(error, type(raised).__name__.encode())
        code = getattr(raised, "exit_code", 1)
    finally:
        os._exit(code)


def _words(words: list[str]) -> list[str]:
    return words if words[0] in _WITHOUT_FORMAT else [*words, "--format", "json"]


def _evaluated(text: str) -> Any:
    inferplan = import_module("inferplan")
    found = eval(text, {name: getattr(inferplan, name) for name in inferplan.__all__})
    return found.to_dict() if hasattr(found, "to_dict") else found


def _parsed(printed: str) -> Any:
    """JSON as values, anything else as lines."""
    try:
        return json.loads(printed)
    except ValueError:
        return printed.splitlines()


if __name__ == "__main__":
    main(*sys.argv[1:])
