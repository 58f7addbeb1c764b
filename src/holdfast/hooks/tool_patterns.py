"""Owns tool patterns: which tool calls need a person's approval.

A pattern is ``Tool`` or ``Tool(words)``, where ``*`` stands for any text. The words match anywhere in a shell
command, with any options between them; text that only the shell knows matches every word, because one question
too many costs less than one too few. A pattern is a net and not a sandbox: what another program does with its
input is not seen.
"""

from __future__ import annotations

import os.path
import re

from holdfast.hooks.shell_words import (
    COMPOUND,
    OPENING,
    SOME,
    WORDS,
    NotUnderstood,
    is_assignment,
    read_commands,
)

TYPE_CHECKING = False  # importing typing would take a third of the time that the gate needs to start
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LONGEST = 1000

_PATTERN = re.compile(r"(?P<tool>[\w*][\w*.:-]*)(?:\((?P<words>.+)\))?", re.DOTALL)
#: the argument that the words are about, for tools whose other arguments are whole texts
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
#: what a shell turns into a space, or into a word of its own
_EXPANDED = re.compile(r"\$\{?IFS\}?|[{},]")
#: what a shell reads as one word, whatever spaces are in it
_ONE_WORD = re.compile(r"\"[^\"]*\"|'[^']*'|`[^`]*`|\$\([^()]*\)|\\\s")
_OPERATOR = re.compile(r"([|;&<>])")
_SPACE_BETWEEN_OPERATOR_AND_STAR = re.compile(r"(?<=[|;&<>]) (?=\*)|(?<=\*) (?=[|;&<>])")
_SPACES = re.compile(r"\s+")

#: programs that never run their arguments: text that the shell puts into their words is not a command
_HARMLESS = (
    "[ base64 basename bat black cat cd chmod chown clear cmp column comm cp curl cut date declare df diff"
    " dirname du echo eslint exit export expr file fmt fold grep egrep fgrep gunzip gzip head id install jq"
    " kill less let ln local ls mkdir mktemp more mv mypy od paste ping popd prettier printenv printf ps"
    " pushd pwd read readlink readonly realpath return rm rmdir ruff seq set sha256sum shasum shift sleep"
    " stat strings tac tail tee test touch tr tree true false tsc type typeset uname uniq unset unzip wait"
    " wc wget whereis which whoami yq zcat"
)
#: programs that run a command only with certain arguments, or from a program in their own language
_VERSATILE = "awk fd gawk gh git mawk node pytest python python3 rg sed sort split tar zip"
_TO_RUN = (
    "-I -T -TT -X -c -e -x --checkpoint-action --compress-program --eval --exec --exec-batch --filter --pre"
    " --print --to-command --unzip-command --use-compress-program"
    " bisect difftool filter-branch mergetool rebase submodule"
)
_RUN_NOTHING, _RUN_SOMETIMES = frozenset(_HARMLESS.split()), frozenset(_VERSATILE.split())
_RUN_WITH = frozenset(_TO_RUN.split())
#: they run the command that follows them as it stands there
_PASS_ON = frozenset(("builtin", "command", "env", "exec", "nice", "nohup", "setsid", "sudo", "timeout"))
#: they read shell commands, from an argument or from their input
_BUILT_IN = (".", "eval", "source")
_SHELLS = frozenset(
    (*_BUILT_IN, "ash", "bash", "busybox", "csh", "dash", "fish", "ksh", "sh", "ssh", "su", "tcsh", "zsh")
)
_NO_FILE = ("/dev/", "/proc/")
_FIND_RUNS = ("-exec", "-execdir", "-ok", "-okdir")
_OWN_WORDS = frozenset((*COMPOUND, "}", "done", "esac", "fi"))
_DURATION = re.compile(r"[\d.]+[smhd]?")
#: in a quoted word that a program may read as a command of its own
_SPECIAL = re.compile(r"[\\'\"`$|;&<>()*?\[]|\{(?!\})")
_DEEPEST = 4
_MOST_PREFIXES = 9
_ATOM = re.compile(r"[^ *]+")
_LONGEST_MARKED_WORD = 4096


