"""What the fields of a model were read from, and so how far its counts can be trusted."""

import re
from typing import Any, Literal, Self

from inferplan.spec import Field, Spec, model_validator

Trust = Literal["checkpoint", "config", "report", "page", "tensors", "traced", "name", "unknown"]
"""From the surest: the tensors of the checkpoint were compared; its config was read; a printed description was; its hub
page alone is behind the fields; names and shapes of its tensors tell its layers; its code was run on meta tensors; its
formats are read from its name; nobody says.
"""
ASSUMED = "assumed: "
"""How a note begins of sizes that nobody stated: every screen shows it."""
_GITHUB = re.compile(r"https://(?:github|huggingface)\.(?:com|co)/([^/]+/[^/]+)/(?:blob|raw)/([0-9a-f]{7})[0-9a-f]*/")
_RELEASE = re.compile(r"https://pypi\.org/project/([^/]+)/([^/#]+)/#")


class MadeFrom(Spec):
    """What the fields of a model were read from: a file, else a printed description, else the page of its release.

    file: the URL of the config at a commit or within a released package, or a path. sha256: of the bytes of that file,
    where they were at hand. of: the checkpoint that the file or description is of, where the model is another with the
    same fields. report: a paper, a card or a table; where: the place in it. page: the release on the hub, whose printed
    size is all that was compared. tensors: shapes or elements of the checkpoint's tensors were compared as well, and
    are equal. told: its layers are told from names and shapes of its tensors. named: the layout, where the name alone
    states it. traced: what was run to read its config.
    """

    file: str = ""
    sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    of: str = ""
    report: str = ""
    where: str = ""
    page: str = ""
    tensors: bool = False
    told: bool = False
    named: str = ""
    traced: str = ""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if sum(map(bool, (self.file, self.report, self.page))) > 1:
            raise ValueError("a model is made from a file, from a report or from a page, and one of them is named")
        if (self.sha256 and not self.file) or (self.where and not self.report):
            raise ValueError("sha256 is that of a file, and where a place in a report")
        return self

    @property
    def trust(self) -> Trust:
        """How far its counts can be trusted."""
        if self.traced:
            return "traced"
        if self.told:
            return "tensors"
        if self.named:
            return "name"
        if self.tensors:
            return "checkpoint"
        if self.file:
            return "config"
        return "report" if self.report else "page" if self.page else "unknown"

    @property
    def line(self) -> str:
        """The same in words, for a reader of figures: one line."""
        said = self._read()
        if self.traced:
            return f"model sizes: traced: {self.traced}"
        if self.told:
            return "model sizes: every stored byte; its layers are told from names and shapes of its tensors"
        if self.named:
            return f"model sizes: {said}; stored as its name says, {self.named}; its config would say exactly"
        if self.tensors:
            return f"model sizes: equal to the tensors of the checkpoint; {said}"
        return f"model sizes: {said}"

    def of_another(self, name: str) -> Self:
        """That of a model with other sizes, which was made of the one with this."""
        return self.model_copy(update={"of": self.of or name, "tensors": False})

    def to_dict(self) -> dict[str, Any]:
        """Its fields as far as they are stated, with ``trust`` and the ``line``, as JSON holds them."""
        return {"trust": self.trust, "line": self.line, **self.model_dump(exclude_defaults=True)}

    def _read(self) -> str:
        if self.file:
            return f"read from {f'the config of {self.of}' if self.of else 'its config'} ({_short(self.file)})"
        if self.report:
            of, where = (f" of {self.of}" if self.of else ""), (f", {self.where}" if self.where else "")
            return f"as printed{of} in {_short(self.report)}{where}"
        if self.page:
            return f"neither a config nor a table states them, only {self.page}"
        return "nothing says what they were read from"


def _short(place: str) -> str:
    """A file as a reader recognises it: repository and commit, package and release, or the path itself."""
    if found := _GITHUB.match(place):
        return f"{found[1]}@{found[2]}"
    if found := _RELEASE.match(place):
        return f"{found[1]} {found[2]}"
    return place
