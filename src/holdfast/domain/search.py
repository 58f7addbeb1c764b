"""Owns searching: how a text is folded into words, what a search asks for and finds, and the snippet around a match."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import Final

from holdfast.clock import Instant
from holdfast.domain.events import EventKind
from holdfast.domain.ids import SessionId
from holdfast.domain.inputs import check_text, check_whole
from holdfast.domain.records import record
from holdfast.domain.redaction import Json
from holdfast.errors import InvalidInput

#: of each result of a tool; what follows is not found
RESULT_CHARACTERS: Final = 16 * 1024
#: of the words that a person gives
MOST_CHARACTERS: Final = 1000
MOST_WORDS: Final = 32
#: sessions that one search finds
MOST_HITS: Final = 100

# --- folding: the same words for a text and for a search, on every engine ---

# compiled when they are used: every program that opens a store imports this module, and few of them search

#: longer ones are hashes and encoded bytes, which nobody types
_LONGEST_WORD: Final = 128
_ASCII: Final = bytes(ord(chr(n).lower()) if n < 128 and chr(n).isalnum() else 32 for n in range(256))
_LONG: Final = f"(?<![^ ])[^ ]{{{_LONGEST_WORD + 1},}}"
_COLOURS: Final = r"\x1b\[[0-9;:?]*[A-Za-z]"
_ACCENTS: Final = "[\u0300-\u036f]"
_SEPARATORS: Final = r"[\W_]"
# these scripts write no spaces between words: each sign is a word of its own
_IDEOGRAPHS: Final = "[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"


def fold(text: str) -> str:
    """The words of a text: lower case, without accents, with a space in the place of everything else.

    So the parts of ``src/app/parser.py`` and of ``snake_case`` are words, and the whole is a phrase of them. Changing
    what this returns makes every index of words wrong: a migration must then empty the index.
    """
    folded = _folded(text)
    return re.sub(_LONG, " ", folded) if _has_long_word(folded) else folded


def _has_long_word(folded: str) -> bool:
    """Looks at few characters, where the pattern would stop at each word."""
    start, last = 0, len(folded) - _LONGEST_WORD
    while start < last:
        space = folded.rfind(" ", start, start + _LONGEST_WORD + 1)
        if space < 0:
            return True
        start = space + 1
    return False


def _folded(text: str) -> str:
    text = _plain(text)
    if text.isascii():
        return text.encode("ascii").translate(_ASCII).decode("ascii")
    import unicodedata  # most texts are ASCII

    plain = re.sub(_ACCENTS, "", unicodedata.normalize("NFKD", text).casefold())
    plain = re.sub(_IDEOGRAPHS, r" \g<0> ", unicodedata.normalize("NFC", plain))
    return re.sub(_SEPARATORS, " ", plain)


def _plain(text: str) -> str:
    """Without the colours of a terminal, whose letters would be parts of words; every other character keeps its place."""
    return re.sub(_COLOURS, lambda found: " " * len(found.group()), text) if "\x1b" in text else text


def read_phrases(words: str) -> tuple[str, ...]:
    """What a person looks for: each word, or the phrase that its parts make. Nothing in it is syntax.

    Raises InvalidInput if there is nothing to look for, or too much.
    """
    check_text("words", words, limit=MOST_CHARACTERS)
    folded = (" ".join(fold(word).split()) for word in words.split())
    phrases = tuple(dict.fromkeys(filter(None, folded)))
    if not phrases:
        raise InvalidInput("words", "has no letters or digits to look for")
    if len(phrases) > MOST_WORDS:
        raise InvalidInput("words", f"are {len(phrases)}; the limit is {MOST_WORDS}")
    return phrases


# --- what is asked and found ---


@record
class SearchRequest:
    words: str  #: turns that have all of them are found; if none has, those that have some
    agent: str | None = None
    provider: str | None = None
    project: str | None = None  #: a directory: only sessions of that project and of directories below it
    since: Instant | None = None  #: only turns that ended then or later
    limit: int = 20  #: sessions, at most ``MOST_HITS``

    def check(self) -> tuple[str, ...]:
        """The phrases to look for; InvalidInput."""
        check_whole("limit", self.limit, lowest=1)
        if self.limit > MOST_HITS:
            raise InvalidInput("limit", f"must be at most {MOST_HITS}")
        return read_phrases(self.words)


class FoundIn(StrEnum):
    """The part of a turn that a snippet is from."""

    PROMPT = "prompt"
    ANSWER = "answer"  #: any text of the agent
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"


@record
class Snippet:
    """A piece of a text on one line. ``marks`` are the places in ``text`` that match, each a start and an end."""

    text: str
    marks: tuple[tuple[int, int], ...]

    def pieces(self) -> Iterator[tuple[str, bool]]:
        """The text in order, each piece with whether it is a match."""
        place = 0
        for start, end in self.marks:
            yield self.text[place:start], False
            yield self.text[start:end], True
            place = end
        yield self.text[place:], False


@record
class SearchHit:
    """A session, with the turn of it that fits best."""

    session_id: SessionId
    agent: str
    name: str | None
    purpose: str  #: its beginning
    provider: str  #: of the turn
    is_closed: bool
    directory: str | None  #: where its agent worked last, or else its project
    turn: int
    at: Instant  #: when the turn ended, or began if it is open
    turns: int  #: of this session, as far as they were ranked
    found_in: FoundIn
    snippet: Snippet

    def continue_with(self, here: str | None = None) -> str:
        """The command that continues the session from the directory ``here``. A closed session is continued by a fork."""
        called = self.session_id if self.name is None else shlex.quote(self.name)
        command = f'holdfast {"fork" if self.is_closed else "resume"} {called} "..."'
        if self.directory in (None, here):
            return command
        return f"cd {shlex.quote(self.directory)} && {command}"


@record
class SearchPage:
    hits: tuple[SearchHit, ...]  #: the best first; among equals the newest first
    more: bool  #: there are more sessions than were asked for
    all_words: bool  #: False: no turn has all the words, and those found have some of them
    pending: int  #: turns whose words are not in the index yet: they were not searched


# --- the words of events ---


def words_of_event(kind: EventKind, data: Mapping[str, Json]) -> tuple[FoundIn, str] | None:
    """What is searched of an event, and the part of the turn that it belongs to; None: nothing is searched."""
    match kind:
        case EventKind.TOOL_CALL:
            return FoundIn.TOOL_CALL, " ".join([str(data.get("tool", "")), *_values(data.get("arguments"))])
        case EventKind.TOOL_RESULT:
            return FoundIn.TOOL_RESULT, str(data.get("output", ""))[:RESULT_CHARACTERS]
        case EventKind.TEXT:
            return FoundIn.ANSWER, str(data.get("text", ""))
        case EventKind.USAGE | EventKind.NOTICE:
            return None


def _values(arguments: Json) -> Iterator[str]:
    """The values in the arguments of a call. Their names are the same in every call."""
    waiting = [arguments]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += reversed([*value.values()])
        elif isinstance(value, list | tuple):
            waiting += reversed(value)
        elif value is not None and not isinstance(value, bool):
            yield str(value)


# --- snippets ---

_WIDTH: Final = 160
_BEFORE: Final = 40
#: matches of a text that are looked at for the best place, and characters of a text that is not ASCII
_MOST_MATCHES: Final = 200
_MOST_MAPPED: Final = 256 * 1024
_SPACES: Final = r"\s+"


class Highlighter:
    """Finds the best place of a turn for a snippet: where the most of the phrases stand together."""

    def __init__(self, phrases: Sequence[str]) -> None:
        self._count = len(phrases)
        # the longest first: a phrase may begin with another one
        ordered = sorted(phrases, key=len, reverse=True)
        patterns = ("(" + " {1,200}".join(map(re.escape, phrase.split())) + ")" for phrase in ordered)
        self._pattern = re.compile(f"(?<![^ ])(?:{'|'.join(patterns)})(?![^ ])")

    def best(self, parts: Iterable[tuple[FoundIn, str]]) -> tuple[FoundIn, Snippet]:
        """Of the parts of one turn, the first of which is not empty; reads no further than it must."""
        chosen: tuple[FoundIn, str, list[_Match]] | None = None
        for part, text in parts:
            found = self._window(text)
            if chosen is None or _variety(found) > _variety(chosen[2]):
                chosen = part, text, found
            if _variety(chosen[2]) == self._count:
                break
        if chosen is None:
            return FoundIn.PROMPT, Snippet("", ())
        part, text, found = chosen
        return part, _cut(text, found)

    def _window(self, text: str) -> list[_Match]:
        """The matches that fit into one snippet, where they are the most different ones."""
        matches = list(islice(self._matches(text), _MOST_MATCHES))
        best: list[_Match] = []
        for first, (start, _, _) in enumerate(matches):
            near = [match for match in matches[first:] if match[1] <= start + _WIDTH - _BEFORE]
            if _variety(near) > _variety(best):
                best = near
        return best or matches[:1]

    def _matches(self, text: str) -> Iterator[_Match]:
        if text.isascii():
            for found in self._pattern.finditer(_folded(text)):
                yield found.start(), found.end(), found.lastindex or 0
            return
        folded, places = _mapped(_plain(text[:_MOST_MAPPED]))
        for found in self._pattern.finditer(folded):
            yield places[found.start()], places[found.end() - 1] + 1, found.lastindex or 0


#: start, end, and which phrase
_Match = tuple[int, int, int]


def _variety(matches: Sequence[_Match]) -> int:
    return len({which for _, _, which in matches})


def _mapped(text: str) -> tuple[str, list[int]]:
    """A folded text, and for each of its characters the place in the text that it is from."""
    known: dict[str, str] = {}
    folded: list[str] = []
    places: list[int] = []
    for place, character in enumerate(text):
        if character not in known:
            known[character] = _folded(character) if character.isascii() else _folded_alone(character)
        folded.append(known[character])
        places += [place] * len(known[character])
    return "".join(folded), places


def _folded_alone(character: str) -> str:
    """An accent of its own disappears, as in ``fold``; it is no separator."""
    return "" if re.fullmatch(_ACCENTS, character) else _folded(character)


def _cut(text: str, matches: Sequence[_Match]) -> Snippet:
    first = matches[0][0] if matches else 0
    start = max(0, first - _BEFORE)
    end = min(len(text), start + _WIDTH)
    if start and (space := text.find(" ", start, first)) >= 0:
        start = space + 1
    if (
        end < len(text)
        and (space := text.rfind(" ", max([start, *(match[1] for match in matches)]), end)) > 0
    ):
        end = space
    made, marks, place = "…" if start else "", [], start
    for begin, stop, _ in matches:
        stop = min(stop, end)
        if begin >= stop:
            break
        made = _joined(made, text[place:begin])
        marked = len(made)
        made = _joined(made, text[begin:stop])
        marks.append((marked, len(made)))
        place = stop
    made = _joined(made, text[place:end]).rstrip()
    return Snippet(f"{made}…" if end < len(text) else made, tuple(marks))


def _joined(made: str, more: str) -> str:
    """On one line; no spaces at the beginning."""
    plain = re.sub(_SPACES, " ", more)
    return made + (plain.lstrip() if made in ("", "…") else plain)
