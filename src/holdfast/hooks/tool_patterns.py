"""Owns tool patterns: which tool calls wait for a person.

``Tool`` or ``Tool(words)``, where ``*`` stands for anything. The words of a shell command count wherever they
stand in it, options may stand between them, because it is cheaper to be asked once too often. It is a net
and not a sandbox: a command that is put together while it runs goes through.
"""

from __future__ import annotations

import os.path
import re

TYPE_CHECKING = False  # typing itself would be a third of what the gate needs to start
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LONGEST = 1000

_PATTERN = re.compile(r"(?P<tool>[\w*][\w*.:-]*)(?:\((?P<words>.+)\))?", re.DOTALL)
#: what the words are about, for tools whose other arguments are whole texts
_SUBJECTS = {
    "Bash": "command",
    "Edit": "file_path",
    "NotebookEdit": "notebook_path",
    "Read": "file_path",
    "WebFetch": "url",
    "Write": "file_path",
}
_PATHS = ("file_path", "notebook_path")
_CONTINUED = re.compile(r"\\\r?\n")
_QUOTES = re.compile(r"[\"'\\]")
#: what a shell makes a space of, or a word of its own
_EXPANDED = re.compile(r"\$\{?IFS\}?|[{},]")
#: what a shell reads as one word, whatever spaces are in it
_ONE_WORD = re.compile(r"\"[^\"]*\"|'[^']*'|`[^`]*`|\$\([^()]*\)|\\\s")
_OPERATOR = re.compile(r"([|;&<>])")
_SPACE_BETWEEN_OPERATOR_AND_STAR = re.compile(r"(?<=[|;&<>]) (?=\*)|(?<=\*) (?=[|;&<>])")
_SPACES = re.compile(r"\s+")


def read_pattern(pattern: str) -> tuple[str, str | None]:
    """The tool, and the words if there are any. ValueError, with what is wrong."""
    if len(pattern) > LONGEST:
        raise ValueError(f"is longer than {LONGEST} characters")
    found = _PATTERN.fullmatch(pattern)
    if found is None:
        raise ValueError(f"{pattern[:60]!r} is neither Tool nor Tool(words)")
    tool, words = found.groups()
    if words is not None and not words.strip():
        raise ValueError(f"{pattern[:60]!r} has no words")
    if words is not None and words.startswith("domain:"):
        raise ValueError(
            f"{pattern[:60]!r}: write the address itself, such as WebFetch(https://example.com/*)"
        )
    return tool, words


def matches(pattern: str, tool: str, arguments: Mapping[str, object]) -> bool:
    """ValueError for what is no pattern."""
    glob, words = read_pattern(pattern)
    if not _fits(glob, tool):
        return False
    if words is None:
        return True
    if words.endswith(":*"):  # as Claude Code writes a beginning
        words = words[:-2] + "*"
    if _SUBJECTS.get(tool) in _PATHS:
        words = _path_words(words)
    subjects = _subjects(tool, arguments)
    return subjects is None or any(_occurs(words, text) for text in subjects)


def _fits(glob: str, tool: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, glob.split("*"))), tool, re.DOTALL) is not None


def _path_words(words: str) -> str:
    """As Claude Code writes paths, in words that are found at any place of an absolute path."""
    if words.startswith("//"):
        words = words[1:]
    words = os.path.expanduser(words).removeprefix("./")
    while words.startswith("**/"):
        words = words[3:]
    return words.replace("**/", "*")  # a star stands for folders, too, and for none


def _subjects(tool: str, arguments: Mapping[str, object]) -> list[str] | None:
    """None if what the tool is about cannot be told: then it may be anything."""
    subject = _SUBJECTS.get(tool)
    if subject is None:
        return list(_texts(arguments))
    value = arguments.get(subject)
    if not isinstance(value, str):
        return None
    return [value] if subject == "command" else [value, os.path.normpath(os.path.expanduser(value))]


def _texts(value: object) -> Iterator[str]:
    rest = [value]
    while rest:
        match rest.pop():
            case str(text):
                yield text
            case dict(fields):
                rest += [*fields.keys(), *fields.values()]
            case list(items):
                rest += items
            case bool() | int() | float() as plain:
                yield str(plain)


def _occurs(words: str, text: str) -> bool:
    return any(_found(glob, form) for glob, form in zip(_forms(words), _forms(text), strict=True))


def _forms(text: str) -> tuple[str, ...]:
    """As a shell may read it: quotes that join, quotes that begin a command of its own, words it takes apart,
    and words that it keeps together."""
    text = _CONTINUED.sub("", text)
    joined, parted = _QUOTES.sub("", text), _QUOTES.sub(" ", text)
    whole = _QUOTES.sub("", _ONE_WORD.sub(lambda word: _SPACES.sub("_", word[0]), text))
    return tuple(map(_spaced, (joined, parted, _EXPANDED.sub(" ", joined), whole)))


def _spaced(text: str) -> str:
    return _SPACES.sub(" ", _OPERATOR.sub(r" \1 ", text)).strip()


def _found(glob: str, text: str) -> bool:
    """The pieces between the stars, in this order, from the beginning of a word to the end of one."""
    first, *rest = _SPACE_BETWEEN_OPERATOR_AND_STAR.sub("", glob).split("*")
    at = _place(first, text, 0, begins=True, ends=not rest)
    for number, piece in enumerate(rest, start=1):
        if at is None:
            return False
        at = _place(piece, text, at, begins=False, ends=number == len(rest))
    return at is not None


def _place(piece: str, text: str, start: int, *, begins: bool, ends: bool) -> int | None:
    """Where the first such piece ends. The earliest one leaves the most room for what follows."""
    if not piece:
        return start
    if " " in piece:
        return _place_words(piece.split(" "), text, start, begins=begins, ends=ends)
    at = text.find(piece, start)
    while at >= 0:
        behind = at + len(piece)
        if not (begins and _splits_a_word(text, at)) and not (ends and _splits_a_word(text, behind)):
            return behind
        at = text.find(piece, at + 1)
    return None


def _place_words(words: list[str], text: str, start: int, *, begins: bool, ends: bool) -> int | None:
    """The same for several words, with any options between them, each with a value or without.

    All ways to read the text are followed at once, in one pass: bit n of ``due`` says that word n may be next,
    of ``valued`` that the value of an option may be.
    """
    first, *inner, last = words
    places: dict[str, int] = {}
    for number, word in enumerate(inner, start=1):
        places[word] = places.get(word, 0) | 1 << number
    due = valued = 0
    for at, token in _tokens(text, start):
        if due >> len(inner) + 1 and token.startswith(last):
            behind = at + len(last)
            if not (ends and _splits_a_word(text, behind)):
                return behind
        placed = (due & places.get(token, 0)) << 1
        due, valued = (due | placed, due) if token.startswith("-") else (valued | placed, 0)
        if token.endswith(first) and not (begins and _splits_a_word(text, at + len(token) - len(first))):
            due |= 1 << 1
    return None


def _tokens(text: str, start: int) -> Iterator[tuple[int, str]]:
    """From start on, each with its place."""
    while (end := text.find(" ", start)) >= 0:
        yield start, text[start:end]
        start = end + 1
    yield start, text[start:]


def _splits_a_word(text: str, at: int) -> bool:
    return 0 < at < len(text) and _is_of_a_word(text[at - 1]) and _is_of_a_word(text[at])


def _is_of_a_word(character: str) -> bool:
    return character.isalnum() or character in "_-"
