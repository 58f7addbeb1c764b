"""Owns how the small value objects of a row are written as JSON text, and read back."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from holdfast.domain.conversations import SeenTurns
from holdfast.domain.decisions import (
    Decided,
    Decision,
    DecisionKind,
    Outcome,
    Reason,
    Standing,
    Verdict,
    evidence_row,
)
from holdfast.domain.events import PartialText
from holdfast.domain.failures import Failure, FailureClass
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import NO_RIGHTS, Rights, TranscriptMark
from holdfast.domain.records import replace
from holdfast.domain.redaction import redact_text
from holdfast.domain.runtimes import Capabilities
from holdfast.domain.turns import ProcessMark, TurnRequest
from holdfast.store.sql.json_text import dump, load

_CAPABILITIES = (
    "can_resume",
    "can_fork",
    "can_fork_at_turn",
    "chooses_id",
    "append_only_transcript",
    "reports_context",
    "can_defer",
)


def encode_rights(rights: Rights | None) -> str | None:
    if rights is None:
        return None
    if rights == NO_RIGHTS:
        return "{}"
    return dump(
        {
            "mode": rights.permission_mode,
            "tools": sorted(rights.allowed_tools),
            "dirs": sorted(rights.extra_dirs),
            "args": list(rights.extra_args),
            "approve": sorted(rights.approve_tools),
        }
    )


def decode_rights(text: str | None) -> Rights | None:
    if text is None:
        return None
    if text == "{}":
        return NO_RIGHTS
    value = load(text)
    return Rights(
        _optional_text(value["mode"]),
        frozenset(_texts(value["tools"])),
        frozenset(_texts(value["dirs"])),
        tuple(_texts(value["args"])),
        frozenset(_texts(value.get("approve", []))),  # absent from what older versions wrote
    )


def _texts(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("it is not a list of texts")
    return value


def as_text(value: object) -> str:
    # not of a subclass either, which stands for bytes that are not UTF-8
    if type(value) is not str:
        raise ValueError(f"{str(value)[:40]!r} is not text")
    return value


def _optional_text(value: object) -> str | None:
    return None if value is None else as_text(value)


def as_whole(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"{str(value)[:40]!r} is not a whole number")
    return value


@lru_cache(maxsize=256)
def encode_request(request: TurnRequest) -> str:
    """Only what differs from the default, so that a plain turn costs two bytes."""
    value: dict[str, object] = {}
    if request.work_dir is not None:
        value["work_dir"] = request.work_dir
    if request.model is not None:
        value["model"] = request.model
    if request.rights is not None:
        value["rights"] = encode_rights(request.rights)
    if request.force_fresh:
        value["force_fresh"] = True
    if request.provider_session_id is not None:
        value["provider_session_id"] = request.provider_session_id
    if request.allow_wider_rights:
        value["allow_wider_rights"] = True
    if request.approve_tools:
        value["approve_tools"] = sorted(request.approve_tools)
    return dump(value) if value else "{}"


# a turn is read when it is claimed, when it ends, and for the turn after it. Records never change, so the same text may
# give the same record
@lru_cache(maxsize=256)
def decode_request(text: str) -> TurnRequest:
    if text == "{}":
        return TurnRequest()
    value = load(text)
    explicit = _optional_text(value.get("provider_session_id"))
    return TurnRequest(
        work_dir=_optional_text(value.get("work_dir")),
        model=_optional_text(value.get("model")),
        rights=decode_rights(value.get("rights")),
        force_fresh=value.get("force_fresh", False),
        provider_session_id=None if explicit is None else ProviderSessionId(explicit),
        allow_wider_rights=value.get("allow_wider_rights", False),
        approve_tools=frozenset(_texts(value.get("approve_tools", []))),
    )


def encode_texts(texts: frozenset[str]) -> str:
    return dump(sorted(texts))


def decode_texts(text: str) -> frozenset[str]:
    return frozenset(_texts(load(text)))


def encode_seen(seen: SeenTurns | None) -> str | None:
    return None if seen is None else str(seen)


@lru_cache(maxsize=256)
def decode_seen(text: str | None) -> SeenTurns | None:
    return None if text is None else SeenTurns.parse(text)


@lru_cache(maxsize=256)
def encode_transcript(mark: TranscriptMark | None) -> str | None:
    return None if mark is None else dump([mark.path, mark.size, mark.digest, mark.turns])


@lru_cache(maxsize=256)
def decode_transcript(text: str | None) -> TranscriptMark | None:
    if text is None:
        return None
    path, size, digest, *counted = load(text)
    (turns,) = counted or (None,)  # once they were not counted
    return TranscriptMark(
        as_text(path), as_whole(size), as_text(digest), None if turns is None else as_whole(turns)
    )


def encode_process(mark: ProcessMark | None) -> str | None:
    return None if mark is None else dump([mark.machine, mark.boot_id, mark.pgid, mark.started_at])


def decode_process(text: str | None) -> ProcessMark | None:
    if text is None:
        return None
    machine, boot_id, pgid, started_at = load(text)
    return ProcessMark(as_text(machine), as_text(boot_id), as_whole(pgid), as_whole(started_at))


def encode_partial_text(fence: int, partial: PartialText) -> str:
    return dump([fence, partial.turn, partial.attempt, partial.number, partial.text, partial.skipped])


def decode_partial_text(text: str) -> tuple[int, PartialText]:
    fence, turn, attempt, number, written, skipped = load(text)
    found = PartialText(
        as_whole(turn), as_whole(attempt), as_whole(number), as_text(written), as_whole(skipped)
    )
    return as_whole(fence), found


def encode_capabilities(capabilities: Capabilities) -> str:
    return dump([name for name in _CAPABILITIES if getattr(capabilities, name)])


def decode_capabilities(text: str) -> Capabilities:
    held = set(_texts(load(text)))
    return Capabilities(**{name: name in held for name in _CAPABILITIES})


def encode_decided(decided: Decided) -> tuple[str, str, str]:
    return decided.kind.value, decided.reason.value, encode_evidence(decided)


def encode_evidence(decision: Decision | Decided) -> str:
    """The verdicts that did not simply pass."""
    rows = [
        evidence_row(replace(verdict, evidence=redact_text(verdict.evidence)))
        for verdict in decision.verdicts
        if verdict.outcome is not Outcome.RESUME or (verdict.standing is Standing.PASSED and verdict.evidence)
    ]
    return dump(rows) if rows else "[]"


def decode_decided(kind: str, reason: str, evidence: str) -> Decided:
    verdicts = () if evidence == "[]" else tuple(map(_decode_verdict, load(evidence)))
    return Decided(DecisionKind(kind), Reason(reason), verdicts)


def _decode_verdict(row: list[Any]) -> Verdict:
    reason, standing, outcome, evidence = row
    return Verdict(Reason(reason), Standing(standing), Outcome[outcome.upper()], as_text(evidence))


def decode_failure(failure_class: str | None, error: str | None) -> Failure | None:
    return None if failure_class is None else Failure(FailureClass(failure_class), error or "")
