"""Phrases that no reader should meet, and what to write instead: ``python -m tools.words [PATH...]``, the reading
grade of the pages (``--grades``) and their length (``--count``).

Read are the texts that the program shows (help, labels, notes, errors, the page and the report) and the prose of the
documentation. Every hit is printed with the words to write in its place; the exit code is 1 where there is one.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LONGEST = 40
"""Words of a sentence."""
_WRITTEN_BY_TOOLS = ("cpu", "devices", "encoders", "parts", "percentiles", "scale-out")
GENERATED = {"cli", "combinations", "notebook", "accuracy", *(f"accuracy-{one}" for one in _WRITTEN_BY_TOOLS)}
"""Pages that a program writes: docs/generate_*.py and tools/accuracy."""


class Rule(NamedTuple):
    """A fault. pattern: what to look for, in text with single blanks. write: what to write instead. why: the reason."""

    pattern: str
    write: str
    why: str


_TIME = "(?:second|minute|hour|day|week|month|year)"
_PART = (
    "(?:GPU|device|accelerator|rank|node|machine|replica|pod|instance|user|person|request|session|call|token|prompt"
    "|answer|sample|sequence|step|pass|round|layer|head|element|row|group|column|tensor|mask|draw|turn|slot|adapter"
    "|bill|class|model|kind|stage|file|GB|kWh|MHz|SM)"
)
_COUNTED = (
    r"(?:\w*tokens?|requests?|calls|sessions|bytes|elements|bits|FLOPs?|steps|rounds|watts|joules|grams|cost|costs|bill"
    "|energy|price|USD|EUR|[kMGT]?B|[kM]?W|[kM]?J|g|kg|CO2|GPUs|replicas|users|people|slots|weights|KV|cache|rows|blocks"
    r"|lines?|times|once|\w+/s|seconds|hits|drafts|failures|layers|experts|nodes)"
)

RULES: tuple[Rule, ...] = (
    Rule(rf"\b(?:a|an) {_TIME} and (?:a |an )?{_PART}\b", "per second per user", "'and' joins two units"),
    Rule(rf"\b(?:a|an) {_PART} and (?:a |an )?{_PART}\b", "per token per device", "'and' joins two units"),
    Rule(
        rf"(?!sessions a day)\b{_COUNTED} (?:a|an) (?:{_TIME}|{_PART})\b"
        r"(?! (?:that|is|are|has|holds?|takes?|sends?|gets?|can|of)\b)",
        "tokens per second",
        "a rate or a share has 'per' ('sessions a day' is an option's name)",
    ),
    Rule(r"\b(?:a|one) million (?:input|output) tokens\b", "per million output tokens", "a rate has 'per'"),
    Rule(r"\bG (?:parameters|weights)\b", "8.03B parameters", "a billion is B in this field"),
    Rule(r"\bbeside (?:it|them|him|that|which|so)\b|\bBeside it\b", "next to, with, in addition to", "beside what?"),
    Rule(
        r"\b(?:is|are) given (?:at most |up to )?[\d{]\S* (?!times)",
        "loaded to 80% of its capacity",
        "who gives what to whom?",
    ),
    Rule(r"\bgiven to it\b", "load: 68% of capacity", "who gives what to whom?"),
    Rule(r"\bholds the word\b", "Filter accelerators", "a label names what is typed"),
    Rule(r"\broom for [0{]", "26.1 GB short; nothing left for the KV cache", "say how much is missing"),
    Rule(r"\ba day of\b", "24 h, profile day.csv", "a day of what?"),
    Rule(r"\bwhatever (?:they are|it is)\b", "not checked against the limits", "say what is not done"),
    Rule(r"\bthe nearer to\b", "the closest match", "word order"),
    Rule(r"\blose from\b", "slower than no drafts above batch 140", "lose what?"),
    Rule(r"\bas (\w+) as it is\b", "say it once", "a circle"),
    Rule(r"\b(?:bill|energy|all of it) on them\b", "counting input as free", "what is on what?"),
    Rule(r"(?:^|[.:;] )Of (?!course\b|these\b|the \d)\w+[^.;:]*\bnothing\b", "No ... is", "subject first"),
    Rule(
        r"(?:^|[.] )Of (?:a|an|the|its|each|it|them|random|lengths|images)\b(?! \d)",
        "Seed of lengths, Bandwidth of the link",
        "name the thing first",
    ),
    Rule(r"\b(?:those|that) of\b[^.;:]*\b(?:those|that) of\b", "repeat the noun", "two pronouns in a row"),
    Rule(
        r"(?<!there )(?<!There )\b(?:is|are) no (?:number|name|[A-Z]{3,}|time|share|price|load|rate|size|length|text"
        r"|such|file|log|plan|model|trace|profile|object|count|quantity|anchor|kernel|step|change|division|engine|device)\b"
        r"(?! of)",
        "is not a number",
        "English denies the verb",
    ),
    Rule(
        r"\b(?:is|are) of (?:a|an|the|one|all|no|several|some|what|replicas|people|sessions|requests|adapters|agents"
        r"|GPUs)\b",
        "belongs to, applies to, needs, covers",
        "'is of' says too little",
    ),
    Rule(
        r"\band (?:none|nothing|nobody) (?:does|do|is|has|share|thinks|drafts|name)\b",
        "and there is none; and it is missing",
        "say what is missing",
    ),
    Rule(
        r"\b[Nn]obody (?:says|sells|thinks|knows|waits|asks|states|publishes|has)\b",
        "is not stated, is not known",
        "no person is meant",
    ),
    Rule(r"\bso many\b", "the number, or: that many", "how many?"),
    Rule(r"\b[Aa]new\b", "again, from the start", "a word of books"),
    Rule(r"(?<!deal )\bdear(?:er|est)?\b", "costs more", "a word of letters"),
    Rule(r"\bheeds?\b", "follows, obeys", "a word of books"),
    Rule(r"\b(?:is|are) to be \w+ed\b", "must be, test whether", "who has to do it?"),
    Rule(r"\bin the mean\b(?! of)", "on average", "German: im Mittel"),
    Rule(r"\b(?:of|as|than|over|beyond) what (?:it|they|is|are)\b", "name the thing", "a bare relative clause"),
    Rule(r"\bWhere to\.", "File to write", "a help text names what is given"),
    Rule(r"\btakes? (?:it|them|every \w+) to (?!be|the)\w+", "assumes", "German: nimmt an"),
)
"""What is wrong in any text that a user reads."""


class Hit(NamedTuple):
    """A fault found. where: path and line. found: the words. rule: what is broken."""

    where: str
    found: str
    rule: Rule

    def __str__(self) -> str:
        return f"{self.where}: '{self.found}': {self.rule.why}; write: {self.rule.write}"


class Text(NamedTuple):
    """Words that a user reads. path, line: where they begin."""

    path: Path
    line: int
    words: str


_LONG = Rule("", f"two sentences of at most {LONGEST} words", "a long sentence")
_END = re.compile(r"(?<=[.!?;])\s+(?=[A-Z`*\[\"'({-])|(?<=[;:])\s+|\n\s*\n")
_FOUND = [(rule, re.compile(rule.pattern)) for rule in RULES]


def faults(text: Text) -> Iterator[Hit]:
    """Every rule that a text breaks, where it does."""
    words = re.sub(r"\s+", " ", text.words)
    place = f"{_shown(text.path)}:{text.line}"
    for rule, pattern in _FOUND:
        for found in pattern.finditer(words):
            yield Hit(place, found[0], rule)
    for sentence in _END.split(text.words):
        if len(re.findall(r"[A-Za-z][\w'-]*", sentence)) > LONGEST and sentence.count(",") < 12:
            yield Hit(place, " ".join(sentence.split()[:8]) + " ...", _LONG)


def program() -> Iterator[Text]:
    """The texts that the program shows: strings in its Python, in the page and in the report."""
    for path in sorted((ROOT / "inferplan").rglob("*.py")):
        yield from _strings(path)
    for path in sorted((ROOT / "inferplan" / "web" / "static").glob("*.js")):
        yield from _script(path)
    for path in sorted([*(ROOT / "inferplan").rglob("*.html"), *(ROOT / "inferplan").rglob("*.j2")]):
        yield from _markup(path)


def pages() -> Iterator[Text]:
    """The prose of the documentation: not its code, not the reference that is made of the help."""
    written = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    for path in sorted(written):
        if path.name not in ("cli.md", "combinations.md"):
            yield from _prose(path)


def _strings(path: Path) -> Iterator[Text]:
    """Strings of a module with several words, and the docstrings that are the help of commands."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    silent = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            decorated = getattr(node, "decorator_list", [])
            helps = any(re.search(r"\bcommand\b|\bgroup\b", ast.unparse(one)) for one in decorated)
            for part in node.body:
                if isinstance(part, ast.Expr) and not (helps and part is node.body[0]):
                    silent.add(part.value)
    yield from _shown_strings(path, tree, silent)


