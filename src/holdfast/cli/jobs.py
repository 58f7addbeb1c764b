"""Owns job files: a run written down as JSON. What stands on the command line wins over the file."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from holdfast.errors import InvalidInput

_MOST = 64 * 1024 * 1024
#: key of the file -> option; several spellings for what other tools call it
_KEYS = {
    "agent": "agent",
    "provider": "provider",
    "name": "name",
    "model": "model",
    "work_dir": "cwd",
    "workspace_dir": "cwd",
    "cwd": "cwd",
    "timeout": "timeout",
    "permission_mode": "permission_mode",
    "allowed_tools": "allowed_tools",
    "extra_dirs": "extra_dirs",
    "approve_tools": "approve_tools",
    "fresh": "fresh",
    "provider_session_id": "provider_session_id",
}
#: what to do, by either name
_PROMPTS = ("prompt", "objective")
#: JSON of any form, told to the agent below what to do
_TOLD = ("inputs", "constraints")
_LISTS = ("allowed_tools", "extra_dirs", "approve_tools")
_NUMBERS = ("timeout",)
_FLAGS = ("fresh",)


def read_job(path: str, prompt: str | None, given: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """The prompt and the options; InvalidInput names the key that is wrong."""
    document = _document(path)
    merged = dict(given)
    for key, value in document.items():
        if key in _PROMPTS or key in _TOLD:
            continue
        option = _KEYS.get(key)
        if option is None:
            known = ", ".join((*_PROMPTS, *_TOLD, *_KEYS))
            raise InvalidInput("job", f"{path}: unknown key {key[:40]!r}; known are {known}")
        checked = _value(path, key, option, value)
        if not merged.get(option):
            merged[option] = _placed(path, option, checked)
    return _prompt(path, document, prompt), merged


def _prompt(path: str, document: dict[str, Any], given: str | None) -> str | None:
    """What to do, and below it what the file says about it."""
    asked = {key: _text(path, key, document[key]) for key in _PROMPTS if key in document}
    if len(asked) > 1:
        raise InvalidInput("job", f"{path}: prompt and objective mean the same: give one of them")
    prompt = given if given is not None else next(iter(asked.values()), None)
    if prompt is None:
        return None
    told = [_told(key, document[key]) for key in _TOLD if document.get(key) not in (None, "", {}, [])]
    return "\n\n".join([prompt, *told])


def _told(key: str, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    return f"{key.capitalize()}:\n{text}"


def _document(path: str) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MOST + 1)
    except OSError as exc:
        raise InvalidInput("job", f"{path}: {exc.strerror}") from exc
    if len(data) > _MOST:
        raise InvalidInput("job", f"{path} is larger than {_MOST} bytes")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise InvalidInput("job", f"{path} is not JSON: {exc}") from None
    if not isinstance(document, dict):
        raise InvalidInput("job", f"{path} must hold a JSON object")
    return document


def _value(path: str, key: str, option: str, value: Any) -> Any:
    if option in _LISTS:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise InvalidInput("job", f"{path}: {key} must be a list of strings")
        return tuple(value)
    if option in _NUMBERS:
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise InvalidInput("job", f"{path}: {key} must be a number above 0")
        return value
    if option in _FLAGS:
        if not isinstance(value, bool):
            raise InvalidInput("job", f"{path}: {key} must be true or false")
        return value
    return _text(path, key, value)


def _text(path: str, key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidInput("job", f"{path}: {key} must be a string")
    return value


def _placed(path: str, option: str, value: Any) -> Any:
    if option == "cwd":
        return _from_there(path, value)
    return tuple(_from_there(path, one) for one in value) if option == "extra_dirs" else value


def _from_there(path: str, directory: str) -> str:
    """A directory in a file is meant from where the file is."""
    return str(Path(path).resolve().parent / os.path.expanduser(directory))  # noqa: PTH111 - a ~user nobody knows stays
