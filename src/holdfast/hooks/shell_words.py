"""Owns reading a shell command as words. It never guesses: NotUnderstood for everything that is not plain.

Quotes, escapes, redirections and here-documents are removed; commands inside ``$(…)``, backticks and ``<(…)``
are commands of their own. Text that only the shell knows (variables, substitutions, globs, braces) becomes a
mark in its word. The text is read in one pass.
"""

from __future__ import annotations

import re

#: a mark in a word: some characters that only the shell knows
SOME = "\x00"
#: a mark in a word: any characters, also spaces that make several words of it
WORDS = "\x01"
#: words behind which a command begins
OPENING = frozenset(("if", "then", "elif", "else", "while", "until", "do", "!", "{", "time"))
#: words that begin a compound command, which has words of its own
COMPOUND = frozenset(("for", "select", "case", "[["))
#: levels of substitutions inside of substitutions, and of commands inside of quoted ones
_DEEPEST = 10

_PLAIN = re.compile(r"[^\s\\'\"`$|;&<>(){}*?\[#=]+")
_IN_DOUBLE_QUOTES = re.compile(r"[^\\\"`$]+")
#: a shell separates words by these only; other spaces of Unicode are parts of words
_BLANKS = re.compile(r"[ \t]+")
_LINE = re.compile(r"[^\n]*")
_CONTINUED = re.compile(r"(?:\\\n)+")
_PARAMETER = re.compile(r"\w+|[@*#?$!-]")
_ANSI_QUOTED = re.compile(r"\$'(?:[^'\\]|\\.)*'", re.DOTALL)
_BACKTICKS = re.compile(r"`((?:[^`\\]|\\.)*)`", re.DOTALL)
_ESCAPED_IN_BACKTICKS = re.compile(r"\\([$`\\])")
_ARITHMETIC = re.compile(r"\$\(\([\w\s+*/%<>=-]*\)\)")
_REDIRECTION = re.compile(r"<<<|<<-|<<|<>|<&|>&|>>|>\||&>>|&>|<|>")
_DESCRIPTOR = re.compile(rf"\d+|{WORDS}\w+\}}")
_ASSIGNMENT = re.compile(r"\w+(?:\[[^]]*\])?\+?=", re.DOTALL)


class NotUnderstood(Exception):
    """The shell may make anything of this text."""


def read_commands(text: str, depth: int = 0) -> list[tuple[list[str], str]]:
    """The words of each command, and the operator behind it. NotUnderstood if any part is not plain.

    A command inside of another one's word comes before that one.
    """
    if SOME in text or WORDS in text:
        raise NotUnderstood
    reader = _Reader(text, depth)
    reader.read_script(is_inner=False)
    return reader.commands


def is_assignment(word: str) -> bool:
    return _ASSIGNMENT.match(word) is not None