def _shown_strings(path: Path, node: ast.AST, silent: set[ast.expr]) -> Iterator[Text]:
    if node in silent:
        return
    if isinstance(node, ast.JoinedStr):
        parts = [str(one.value) if isinstance(one, ast.Constant) else "{}" for one in node.values]
        yield from _told(path, node.lineno, "".join(parts))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from _told(path, node.lineno, node.value.partition("Example:")[0])
        return
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.JoinedStr) and isinstance(child, ast.Constant)):
            yield from _shown_strings(path, child, silent)


def _told(path: Path, line: int, words: str) -> Iterator[Text]:
    """A string as a text, if it is one: words with blanks between them, and no pattern."""
    if " " in words.strip() and not _CODE.search(words):
        yield Text(path, line, words)


_CODE = re.compile(r"\(\?[:P<=!]|\\[bdsw]|\w \| \w|^\s*(?:[a-z]+\s+){30}")
"""Patterns of texts, and lists of words, which nobody reads."""
_SCRIPT = re.compile(
    r"//[^\n]*|/\*.*?\*/|(?<=[(=,:?|&] )/(?:[^/\\\n[]|\\.|\[[^\]\n]*\])+/|(?<=[(!])/(?:[^/\\\n[]|\\.|\[[^\]\n]*\])+/"
    r"|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`",
    re.DOTALL,
)
"""Comments and patterns, which begin with a slash, and strings."""


