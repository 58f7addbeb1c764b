"""Owns which arguments of an agent's own program are passed on: never one that Holdfast decides, and by default only harmless ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Final

from holdfast.domain.records import record
from holdfast.errors import InvalidInput

_FIELD: Final = "provider arguments"


class Takes(Enum):
    NOTHING = "nothing"
    ONE = "one"
    MAYBE_ONE = "maybe one"
    SEVERAL = "several"


@record
class Option:
    """An option that Holdfast knows: how many values it takes, and whether it can widen what the agent may do."""

    takes: Takes = Takes.NOTHING
    is_harmless: bool = True
    #: with these values, or these keys of a ``key=value``, the option is harmless even if it is not otherwise
    harmless_values: frozenset[str] = frozenset()


FLAG: Final = Option()
VALUE: Final = Option(Takes.ONE)
MAYBE: Final = Option(Takes.MAYBE_ONE)
VALUES: Final = Option(Takes.SEVERAL)
WIDER_FLAG: Final = Option(is_harmless=False)
WIDER_VALUE: Final = Option(Takes.ONE, is_harmless=False)
WIDER_VALUES: Final = Option(Takes.SEVERAL, is_harmless=False)


class Instead:
    """What to use instead of an option that Holdfast decides, in words that all providers share."""

    RESUME: Final = "use holdfast resume ID"
    FORK: Final = "use holdfast fork ID"
    FORK_AT: Final = "use holdfast fork ID --at TURN"
    SESSION_ID: Final = "use holdfast run --provider-session-id ID"
    OPEN: Final = "use holdfast open ID"
    OUTPUT: Final = "Holdfast reads the output itself; use --json or --json-stream of holdfast run"
    PROMPT: Final = "the prompt is the argument of holdfast run"
    MODEL: Final = "use holdfast run --model MODEL"
    MODE: Final = "use holdfast run --permission-mode MODE"
    TOOLS: Final = "use holdfast run --allow-tool TOOL"
    FOLDERS: Final = "use holdfast run --add-dir DIR"
    WORK_DIR: Final = "use holdfast run --cwd DIR"
    SAVED: Final = "a session that is not saved cannot be resumed"
    FOREGROUND: Final = "Holdfast runs the agent in this process group and waits for it"
    NOT_A_TURN: Final = "that is not a turn; run the agent's own program"


@record
class ArgumentRules:
    """An option in neither table counts as one that widens rights, and its value must be tied to it (``--option=VALUE``)."""

    owned: Mapping[str, str]  #: each with what to use instead; ``-c key`` is the key of a ``-c key=value``
    known: Mapping[str, Option]

    def check(self, arguments: Sequence[str], *, allow_wider: bool) -> None:
        """Raises InvalidInput for the first argument that is owned, cannot be read, or widens more than is allowed."""
        for name in self._wider(arguments):
            if not allow_wider:
                problem = f"{name} may widen what the agent may do; --allow-wider-rights accepts that"
                raise InvalidInput(_FIELD, problem, argument=name)

    def refuse(self, arguments: Sequence[str], decided: Sequence[str]) -> None:
        """Raises InvalidInput for the first owned argument that has one of these texts as what to use instead.

        For the agent's own program in front of a person, which may get all other arguments.
        """
        for word in arguments:
            name = word.partition("=")[0]
            if self.owned.get(name) in decided:
                problem = f"{name} is decided by Holdfast: to continue a session, use holdfast open ID"
                raise InvalidInput(_FIELD, problem, argument=name)

    def _wider(self, arguments: Sequence[str]) -> Iterator[str]:
        left = list(reversed(arguments))
        while left:
            word = left.pop()
            if word.startswith("--") and word != "--":
                yield from self._long(word, left)
            elif word.startswith("-") and word not in ("-", "--"):
                yield from self._short(word, left)
            else:
                raise self._alone(word)

    def _long(self, word: str, left: list[str]) -> Iterator[str]:
        name, tied, value = word.partition("=")
        self._refuse_owned(name)
        option = self.known.get(name)
        if option is None or (tied and option.takes is Takes.NOTHING):  # such as --sandbox=false
            yield name
        else:
            yield from self._with_value(name, option, value if tied else None, left)

    def _short(self, word: str, left: list[str]) -> Iterator[str]:
        """Several letters may stand together; what follows a letter that takes a value is its value."""
        for at, letter in enumerate(word[1:], 2):
            name, rest = f"-{letter}", word[at:]
            self._refuse_owned(name)
            option = self.known.get(name)
            if option is None:
                yield name
            else:
                tied = rest.removeprefix("=") if rest and option.takes is not Takes.NOTHING else None
                yield from self._with_value(name, option, tied, left)
                if option.takes is not Takes.NOTHING:
                    return

    def _with_value(self, name: str, option: Option, tied: str | None, left: list[str]) -> Iterator[str]:
        values = [] if tied is None else [tied]
        if tied is None and option.takes is not Takes.NOTHING:
            while left and self._is_value(left[-1]) and (not values or option.takes is Takes.SEVERAL):
                values.append(left.pop())
        if not values and option.takes in (Takes.ONE, Takes.SEVERAL):
            raise InvalidInput(_FIELD, f"{name} needs a value; write {name}=VALUE", argument=name)
        keys = {_key(value) for value in values}
        for key in keys & {owned.partition(" ")[2] for owned in self.owned if owned.startswith(f"{name} ")}:
            raise self._decided(f"{name} {key}")
        if not option.is_harmless and not (keys and keys <= option.harmless_values):
            yield name

    def _is_value(self, word: str) -> bool:
        """Not tied with ``=``: some programs take a word with a dash for an option, and a command's name for the command."""
        return not word.startswith("-") and word not in self.owned

    def _refuse_owned(self, name: str) -> None:
        if name in self.owned:
            raise self._decided(name)
        for owned in self.owned:
            if self._means(name, owned):
                raise self._decided(owned)

    def _decided(self, owned: str) -> InvalidInput:
        return InvalidInput(_FIELD, f"{owned} is decided by Holdfast: {self.owned[owned]}", argument=owned)

    def _means(self, name: str, owned: str) -> bool:
        """Is ``name`` another spelling: ``--sessionId``, ``--no-session``, ``--session.x``, or the beginning of the name?"""
        if name in self.known or not (name.startswith("--") and owned.startswith("--")):
            return False
        plain = _plain(name)
        return any(_plain(owned).startswith(one) for one in (plain, plain.removeprefix("no")) if one)

    def _alone(self, word: str) -> InvalidInput:
        self._refuse_owned(word)
        shown = word if len(word) <= 40 else f"{word[:40]}…"
        problem = "stands alone: the agent would take it for its prompt or a command; write --option=VALUE"
        return InvalidInput(_FIELD, f"{shown!r} {problem}")


def _key(value: str) -> str:
    return value.partition("=")[0].strip().strip("'\"")


def _plain(name: str) -> str:
    return name.partition(".")[0].replace("-", "").replace("_", "").lower()