def read_pattern(pattern: str) -> tuple[str, str | None]:
    """The tool, and the words if there are any. ValueError, with the reason, for a text that is no pattern."""
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
    """Whether the call needs approval. ValueError for a text that is no pattern."""
    glob, words = read_pattern(pattern)
    if not _fits(glob, tool):
        return False
    if words is None:
        return True
    if words.endswith(":*"):  # Claude Code's spelling of a prefix
        words = words[:-2] + "*"
    if _SUBJECTS.get(tool) in _PATHS:
        words = _path_words(words)
    subjects = _subjects(tool, arguments)
    if subjects is None or any(_occurs(words, text) for text in subjects):
        return True
    command = arguments.get("command")
    return isinstance(command, str) and _SUBJECTS.get(tool) in ("command", None) and _may_run(words, command)


def _fits(glob: str, tool: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, glob.split("*"))), tool, re.DOTALL) is not None


def _path_words(words: str) -> str:
    """Claude Code's spellings of a path, as words that are found anywhere in an absolute path."""
    if words.startswith("//"):
        words = words[1:]
    words = os.path.expanduser(words).removeprefix("./")
    while words.startswith("**/"):
        words = words[3:]
    return words.replace("**/", "*")  # a star also stands for any number of folders


def _subjects(tool: str, arguments: Mapping[str, object]) -> list[str] | None:
    """The texts that the words are looked for in. None if they are unknown: then every pattern matches."""
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
    """The ways in which a shell may read the text: quotes that join, quotes that begin a command of its own, words
    that it splits, and words that it keeps together."""
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


# --- what a shell may make of a command ---


def _may_run(words: str, command: str) -> bool:
    """Whether the shell may run a command with these words. True if the command is not plainly understood."""
    glob = _spaced(_QUOTES.sub("", words))
    atoms = _atoms(glob)
    read: list[str] = []
    try:
        for each, operator in read_commands(command):
            read += [*_as_run(atoms, each, depth=0), operator]
    except NotUnderstood:
        return True
    # a word with spaces in it may be read as several words, or be one value of an option
    texts = " ".join(read), " ".join(_SPACES.sub("_", word) for word in read)
    return any(_found(glob, _SPACES.sub(" ", text)) for text in texts)


def _as_run(atoms: list[str], command: list[str], depth: int) -> list[str]:
    """The words of a command that patterns are compared with. NotUnderstood if only the shell knows them."""
    if depth > _MOST_PREFIXES:
        raise NotUnderstood
    at = 0
    while at < len(command) and (command[at] in OPENING or is_assignment(command[at])):
        at += 1
    words = command[at:]
    if not words or words[0] in _OWN_WORDS:
        return [_unmarked(word) for word in command]
    name = _name(words[0])
    if name in _PASS_ON and len(words) > 1 and not words[1].startswith("-"):
        passed_on = words[2:] if name == "timeout" and _DURATION.fullmatch(words[1]) else words[1:]
        return [name, *_as_run(atoms, passed_on, depth + 1)]
    if name == "xargs":
        at = 1
        while at < len(words) and (
            words[at].startswith("-") or words[at].isdigit() or words[at] in ("{}", "%")
        ):
            at += 1
        return [name, *_as_run(atoms, [*words[at:], WORDS], depth + 1)] if words[at:] else [name]
    if name == "find":
        return _as_found(atoms, words, depth)
    if not atoms[0].startswith("*") and _runs_nothing(name, atoms[0].rstrip("*"), words[1:]):
        is_named = _fit_together(name, atoms[0])
        if is_named:
            return [name, *_with_marks_replaced(["", *atoms[1:]], words[1:])]
        return [_unmarked(word) for word in words]
    return [*_read_again(atoms, words, depth), *_with_marks_replaced(atoms, words)]


def _runs_nothing(name: str, wanted: str, words: list[str]) -> bool:
    """Whether the program runs neither a program that is ``wanted`` nor one that only the shell knows."""
    if name not in _RUN_SOMETIMES:
        return name in _RUN_NOTHING
    is_marked = any(SOME in word or WORDS in word for word in words)
    hands_on = any(word.partition("=")[0] in _RUN_WITH for word in words)
    return not any(wanted in word for word in words) and not (is_marked and hands_on)


