"""Owns redaction: every secret in a text or JSON value becomes ``[redacted:<kind>]`` before it is stored.

A secret is recognised by its own shape (``secret_tokens``) or by the name before it. The value in
``password: str``, ``api_key=${API_KEY}`` or ``login(token=given)`` is not a secret; the second half of this module
tells those apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, ItemsView, Iterator, Mapping, Sequence
from functools import lru_cache

from holdfast.domain.records import record
from holdfast.domain.secret_tokens import ascii_re, mark, may_hold_token, redact_tokens, redact_urls

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any, TypeAlias

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
Redact = Callable[[str], str]

_SHORTEST = 8  #: shorter texts cannot hold a secret
_PASSES = 3
_WHOLE_MARK = r"\[redacted:\w+\]"
#: fields whose value is an opaque blob that a provider wants back unchanged
_OPAQUE = frozenset(["signature", "encrypted_content"])


def redact_text(text: str) -> str:
    """The text without its secrets; the same object when there are none. Idempotent, never raises."""
    if len(text) < _SHORTEST:
        return text
    # One pass that finds nothing, nearly always. The last one is there in case a mark uncovers a neighbour.
    for _ in range(_PASSES):
        clean = _redact_once(text)
        if clean == text:
            break
        text = clean
    return text


def redact_value(value: Json, redact: Redact = redact_text) -> Json:
    """Redacts JSON of any depth; a text under a secret's name is replaced whole. Keys are redacted too.

    A part without secrets stays the same object, and so does the whole value. ``redact`` must do for these texts what
    ``redact_text`` does.
    """
    stack = [_Node([value], redact)]
    above: set[int] = set()
    while True:
        node = stack[-1]
        child = node.next_child()
        if child is None:
            stack.pop()
            above.discard(id(node.source))
            if not stack:
                clean: Json = node.clean()[0]
                return clean
            stack[-1].keep(node.slot, node.source, node.clean())
        elif id(child.source) not in above:  # a cycle is no JSON: it stays for the encoder to refuse
            above.add(id(child.source))
            stack.append(child)


def encode_redacted(value: Json, encode: Callable[[Json], str]) -> str:
    """The value's JSON text without its secrets. Nearly always the text alone shows that there are none."""
    text = encode(value)
    if may_hold_token(text) or ("@" in text and "://" in text):
        clean = redact_value(value)
    else:
        lower = text.lower()
        endings = _endings(lower)
        if not endings and "cookie" not in lower:
            return text
        clean = redact_value(value, lambda leaf: _redact_names(leaf, endings))
    return text if clean is value else encode(clean)


class RedactedData(Mapping[str, "Json"]):
    """JSON data that were redacted when they were made, as a text: a store writes the text and redacts nothing again."""

    __slots__ = ("text",)

    def __init__(self, data: dict[str, Json], encode: Callable[[Json], str]) -> None:
        self.text = encode_redacted(data, encode)

    def __getitem__(self, name: str) -> Json:
        return self._data()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data())

    def __len__(self) -> int:
        return len(self._data())

    def items(self) -> ItemsView[str, Json]:
        return self._data().items()

    def _data(self) -> dict[str, Json]:
        import json  # hooks import this module

        data: dict[str, Json] = json.loads(self.text)
        return data


def _redact_names(text: str, endings: Sequence[str]) -> str:
    """``redact_text`` for a text that holds no token and no URL, and of the names only those with these endings."""
    return text if redact_named(text, endings) is text else redact_text(text)


class _Node:
    """A dict or list that is being redacted: the items that are left, and what has changed."""

    __slots__ = ("changes", "items", "name", "redact", "slot", "source")

    def __init__(self, source: Any, redact: Redact, slot: Any = None, name: str = "") -> None:
        self.source = source
        self.redact = redact
        self.slot = slot
        self.name = name  #: of the key above, for the texts in a list
        self.items: Iterator[tuple[Any, Any]] = iter(
            source.items() if isinstance(source, dict) else enumerate(source)
        )
        self.changes: dict[Any, Any] = {}

    def next_child(self) -> _Node | None:
        """Redacts texts up to the next dict or list, and returns that; None at the end."""
        for slot, item in self.items:
            if isinstance(item, str):
                self.keep(slot, item, _redact_leaf(self._name_of(slot), item, self.redact))
            elif isinstance(item, dict):
                return _Node(item, self.redact, slot)
            elif isinstance(item, list | tuple):
                return _Node(item, self.redact, slot, self._name_of(slot))
        return None

    def keep(self, slot: Any, old: object, new: object) -> None:
        if new is not old:
            self.changes[slot] = new

    def clean(self) -> Any:
        if not isinstance(self.source, dict):
            return (
                [self.changes.get(i, v) for i, v in enumerate(self.source)] if self.changes else self.source
            )
        keys = {
            key: _redact_key(key) for key in self.source if isinstance(key, str) and len(key) >= _SHORTEST
        }
        if not self.changes and all(key == clean for key, clean in keys.items()):
            return self.source
        copy: dict[Any, Any] = {}
        for number, (key, value) in enumerate(self.source.items()):
            name = keys.get(key, key)
            if name in copy:  # two keys that differed only in their secret
                name = f"{name}#{number}"
            copy[name] = self.changes.get(key, value)
        return copy

    def _name_of(self, slot: Any) -> str:
        if isinstance(self.source, dict):
            if slot == "value":  # {"name": "API_KEY", "value": ...}
                slot = self.source.get("name", slot)
            return slot if isinstance(slot, str) else ""
        if self.name and secret_kind(self.name) is not None:
            return self.name  # every text in a secret's list is secret
        before, item = self.source[slot - 1] if slot else "", self.source[slot]
        is_option = isinstance(before, str) and before.startswith("--") and not str(item).startswith("-")
        return before if is_option else self.name  # ["--password", ...]