def _script(path: Path) -> Iterator[Text]:
    """Strings of a script of the page."""
    text = path.read_text(encoding="utf-8")
    for found in _SCRIPT.finditer(text):
        if found[0][0] != "/":
            line = text[: found.start()].count("\n") + 1
            yield from _told(path, line, re.sub(r"\$\{[^{}]*\}", "{}", found[0][1:-1]))


def _markup(path: Path) -> Iterator[Text]:
    """Text between tags, without what a template fills in."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(
        r"<(style|script)\b.*?</\1>|\{[%#].*?[%#]\}", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL
    )
    for found in re.finditer(r">([^<>]+)<|(?:title|placeholder|aria-label|content)=\"([^\"]+)\"", text):
        line = text[: found.start()].count("\n") + 1
        yield from _told(path, line, re.sub(r"\{\{.*?\}\}", "{}", found[1] or found[2], flags=re.DOTALL))


_BLOCK = re.compile(r"^(`{3,}).*?^\1`*[ \t]*$|<!--.*?-->|\$\$.*?\$\$|^    +\S[^\n]*$", re.MULTILINE | re.DOTALL)
"""Blocks of code and of formulas, and comments."""


def _prose(path: Path) -> Iterator[Text]:
    """Paragraphs, items and cells of a page, without code, formulas and addresses."""
    text = path.read_text(encoding="utf-8")
    text = _BLOCK.sub(lambda m: "\n" * m[0].count("\n"), text)
    text = re.sub(r"`[^`]*`", lambda m: "X" + "\n" * m[0].count("\n"), text)
    text = re.sub(r"\]\([^)\s]*\)", "]", text)
    text = re.sub(r"<table.*?</table>|<[^<>\n]+>", " ", text)
    line = 1
    for part in re.split(r"(\n(?=\s*\n|\s*[-*] |\s*\d+\. |\||#)|(?<=[^|\n])\|)", text):
        if re.search(r"[A-Za-z]{2}", part):
            yield Text(path, line + len(part) - len(part.lstrip("\n")), part.strip(" \n|"))
        line += part.count("\n")


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def counts() -> Iterator[str]:
    """Words per page that people write, and their sum. A word stands between blanks and has a letter or a digit; tables
    and code within a line count, blocks of code, comments and the tables that a tool writes between two do not."""
    table = re.compile(r"<!-- (\w+) -->.*?<!-- /\1 -->", re.DOTALL)
    found = []
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        if path.stem not in GENERATED:
            words = _BLOCK.sub("", table.sub("", path.read_text(encoding="utf-8"))).split()
            found.append((sum(bool(re.search(r"\w", word)) for word in words), _shown(path)))
    for count, page in sorted(found, reverse=True):
        yield f"{count:7,} words  {page}"
    yield f"{sum(count for count, _ in found):7,} words  all {len(found)} pages that people write"


def grades() -> Iterator[str]:
    """The reading grade of each page (Flesch and Kincaid, by textstat) and of the program; an item or a cell of a table
    counts as a sentence, of more than four words. Raises ``SystemExit`` without textstat, which is no requirement of
    ours: it installs a top-level package ``tests``."""
    try:
        textstat = import_module("textstat")
    except ModuleNotFoundError:
        raise SystemExit("--grades needs textstat: pip install textstat, in an environment of its own") from None
    texts: dict[str, list[str]] = {}
    for text in pages():
        texts.setdefault(_shown(text.path), []).append(text.words)
    texts["the program"] = [text.words for text in program()]
    found = []
    for path, said in texts.items():
        whole = " ".join(words.rstrip(".") + "." for words in said if len(words.split()) > 4)
        found.append((textstat.flesch_kincaid_grade(whole), len(whole.split()), path))
    for grade, count, path in sorted(found, reverse=True):
        yield f"{grade:5.1f} {count:7,} words  {path}"
    words = sum(count for _, count, _ in found)
    yield f"{sum(grade * count for grade, count, _ in found) / words:5.1f} {words:7,} words  all, by words"


def main() -> int:
    """Print the hits and their number; 1 where there are any."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("path", nargs="*", help="only hits whose path begins so")
    options.add_argument("--grades", action="store_true", help="the reading grade of each page instead")
    options.add_argument("--count", action="store_true", help="the words of each page that people write instead")
    asked = options.parse_args()
    if asked.count:
        print("\n".join(counts()))
        return 0
    if asked.grades:
        print("\n".join(grades()))
        return 0
    hits = [hit for text in (*program(), *pages()) for hit in faults(text)]
    hits = [hit for hit in hits if not asked.path or hit.where.startswith(tuple(asked.path))]
    for hit in hits:
        print(hit)
    print(f"words: {len(hits)} faults in what the program says and in the pages")
    return int(bool(hits))


if __name__ == "__main__":
    sys.exit(main())