def _name(word: str) -> str:
    """The name of the program. NotUnderstood if only the shell knows it."""
    name = word.rpartition("/")[2]
    if WORDS in word or SOME in name or name in ("alias", "hash", "enable"):
        raise NotUnderstood
    return name


def _as_found(atoms: list[str], words: list[str], depth: int) -> list[str]:
    """The commands that find runs, with the names of files in them."""
    texts = [_unmarked(word) for word in words]
    for at, word in enumerate(words):
        if word in _FIND_RUNS:
            end = next((n for n in range(at, len(words)) if words[n] in (";", "+")), len(words))
            inner = [part.replace("{}", SOME) for part in words[at + 1 : end]]
            texts += ["\n", *_as_run(atoms, inner, depth + 1)]
    if any(WORDS in word for word in words):  # it may be one of these options
        texts += _with_marks_replaced(atoms, words)
    return texts


def _read_again(atoms: list[str], words: list[str], depth: int) -> list[str]:
    """The commands in the words of a program that may run them: one word, or all of them together."""
    for at, word in enumerate(words):
        if word.rpartition("/")[2] in _SHELLS and (word not in _BUILT_IN or at == 0):
            _require_plain_program(words[at:])
    texts: list[str] = []
    rest = words[1:]
    for text in (*rest, " ".join(rest)):
        if _SPECIAL.search(text):
            if SOME in text or WORDS in text or depth >= _DEEPEST:
                raise NotUnderstood
            for command, operator in read_commands(text, depth + 1):
                texts += [*_as_run(atoms, command, depth + 1), operator]
    return texts


def _require_plain_program(words: list[str]) -> None:
    """NotUnderstood for a shell whose program is not in its arguments or in a file, or is not known."""
    options = [word for word in words[1:] if word.startswith(("-", "+"))]
    operands = [word for word in words[1:] if not word.startswith(("-", "+"))]
    has_program = any("c" in option for option in options if not option.startswith("--"))
    reads_input = not has_program and any(
        "s" in o or "o" in o.lower() for o in options if not o.startswith("--")
    )
    needed = 2 if words[0].endswith("ssh") else 1
    if any(SOME in word or WORDS in word for word in words) or len(operands) < needed or reads_input:
        raise NotUnderstood
    if operands[0].startswith(_NO_FILE):
        raise NotUnderstood


def _with_marks_replaced(atoms: list[str], words: list[str]) -> list[str]:
    """A word that only the shell knows is read as every word of the pattern that it can be."""
    texts: list[str] = []
    for word in words:
        if SOME in word or WORDS in word:
            forms = [[atoms[0], f"*/{atoms[0]}"], *([atom] for atom in atoms[1:])]
            known = WORDS not in word and len(word) <= _LONGEST_MARKED_WORD
            texts += [
                form[0].strip("*")
                for form in forms
                if not known or any(_fit_together(word, glob) for glob in form)
            ]
        texts.append(_unmarked(word))
    return texts


def _unmarked(word: str) -> str:
    return word.replace(SOME, "").replace(WORDS, "")


def _atoms(glob: str) -> list[str]:
    """The pattern's words, each with a star where more may follow or come before."""
    atoms = [
        f"{'*' if glob[: found.start()].endswith('*') else ''}{found[0]}"
        f"{'*' if glob.startswith('*', found.end()) else ''}"
        for found in _ATOM.finditer(glob)
    ]
    return atoms or ["*"]


def _fit_together(word: str, glob: str) -> bool:
    """Is there a text that is both: the word, whatever its marks stand for, and one of the pattern?"""
    places = _with_stars_passed({0}, glob)
    for char in word:
        if not places:
            return False
        if char == SOME:
            places = set(range(min(places), len(glob) + 1))
        else:
            on = {at + 1 for at in places if glob[at : at + 1] == char}
            places = _with_stars_passed(on | {at for at in places if glob[at : at + 1] == "*"}, glob)
    return len(glob) in places


def _with_stars_passed(places: set[int], glob: str) -> set[int]:
    for at in sorted(places):
        behind = at
        while glob[behind : behind + 1] == "*":
            behind += 1
            places.add(behind)
    return places