class _Reader:
    def __init__(self, text: str, depth: int) -> None:
        self._text = text
        self._at = 0
        self._depth = depth
        self._go_deeper(0)
        self.commands: list[tuple[list[str], str]] = []
        self._words: list[str] = []
        self._parts: list[str] | None = None  #: of the word that is being read; None between words
        self._is_quoted = False
        self._expects_keyword = True  #: the next word may be one, as the first of a command or behind ``if``
        self._is_in_test = False  #: between ``[[`` and ``]]``, which read operators in their own way
        self._redirection: str | None = None  #: whose target is the next word
        self._documents: list[tuple[str, bool, bool]] = []  #: last line, is it quoted, drop tabs

    def read_script(self, *, is_inner: bool) -> None:  # noqa: C901 - one branch for each kind of character
        """To the end of the text, or to the parenthesis that closes a substitution."""
        open_parentheses = cases = 0
        text, size = self._text, len(self._text)
        while self._at < size:
            char = text[self._at]
            if (plain := _PLAIN.match(text, self._at)) is not None:
                self._add(plain[0])
                self._at = plain.end()
            elif char == "\n":
                self._end_command(char)
                self._at += 1
                self._read_documents()
            elif (blanks := _BLANKS.match(text, self._at)) is not None:
                self._end_word()
                self._at = blanks.end()
            elif char == "#" and self._parts is None:
                self._at += len(_LINE.match(text, self._at)[0])  # type: ignore[index] # it fits everything
            elif char in ";|&<>()" and self._is_in_test:
                self._end_word()
                self._at += 1
            elif char == "(":
                self._begin_parenthesis()
                open_parentheses += 1
            elif char == ")":
                self._end_word()
                cases += self._words[:1] == ["case"]
                self._at += 1
                if open_parentheses:
                    open_parentheses -= 1
                elif cases:
                    self._words = []  # what is compared, and not run
                elif is_inner:
                    self._end_command(char)
                    return
                else:
                    raise NotUnderstood
                self._end_command(char)
            elif char in "<>" or text.startswith("&>", self._at):
                self._read_redirection()
            elif char in ";|&":
                self._end_command(char)
                self._at += 1
            else:
                self._read_special(char)
        self._end_command("\n")
        if is_inner or open_parentheses or self._documents:
            raise NotUnderstood

    def _go_deeper(self, levels: int = 1) -> None:
        self._depth += levels
        if self._depth > _DEEPEST:
            raise NotUnderstood

    # --- words ---

    def _add(self, part: str) -> None:
        if self._parts is None:
            self._parts = []
        self._parts.append(part)

    def _end_word(self) -> None:
        if self._parts is None:
            return
        word, is_quoted, redirection = "".join(self._parts), self._is_quoted, self._redirection
        self._parts, self._is_quoted, self._redirection = None, False, None
        if redirection is None:
            if word in ("function", "coproc") and all(before in OPENING for before in self._words):
                raise NotUnderstood
            self._words.append(word)
            self._expects_keyword = self._expects_keyword and word in OPENING and not is_quoted
            self._is_in_test = self._is_in_test and (word != "]]" or is_quoted)
        elif redirection in ("<<", "<<-"):
            if SOME in word or WORDS in word:
                raise NotUnderstood
            self._documents.append((word, is_quoted, redirection == "<<-"))

    def _end_command(self, operator: str) -> None:
        self._end_word()
        if self._redirection is not None:
            raise NotUnderstood
        self.commands.append((self._words, operator))
        self._words, self._expects_keyword, self._is_in_test = [], True, False

    def _begin_test(self) -> None:
        """Behind an assignment or a redirection shells differ; behind a program ``[[`` is an argument."""
        if self._expects_keyword:
            self._is_in_test = True
        elif all(w in OPENING or is_assignment(w) for w in self._words):
            raise NotUnderstood

    def _begin_parenthesis(self) -> None:
        """A subshell, or the values of an array. NotUnderstood for a function, or a glob of some shells."""
        is_array = self._parts is not None and self._parts[-1] == "="
        self._end_word()
        before = [word for word in self._words if word not in OPENING]
        if self._redirection is not None or (before and not is_array and before[0] not in COMPOUND):
            raise NotUnderstood
        self._end_command("(")
        self._at += 1

    def _read_special(self, char: str) -> None:  # noqa: C901 - one branch for each kind of character
        text, at = self._text, self._at
        begins_word = self._parts is None
        self._at += 1
        if char == "\\":
            self._read_escape(at)
        elif char == "'":
            end = text.find("'", at + 1)
            if end < 0:
                raise NotUnderstood
            self._add(text[at + 1 : end])
            self._is_quoted, self._at = True, end + 1
        elif char == '"':
            self._add("")
            self._is_quoted = True
            self._read_quoted(to_the_end=False)
        elif char in "$`":
            self._at = at
            self._read_expansion(is_quoted=False)
        elif begins_word and (alone := next((w for w in ("[[", "[", "{") if self._is_word(w, at)), "")):
            if alone == "[[":
                self._begin_test()
            self._add(alone)
            self._at = at + len(alone)
        elif char == "{" and not text.startswith("{}", at):
            self._add(WORDS)
        elif char in "*?[" or (char == "=" and begins_word):  # some shells make a program's path of =word
            self._add(SOME)
        elif char.isspace():
            raise NotUnderstood  # a blank to some programs, and a part of a word to others
        else:
            self._add(char)

    def _is_word(self, word: str, at: int) -> bool:
        behind = self._text[at + len(word) : at + len(word) + 1]
        return self._text.startswith(word, at) and behind in ("", " ", "\t", "\n")

    def _read_escape(self, at: int) -> None:
        text = self._text
        continued = _CONTINUED.match(text, at)
        if continued is None:
            if at + 1 == len(text):
                raise NotUnderstood
            self._add(text[at + 1])
            self._is_quoted, self._at = True, at + 2
            return
        self._at = continued.end()
        before, behind = text[max(0, at - 1) : at], text[self._at : self._at + 1]
        if before == "$" or (before in ("&", "<", ">") and behind in ("&", "<", ">", "(", "|", "-")):
            raise NotUnderstood  # one operator over two lines

    def _read_quoted(self, *, to_the_end: bool) -> None:
        """The text in double quotes, or in a here-document."""
        text = self._text
        while self._at < len(text):
            if (plain := _IN_DOUBLE_QUOTES.match(text, self._at)) is not None:
                self._add(plain[0])
                self._at = plain.end()
                continue
            char, behind = text[self._at], text[self._at + 1 : self._at + 2]
            if char == "\\":
                is_escape = behind and behind in '$`"\\\n'
                self._add(behind.strip("\n") if is_escape else char + behind)
                self._at += 2
            elif char != '"':
                self._read_expansion(is_quoted=True)
            else:
                self._at += 1
                if not to_the_end:
                    return
                self._add(char)
        if not to_the_end:
            raise NotUnderstood

    # --- what the shell puts in ---

    def _read_expansion(self, *, is_quoted: bool) -> None:
        """At a dollar or a backtick."""
        text, at = self._text, self._at
        part = SOME if is_quoted else WORDS
        if text[at] == "`":
            found = _match(_BACKTICKS, text, at)
            self.commands += read_commands(_ESCAPED_IN_BACKTICKS.sub(r"\1", found[1]), self._depth + 1)
            self._at = found.end()
        elif (number := _ARITHMETIC.match(text, at)) is not None:
            part, self._at = "0", number.end()
        elif text.startswith("$(", at):
            self._at = at + 2
            self._read_inner_script()
        elif text.startswith("${", at):
            self._at = at + 2
            part = WORDS if self._read_braces() else part
        elif text.startswith("$'", at) and not is_quoted:
            part, self._at = SOME, _match(_ANSI_QUOTED, text, at).end()
        elif text.startswith("$[", at):
            raise NotUnderstood
        elif (name := _PARAMETER.match(text, at + 1)) is not None:
            self._at = name.end()
            if name[0] == "@":
                part = WORDS
            elif name[0] in "?#$!":
                part = "0"
        else:
            part, self._at = "$" if is_quoted or not text.startswith('$"', at) else "", at + 1
        self._add(part)

    def _read_inner_script(self) -> None:
        """The commands of a substitution, up to its closing parenthesis."""
        inner = _Reader(self._text, self._depth + 1)
        inner._at = self._at
        inner.read_script(is_inner=True)
        if inner._documents:
            raise NotUnderstood
        self.commands += inner.commands
        self._at = inner._at

    def _read_braces(self) -> bool:
        """A parameter in braces; True if it stands for several words even in quotes."""
        text, start, depth, parts = self._text, self._at, 1, self._parts
        self._go_deeper()
        while depth:
            char = text[self._at : self._at + 1]
            if not char or char == "'":  # the meaning of a quote here differs between shells
                raise NotUnderstood
            if char in "$`":
                self._read_expansion(is_quoted=True)
            elif char == "\\":
                self._at += 2
            else:
                depth += (char == "{") - (char == "}")
                self._at += 1
        self._go_deeper(-1)
        self._parts = parts
        return "@" in text[start : self._at]

    # --- redirections ---

    def _read_redirection(self) -> None:
        text, at = self._text, self._at
        if text.startswith(("<(", ">("), at):
            self._at += 2
            self._read_inner_script()
            self._add(WORDS)
            return
        if self._parts is not None and not self._is_quoted and _DESCRIPTOR.fullmatch("".join(self._parts)):
            self._parts = None
        self._end_word()
        if self._redirection is not None:
            raise NotUnderstood
        self._expects_keyword = False
        self._redirection = _match(_REDIRECTION, text, at)[0]
        self._at += len(self._redirection)
        if text.startswith("!", self._at):  # a part of the operator in some shells
            raise NotUnderstood

    def _read_documents(self) -> None:
        """Behind the end of a line: the here-documents that were announced in it."""
        documents, self._documents = self._documents, []
        for end, is_quoted, without_tabs in documents:
            start = here = self._at
            line = None
            while line != end:
                if self._at >= len(self._text):
                    raise NotUnderstood
                here, line = self._at, _match(_LINE, self._text, self._at)[0]
                self._at += len(line) + 1
                line = line.lstrip("\t") if without_tabs else line
            if not is_quoted:
                body = _Reader(self._text[start:here], self._depth + 1)
                body._read_quoted(to_the_end=True)
                self.commands += body.commands


def _match(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str]:
    found = pattern.match(text, at)
    if found is None:
        raise NotUnderstood
    return found
