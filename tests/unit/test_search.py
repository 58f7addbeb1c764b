"""How texts become words, and where a snippet is cut."""

from __future__ import annotations

import pytest

from holdfast.domain.search import FoundIn, Highlighter, Snippet, fold, read_phrases
from holdfast.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("src/app/Parser.py:12", ["src", "app", "parser", "py", "12"]),
        ("snake_case kebab-case camelCase", ["snake", "case", "kebab", "case", "camelcase"]),
        ("Straße ÉTÉ Ångström", ["strasse", "ete", "angstrom"]),
        ("cafe\u0301", ["cafe"]),
        ("日本語 text", ["日", "本", "語", "text"]),
        ("한국어", ["한국어"]),
        ("ﬁle № １２", ["file", "no", "12"]),
        ("a\x00b\x1b[31mred\x1b[0m\u202eend\ud800", ["a", "b", "red", "end"]),
        ("short " + "x" * 128 + " " + "y" * 129, ["short", "x" * 128]),
        ("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", []),
    ],
)
def test_a_text_is_folded_into_words(text: str, words: list[str]) -> None:
    assert fold(text).split() == words


def test_a_word_of_several_parts_is_a_phrase() -> None:
    assert read_phrases("  src/app  a_b --x 'Q' q") == ("src app", "a b", "x", "q")


@pytest.mark.parametrize("words", ["", "\t", "***", "x" * 1001, "y" * 200, "a\x00b", "\ud800"])
def test_what_cannot_be_looked_for_is_refused(words: str) -> None:
    with pytest.raises(InvalidInput):
        read_phrases(words)


def cut(text: str, words: str) -> Snippet:
    _, snippet = Highlighter(read_phrases(words)).best([(FoundIn.PROMPT, text)])
    return snippet


def shown(text: str, words: str) -> str:
    return "".join(f"[{piece}]" if match else piece for piece, match in cut(text, words).pieces())


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("one two three", "two", "one [two] three"),
        ("parser and parsers", "parser", "[parser] and parsers"),
        ("a/b a/b/c", "a/b/c a/b", "[a/b] [a/b/c]"),
        ("Die Größe der Straße", "grosse strasse", "Die [Größe] der [Straße]"),
        ("cafe\u0301 au lait", "café", "[cafe]\u0301 au lait"),
        ("今日は世界を直す", "世界", "今日は[世界]を直す"),
        ("\x1b[31mfailed\x1b[0m ok", "failed", "\x1b[31m[failed]\x1b[0m ok"),
        ("\n\n  first\n\tlast  \n", "last", "first [last]"),
        ("nothing here", "else", "nothing here"),
        ("", "else", ""),
    ],
)
def test_matches_are_marked(text: str, words: str, expected: str) -> None:
    assert shown(text, words) == expected


@pytest.mark.parametrize("separator", [" ", "-", "…", " é "])
def test_a_snippet_is_short_and_holds_its_match(separator: str) -> None:
    text = separator.join(["before"] * 5000 + ["needle"] + ["after"] * 5000)
    snippet = cut(text, "needle")
    assert [piece for piece, match in snippet.pieces() if match] == ["needle"]
    assert len(snippet.text) <= 162


def test_the_part_with_the_most_words_is_chosen_and_no_more_are_read() -> None:
    read: list[FoundIn] = []

    def parts() -> object:
        for part, text in [
            (FoundIn.PROMPT, "red"),
            (FoundIn.ANSWER, "red and green"),
            (FoundIn.TOOL_CALL, "green red"),
        ]:
            read.append(part)
            yield part, text

    found_in, snippet = Highlighter(read_phrases("green red")).best(parts())  # type: ignore[arg-type]
    assert (found_in, snippet.text) == (FoundIn.ANSWER, "red and green")
    assert read == [FoundIn.PROMPT, FoundIn.ANSWER]