@lru_cache(maxsize=1024)
def _redact_key(key: str) -> str:
    return redact_text(key)


def _redact_leaf(name: str, text: str, redact: Redact) -> str:
    if name in _OPAQUE or not text.strip():
        return text
    kind = secret_kind(name) if name else None
    clean = redact(text)
    if kind is None or ascii_re(_WHOLE_MARK).fullmatch(clean):
        return clean
    if kind == "password" and name.lower().endswith("pwd") and text.startswith(("/", "~")):
        return clean  # $PWD is a directory
    return mark(kind)


def _redact_once(text: str) -> str:
    return redact_named(redact_urls(redact_tokens(text)))


# --- secrets that are known by the name before them ---


def _set_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Between a name and its value: a closing quote or bracket, then a sign or `: type =`, or `>`, or a space.
_SEPARATOR = (
    r"(\d{0,3})(?:\\{0,3}[\"'])?\]?(?:[ \t]{0,16}"
    r"(:[ \t]{0,4}[a-z_][\w.\[\]|, ]{0,40}?[ \t]=(?!=)|=>|:=|[=!]={1,2}|=|::?(?!:|\w)|:(?!:))[ \t]{0,16}|>|[ \t]{1,8}"
)
# Nothing but a quote, and for some texts an option or a login, ties a value to a name before a space: see `_may_belong`.
_QUOTE_NEXT = r"(?=[^\"'`\\]{0,2}[\"'`\\])"
# What the name of a secret ends with, and what follows, behind a literal to look for in the lower-cased text.
_NAME_ENDS = {
    "pass": "pass(?:word|wd|phrase|code)?" + _SEPARATOR,
    "pwd": "pwd" + _SEPARATOR,
    "secret": "secret" + _SEPARATOR,
    "token": "token" + _SEPARATOR,
    "key": "key" + _SEPARATOR,
    "authorization": "authorization" + _SEPARATOR,
}
# One group a way to quote; the last is a bare word, of which only the beginning is looked at.
_LOOK = 256
_VALUE = (
    r"(?:[bfru@$]{0,2}(?=[\"'`]))?(?:\\{1,3}[\"']([^\"'\\\r\n]{1,1024})(?=\\)"
    r"|\"((?:[^\"\\\r\n]|\\.){1,1024})\"|'((?:[^'\\\r\n]|\\.){1,1024})'|`([^`\r\n]{1,1024})`"
    rf"|\\{{0,3}}[\"'`]?((?:[^\s\"'`\\]|\\(?![nrt\"'\\])){{1,{_LOOK}}}))"
)
_BARE = 5
_CUT = r"[,;&)\]}<>|]"
_REST_OF_WORD = r"[^\s\"'`\\]*"
_SCHEME = r"[\"']?[A-Za-z][\w-]{2,19}[ \t]{1,4}(?=[^\s\"'])"

