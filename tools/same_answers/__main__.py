"""The questions to a commit and to the working tree: ``python -m tools.same_answers BASE``.

Exit code 1 where an answer differs; the places are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

from tools.same_answers.compare import differences
from tools.same_answers.questions import FILES, Question, questions

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "same-answers"
_SHOWN = 4
WRITTEN = "plan.json"
"""The file that one question writes and others read."""
NOT_ANSWERED = -signal.SIGXCPU
"""The exit code of a question that ran out of its CPU time (``CPU_SECONDS`` in ask.py)."""


def main() -> int:
    read = argparse.ArgumentParser(prog="python -m tools.same_answers", description=__doc__)
    read.add_argument("base", help="a commit")
    read.add_argument("--only", default="", help="the questions that hold this text")
    given = read.parse_args()
    asked = [question for question in questions() if given.only in question.text]
    if any(WRITTEN in question.text for question in asked):
        asked = [question for question in questions() if given.only in question.text or WRITTEN in question.text]
    commit = _git("rev-parse", f"{given.base}^{{commit}}")
    base = _checkout(commit)
    return _told(asked, *_both(asked, base, base.with_suffix(".jsonl")))


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _checkout(commit: str) -> Path:
    """The commit's files in a folder of their own."""
    KEPT.mkdir(parents=True, exist_ok=True)
    folder = KEPT / commit
    if not folder.is_dir():
        packed = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
        with tempfile.TemporaryDirectory(dir=KEPT) as part:
            subprocess.run(["tar", "-x", "-C", part], input=packed, check=True)
            Path(part).rename(folder)
            Path(part).mkdir()  # the folder that is cleared away
    return folder


def _both(asked: list[Question], base: Path, known: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Answers of the base and of the working tree, asked at the same time; ``known`` keeps those of the base."""
    lines = [json.loads(line) for line in known.read_text().splitlines()] if known.exists() else []
    old = {line["key"]: line["answer"] for line in lines}
    keys = [_key(question) for question in asked]
    unknown = {key: question for key, question in zip(keys, asked) if key not in old}
    shares = _shares(asked) if not unknown else [list(range(len(asked)))]
    with tempfile.TemporaryDirectory() as folder:
        running = [
            _started(Path(folder) / f"here{index}", ROOT, [asked[place] for place in share])
            for index, share in enumerate(shares)
        ]
        if unknown:
            running.append(_started(Path(folder) / "base", base, list(unknown.values())))
        found = [_finished(*one) for one in running]
    if unknown:
        old |= dict(zip(unknown, found.pop()))
        known.write_text("".join(json.dumps({"key": key, "answer": answer}) + "\n" for key, answer in old.items()))
    new = {place: answer for share, answers in zip(shares, found) for place, answer in zip(share, answers)}
    return [old[key] for key in keys], [new[place] for place in range(len(asked))]


def _shares(asked: list[Question]) -> list[list[int]]:
    """Which questions each of two processes asks, in order: those that write or read a file of theirs stay in one."""
    shares: list[list[int]] = [[], []]
    for place, question in enumerate(asked):
        shares[0 if WRITTEN in question.text else place % 2].append(place)
    return shares


def _key(question: Question) -> str:
    """A question and the files that it may read, in a few letters."""
    return sha256(json.dumps([FILES, vars(question)], sort_keys=True).encode()).hexdigest()[:16]


def _started(folder: Path, root: Path, asked: list[Question]) -> tuple[Path, subprocess.Popen[bytes]]:
    """A process that asks the checkout at ``root``, and where its answers will stand."""
    folder.mkdir()
    listed, answers = folder / "questions.json", folder / "answers.jsonl"
    listed.write_text(json.dumps({"files": FILES, "questions": [vars(question) for question in asked]}))
    command = [sys.executable, str(Path(__file__).with_name("ask.py")), str(listed), str(answers)]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONSAFEPATH": "1", "OPENBLAS_NUM_THREADS": "1"}
    return answers, subprocess.Popen(command, env=environment)


def _finished(answers: Path, process: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
    if process.wait():
        sys.exit("a checkout could not be asked: its message is above")
    return [json.loads(line) for line in answers.read_text().splitlines()]


def _told(asked: list[Question], old: list[dict[str, Any]], new: list[dict[str, Any]]) -> int:
    """Print each question whose answers differ, with the first places where they do."""
    differing = 0
    for question, before, after in zip(asked, old, new, strict=True):
        in_time = NOT_ANSWERED not in (before["code"], after["code"])
        found = list(differences(before, after)) if in_time else []
        if found:
            differing += 1
            print(question.text)
            for path, one, other in found[:_SHOWN]:
                print(f"    {path}: {_short(one)} -> {_short(other)}")
            if len(found) > _SHOWN:
                print(f"    and {len(found) - _SHOWN} more places")
    late = sum(NOT_ANSWERED in (before["code"], after["code"]) for before, after in zip(old, new, strict=True))
    codes = ", ".join(f"{count} exit {code}" for code, count in sorted(Counter(one["code"] for one in new).items()))
    print(f"{len(asked)} questions ({codes}): {len(asked) - differing} equal, {differing} differ")
    if late:
        print(f"{late} took more than the CPU time of a question on one side or on both, and say nothing")
    return int(differing > 0)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 90 else f"{text[:87]}..."


if __name__ == "__main__":
    sys.exit(main())
