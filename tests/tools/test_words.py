"""The linter of words: every sentence that a reader stumbled over is found, its better form is not."""

from __future__ import annotations

from pathlib import Path

from tests.cases import for_each
from tools import words

WORSE_AND_BETTER = [
    ("output tokens a second and user", "output tokens per second per user"),
    ("KV a token and device", "KV per token per device"),
    ("55,246 USD a month", "55,246 USD per month"),
    ("8.030 G parameters", "8.03B parameters"),
    ("Accelerator holds the word", "Filter accelerators"),
    ("Beside it", "Alternatives"),
    ("a replica is given 80% of its capacity", "each replica is loaded to 80% of its capacity"),
    ("a million output tokens, whole bill on them", "per million output tokens, counting input as free"),
    ("the cache pool is -26.11 GB, room for 0", "26.1 GB short; nothing left for the KV cache"),
    ("llama-3.1-8b: a day of day", "llama-3.1-8b: 24 h, profile day"),
    ("kernel by kernel the nearer to what the engine runs prices", "the closest match is used for each kernel"),
    ("they lose from batch 140", "slower than no drafts above batch 140"),
    ("`--spare` replicas are added, whatever they are worth", "spares are not checked against the limits"),
    ("Of a trace with hashes the closed form takes nothing as found", "Prefix hits of traces are only simulated"),
    ("the closed form takes every user to wait at all times", "users are assumed to send the next request at once"),
    ("--count is of sessions of agents", "--count needs sessions of agents"),
    ("'x' is no number", "'x' is not a number"),
    ("nobody says how many there are", "the number of people is missing"),
    ("layers of the first so many", "layers of this many first ones"),
]


def found(text: str) -> list[str]:
    return [str(hit) for hit in words.faults(words.Text(Path("x.md"), 1, text))]


@for_each(("worse", "better"), WORSE_AND_BETTER)
def test_known_faults_are_found_and_their_cures_are_not(worse: str, better: str) -> None:
    assert found(worse) and found(better) == []


@for_each(
    "text",
    [
        "the requests a GPU holds at once",
        "there is no number of replicas between 3 and 2",
        "--sessions-a-day counts sessions a day",
        "of course it is",
    ],
)
def test_plain_english_passes(text: str) -> None:
    assert found(text) == []


def test_a_sentence_is_forty_words_at_most() -> None:
    assert found("word " * 40 + ".") == [] and len(found("word " * 41 + ".")) == 1


def test_texts_are_read_where_people_meet_them(tmp_path: Path) -> None:
    """Help and messages of Python, strings of a script, prose of a page; no code, comments or other docstrings."""
    module = tmp_path / "a.py"
    module.write_text(
        '"""So many."""\nimport click\n\n@click.command()\ndef run():\n    """One help. Example: inferplan so many"""\n'
        '    # so many words\n    raise ValueError(f"tokens a {1} second " "in all")\n'
    )
    assert [(text.line, text.words) for text in words._strings(module)] == [
        (6, "One help. "),
        (8, "tokens a {} second in all"),
    ]
    script = tmp_path / "a.js"
    script.write_text("// so many words\nconst a = `one ${b} two`; const c = /\"x y\"/.test(d); say('three four');\n")
    assert [text.words for text in words._script(script)] == ["one {} two", "three four"]
    page = tmp_path / "a.md"
    page.write_text(
        "# A title\n\nSome `so many` words\nand [more](so.md).\n\n```text\nso many\n```\n\n| a cell | b cell |\n"
    )
    assert [(text.line, text.words) for text in words._prose(page)] == [
        (1, "# A title"),
        (3, "Some X words\nand [more]."),
        (10, "a cell"),
        (10, "b cell"),
    ]