# Values that stand for a secret without being one: masks, templates, references, paths, what to fill in.
_PLACEHOLDER = (
    r"[*xX.•#?_-]+|…|[<{\[].*|[*•]{3}.*|%(?:s|\(.*|[A-Z_]+%)|#\{.*|@\w+@|\$[({].*|\$(?:[A-Z_][A-Z0-9_]*|[a-z_]+)"
    r"|![A-Za-z]+|(?:https?|op|vault|file|env|sm|ssm):.*|arn:.*|[~.]{0,2}/[\w./-]*|[A-Za-z]:\\.*"
    r"|(?i:your|insert|replace|enter|example|placeholder|dummy)[-_ ].*"
)
_CODE = (
    r"[!&*~-]{0,2}[A-Za-z_][\w.]*[(\[{<]|:|[A-Za-z_]+(?:\.[A-Za-z_]\w*)+[;,)]?$|[A-Za-z_.]+(?:\|[A-Za-z_.]+)+"
)
_PLAIN = r"[A-Za-z_][A-Za-z_.-]*"
_IDENTIFIER = r"[a-z]+\d?[a-z]*(?:_[a-z]*\d?)+"
_BRACKET = r"[()\[\]{}<>|\\]"
_NUMBER = r"[\d.,:/+-]+"
_NAME_CHARS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
_NOT_SECRET = _set_of(
    "str string int integer number bool boolean bytes byte char float double object any array list dict map text "
    "uuid none null nil undefined void true false yes optional required secretstr invalid expired missing wrong "
    "incorrect empty unknown default hidden masked redacted removed omitted unset changed updated rotated "
    "revoked valid failed error denied rejected accepted present absent prompt stdin self this await async "
    "return lambda function const input option options flag argument value values test sha1 sha256 sha512 md5 "
    "base64 utf8 utf-8 int32 int64 uint8 uint32 uint64 u8 u32 u64 i32 i64 bcrypt scrypt argon2 argon2id pbkdf2 "
    "hs256 rs256 es256 x509 oauth2"
)
_PROSE = _set_of(
    "a an and are at be by can enter for from has in is it must not of on or that the this to was with your"
)

# A `key` is a secret when it belongs to one of these; a `token` unless one of those comes before it.
_KEY_OWNERS = tuple(
    _set_of(
        "access account admin api app application auth aws client cloud cloudant consumer deploy encryption "
        "hmac iam ibm jwt license master private secret service shared signing softlayer ssh storage "
        "subscription webhook"
    )
)
_NO_TOKEN = _set_of(
    "bos cancel cancellation cls continuation count end eos fence fencing input mask max min next num output pad page per "
    "request sep special start starting stop sync total unk"
)
_PASS_OWNERS = _set_of(
    "admin api cloudant db ftp imap login mail my mysql pg postgres redis root smtp ssh user"
)
_NAME_WORDS = _set_of("authorization key passphrase passwd password pwd secret token")
_STRICT = _set_of("api_key authorization private_key secret_key token")

_KEY_KINDS = {"api": "api_key", "private": "private_key"}
_MARK = "[redacted:"
_SHORTEST_VALUE = 3
_QUOTES = frozenset("\"'`\\")
_SHORTEST_TOKEN = 8


@lru_cache(maxsize=1024)
def secret_kind(name: str) -> str | None:
    """The kind of secret that has this name (``password``, ``api_key``, ...); None if it is not a secret's name."""
    words = [] if _MARK in name else _words(name[-96:])
    while words and words[-1].isdigit():
        words.pop()
    last, before = ["", "", *words][-1], ["", "", *words][-2]
    if last.endswith(("password", "passwd", "passphrase", "passcode", "pwd")):
        return "password"
    if last == "pass":
        return "password" if before in _PASS_OWNERS else None
    if last.endswith("key"):
        owner = last[:-3] or before
        return _KEY_KINDS.get(owner, "secret_key") if owner.endswith(_KEY_OWNERS) else None
    if last.endswith("token"):
        return None if before in _NO_TOKEN else "token"
    if last.endswith("secret"):
        return "secret"
    return last if last in ("authorization", "cookie") else None


def _endings(lower: str) -> list[str]:
    """Return the patterns that can match in a text; ``lower`` is the text in lower case."""
    return [ending for literal, ending in _NAME_ENDS.items() if literal in lower]


def redact_named(text: str, endings: Sequence[str] | None = None) -> str:
    """Redacts the values that follow a secret's name; of the names only those with ``endings``, if these are given."""
    lower = text.lower()
    endings = _endings(lower) if endings is None else endings
    if not endings:
        return text
    if len(lower) != len(text):  # the one letter that grows
        lower = text.replace("İ", "I").lower()
    last = ")" if "--" in text or "login" in text else _QUOTE_NEXT + ")"
    hits = [found for ending in endings for found in ascii_re(ending + last).finditer(lower)]
    pieces: list[str] = []
    done = 0
    for found in sorted(hits, key=lambda found: found.start()):
        secret = _named_secret(text, found) if found.start() >= done else None
        if secret:
            kind, start, end = secret
            pieces += (text[done:start], mark(kind))
            done = end
    return "".join([*pieces, text[done:]]) if pieces else text


@record
class _Name:
    """A secret's name in a text, and how it is tied to what follows."""

    text: str
    kind: str
    start: int
    sign: str  #: between name and value: `=`, `:`, ...; empty for a space, `>` for a tag
    tight: bool  #: nothing after the sign

    @property
    def is_variable(self) -> bool:
        return self.text.isupper() and "_" in self.text

    @property
    def is_option(self) -> bool:
        return self.text.startswith("--")


@record
class _Value:
    text: str
    start: int
    end: int
    bare: bool  #: not quoted


