"""Who may ask: whoever has the token of the server, or the link that it signed for a person."""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import pbkdf2_hmac, sha256
from secrets import token_urlsafe
from urllib.parse import quote

from inferplan.errors import UsageError

LEAST = 16
"""Characters of a token that a user gives."""
_SALT = b"inferplan web --person"
_ROUNDS = 600_000
"""As OWASP's cheat sheet on storing passwords asks of PBKDF2 with SHA-256 (2023)."""
_OWN = re.compile(r"[A-Za-z0-9_~-]+")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")


@dataclass(frozen=True, kw_only=True)
class Keys:
    """token: of the server itself; ``None`` lets everybody ask. people: whose links are signed with it."""

    token: str | None = field(default_factory=lambda: token_urlsafe(24))
    people: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises ``UsageError`` for a token that is too short or cannot stand in a link, and for names that cannot."""
        if self.token is not None and (len(self.token) < LEAST or not _OWN.fullmatch(self.token)):
            because = f"it needs {LEAST} or more letters, digits, '-', '_' or '~'"
            raise UsageError("the token cannot be used", because=because, hint="leave --token out for a random one")
        for name in self.people:
            if not _NAME.fullmatch(name):
                because = "a name has 1 to 40 letters, digits, '-' or '_'"
                raise UsageError(f"--person {name!r} is not a name", because=because, hint="--person ada")
        if twice := [name for name in self.people if self.people.count(name) > 1]:
            raise UsageError(f"--person {twice[0]!r} stands there twice", hint="a name for each person")
        if self.people and self.token is None:
            raise UsageError("--person and --no-token", because="links are signed with the token", hint="leave one out")

    def link(self, address: str, person: str = "") -> str:
        """The address that opens the page for a person, or for whoever holds the server's own token."""
        return address if self.token is None else f"{address}?token={quote(self.signed(person))}"

    def signed(self, person: str = "") -> str:
        """The token of a person: the name, and its HMAC-SHA-256 (RFC 2104) under a key made of the server's own, in
        hexadecimals."""
        assert self.token is not None
        if not person:
            return self.token
        return f"{person}.{hmac.new(self._key, person.encode(), sha256).hexdigest()}"

    @cached_property
    def _key(self) -> bytes:
        """PBKDF2 (RFC 8018) of the token: whoever has one person's link guesses the token slowly."""
        assert self.token is not None
        return pbkdf2_hmac("sha256", self.token.encode(), _SALT, _ROUNDS)

    def holder(self, token: str) -> str | None:
        """Whose token it is: a person's name, "" for the server's own and where none is asked for; ``None`` for no
        token of this server. One of a name that the server was not started with is none.
        """
        if self.token is None:
            return ""
        person = token.partition(".")[0] if "." in token else ""
        if person and person not in self.people:
            return None
        same = hmac.compare_digest(token.encode("utf-8", "replace"), self.signed(person).encode())
        return person if same else None