def _named_secret(text: str, found: re.Match[str]) -> tuple[str, int, int] | None:
    """Kind, start and end of the secret behind a name and a separator."""
    if found[2] is None and not found[0].endswith(">") and not _may_belong(text, found):
        return None  # nearly always: the word is one of a sentence
    name = _name_in(text, found)
    value = _value_at(text, found.end(), name) if name else None
    if not name or not value or not _belongs(text, name, value) or not _is_secret(text, name, value):
        return None
    rest = ascii_re(_REST_OF_WORD).match(text, value.end) if len(value.text) == _LOOK else None
    return name.kind, value.start, rest.end() if rest else value.end


def _may_belong(text: str, found: re.Match[str]) -> bool:
    """Whether a name and a value with only a space between them may belong together: see ``_belongs``."""
    after, before = text[found.end() : found.end() + 3], text[max(0, found.start() - 200) : found.start() + 8]
    return not _QUOTES.isdisjoint(after) or "--" in before or "login" in before


def _name_in(text: str, found: re.Match[str]) -> _Name | None:
    end = found.end(1)
    head = text[max(0, end - 64) : end]
    name = head[len(head.rstrip(_NAME_CHARS)) :]
    start = end - len(name)
    sign = found[2] or found[0][-1].strip()
    before = text[max(0, start - len(_MARK)) : start]
    if before == _MARK or (before.endswith(":") and sign.startswith(":")):
        return None  # [redacted:token]: arn:aws:...:secret:name, AWS::IAM::AccessKey:
    two_words = name.lower() == "key" and before.endswith(" ")  # "API key"
    kind = secret_kind("_".join([*_words(before)[-1:], name]) if two_words else name)
    return _Name(name, kind, start, sign, found.end() == found.end(2)) if kind else None


def _value_at(text: str, at: int, name: _Name) -> _Value | None:
    if name.kind == "authorization" and (scheme := ascii_re(_SCHEME).match(text, at)):
        at = scheme.end()
    found = ascii_re(_VALUE).match(text, at)
    if found is None or found.lastindex is None:
        return None
    start, end = found.span(found.lastindex)
    bare = found.lastindex == _BARE
    if bare and not (name.is_variable and name.tight):
        cut = ascii_re(_CUT).search(text, start, end)
        end = start + len(text[start : cut.start() if cut else end].rstrip(".:"))
    return _Value(text[start:end], start, end, bare)


def _belongs(text: str, name: _Name, value: _Value) -> bool:
    """A sign ties name and value; `>` needs the closing tag; a space needs an option, a quote, or a netrc."""
    if name.sign:
        return name.sign != ">" or text.startswith("</", value.end)
    if name.is_option or not value.bare:
        return name.is_option or name.kind != "token"  # "unexpected token 'x'"
    before = text[max(0, name.start - 120) : name.start]
    return ascii_re(r"\blogin\s{1,9}\S{1,99}\s{1,9}\Z").search(before) is not None


def _is_secret(text: str, name: _Name, value: _Value) -> bool:
    word = value.text
    if len(word) < _SHORTEST_VALUE or word.lower() in _NOT_SECRET or _MARK in word:
        return False
    if ascii_re(_PLACEHOLDER).fullmatch(word):
        return False
    if value.bare and (ascii_re(_CODE).match(word) or ascii_re(_NUMBER).fullmatch(word)):
        return name.kind == "password" and name.sign in ("=", ":") and word.isdigit()
    plain = ascii_re(_PLAIN).fullmatch(word)
    if (plain or (value.bare and "." in word)) and _NAME_WORDS.intersection(_words(word)[-1:]):
        return False  # password=password, token: access_token, key: ed25519.Ed25519PrivateKey
    if plain and value.bare and not _is_literal(name, text[value.end : value.end + 2]):
        return False
    if " " in word:
        return name.kind not in _STRICT and not _PROSE.intersection(word.lower().split())
    if name.kind not in _STRICT:
        return True
    return len(word) >= _SHORTEST_TOKEN and _is_random(word) and not ascii_re(_BRACKET).search(word)


def _is_literal(name: _Name, after: str) -> bool:
    """Whether an unquoted word is a literal value: `password=sesame`, not `login(password=given)`."""
    if name.kind == "authorization" or (name.is_variable and name.sign == ":"):
        return True
    if name.sign == "=" and name.tight:
        return not after or after[0] in " \t\r\n;&\"'"
    return name.is_option and (not after or after[0] in "\r\n" or after == " -")


def _is_random(text: str) -> bool:
    if len(text) >= 24:
        return True
    mixed = text not in (text.lower(), text.upper(), text.capitalize())
    return (mixed or ascii_re(r"\d").search(text) is not None) and not ascii_re(_IDENTIFIER).fullmatch(text)


def _words(name: str) -> list[str]:
    return [word.lower() for word in ascii_re(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+").findall(name)]
