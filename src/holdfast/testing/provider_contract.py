"""Owns the provider contract as tests: the right session and no other, no rights lost, no output that breaks a stream."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, TypeAlias, get_origin, get_type_hints

import pytest

from holdfast.domain.decisions import NOT_OBSERVABLE, Fork, Fresh, Reason, Resume
from holdfast.domain.events import (
    AgentEvent,
    Ended,
    Named,
    Said,
    Spent,
)
from holdfast.domain.failures import FailureClass
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import NO_RIGHTS, Rights, TranscriptMark
from holdfast.domain.redaction import Json
from holdfast.domain.usage import Usage, UsageReport
from holdfast.errors import InvalidInput
from holdfast.processes.process import Command
from holdfast.providers.contract import Comparison, LaunchSpec, Provider, ToolGate, own_names
from holdfast.providers.failure_rules import Evidence
from holdfast.providers.report import Report

PROMPT = "what is the answer?\n--really"
RECORDED = ProviderSessionId("11111111-1111-4111-8111-111111111111")
MINTED = ProviderSessionId("22222222-2222-4222-8222-222222222222")
RESUME = Resume(RECORDED, (), ())
FORK = Fork(RECORDED, (), ())
FRESH = Fresh(Reason.NO_POINTER, ())

Lines: TypeAlias = "list[dict[str, Json]]"

#: texts that no provider prints about itself
GARBAGE = ["", "\x00\xff", "command not found", "<html>502 Bad Gateway</html>", "9" * 1000, "[" * 10_000]
#: texts that are not a file name, or that lead into another folder
NO_IDS = ["", ".", "..", "../x", "a/b", "/etc/passwd", "x\0y", "x" * 5000, "*", "x\ny"]
#: values that may stand in a line where something else is expected
ODD: tuple[Json, ...] = (None, True, 0, -1, 10**30, 1.5, float("nan"), float("inf"), "", "\ud800", [], [[]], {}, [{}], {"a": 1})  # fmt: skip


def a_launch_spec(
    decision: Resume | Fork | Fresh,
    new_id: ProviderSessionId | None = None,
    model: str | None = None,
    rights: Rights = NO_RIGHTS,
) -> LaunchSpec:
    return LaunchSpec("/bin/agent", "/home/me/.agent", "/work", PROMPT, decision, new_id, model, rights)


def mentions(command: Command, text: str) -> int:
    """How often the text is in the arguments and variables of the command."""
    told = (*command.argv, *(value for _, value in command.environ))
    return sum(part.count(text) for part in told)


class _OfOneProvider:
    """Gives the launches that this provider can be asked for."""

    @pytest.fixture
    def specs(self, provider: Provider, probe_outputs: tuple[str, ...]) -> list[LaunchSpec]:
        can = provider.read_probe(probe_outputs).capabilities
        mints = can.chooses_id and provider.mint_id(FRESH) is not None
        mints_forks = can.chooses_id and provider.mint_id(FORK) is not None
        forks = [a_launch_spec(FORK, MINTED if mints_forks else None)] if can.can_fork else []
        return [a_launch_spec(FRESH, MINTED if mints else None), a_launch_spec(RESUME), *forks]


class CommandContract(_OfOneProvider):
    """``command`` and ``interactive``."""

    def test_exactly_the_sessions_of_the_decision_are_named_each_once(
        self, provider: Provider, specs: list[LaunchSpec]
    ) -> None:
        for spec in specs:
            source = int(not isinstance(spec.decision, Fresh))
            new = int(spec.new_id is not None)
            for command in (provider.command(spec), provider.interactive(spec)):
                assert (mentions(command, RECORDED), mentions(command, MINTED)) == (source, new)

    def test_no_session_is_left_to_the_provider_to_choose(
        self, provider: Provider, specs: list[LaunchSpec]
    ) -> None:
        for spec in specs:
            assert not {"--last", "--continue", "latest"} & set(provider.command(spec).argv)

    def test_a_resume_and_a_fork_differ(self, provider: Provider, specs: list[LaunchSpec]) -> None:
        commands = [provider.command(spec).argv for spec in specs]
        assert len(set(commands)) == len(specs)

    def test_the_chosen_binary_runs_and_reads_the_prompt_from_its_input(
        self, provider: Provider, specs: list[LaunchSpec]
    ) -> None:
        for spec in specs:
            command = provider.command(spec)
            assert command.argv[0] == spec.binary
            assert PROMPT in (command.stdin or "")
            assert mentions(command, PROMPT) == 0

    def test_a_person_is_not_spoken_for(self, provider: Provider, specs: list[LaunchSpec]) -> None:
        for spec in specs:
            command = provider.interactive(spec)
            assert command.stdin is None
            assert mentions(command, PROMPT) == 0

    def test_a_provider_that_can_defer_names_its_gate_with_every_launch_and_goes_on_without_a_prompt(
        self, provider: Provider, specs: list[LaunchSpec], probe_outputs: tuple[str, ...]
    ) -> None:
        if not provider.read_probe(probe_outputs).capabilities.can_defer:
            return
        gate = ToolGate(
            "gate-7 || exit 2", 600, "arm-7", Path("/nowhere/armed"), "done-7", Path("/nowhere/changed"), None
        )  # fmt: skip
        for spec in specs:
            gated = replace(spec, gate=gate)
            for command in (provider.command(gated), provider.interactive(gated)):
                assert mentions(command, gate.command) == 1
        assert provider.command(replace(a_launch_spec(RESUME), prompt=None, gate=gate)).stdin is None

    def test_the_model_is_sent_whatever_the_decision(
        self, provider: Provider, specs: list[LaunchSpec]
    ) -> None:
        for spec in specs:
            command = provider.command(a_launch_spec(spec.decision, spec.new_id, model="model-7"))
            assert mentions(command, "model-7") == 1

    def test_minted_ids_differ(self, provider: Provider) -> None:
        minted = [provider.mint_id(decision) for decision in (FRESH, FRESH, FORK, FORK)]
        ids = [found for found in minted if found is not None]
        assert len(set(ids)) == len(ids)


class RightsContract(_OfOneProvider):
    """``check`` and ``arguments``."""

    @pytest.mark.parametrize(
        ("rights", "value"),
        [
            (Rights(permission_mode="mode-7"), "mode-7"),
            (Rights(allowed_tools=frozenset({"Tool7"})), "Tool7"),
            (Rights(extra_dirs=frozenset({"/extra/dir-7"})), "/extra/dir-7"),
            (Rights(extra_args=("--argument-7=value",)), "--argument-7=value"),
        ],
        ids=["permission mode", "tool", "folder", "argument"],
    )
    def test_rights_are_sent_with_every_launch_or_refused_and_never_dropped(
        self, provider: Provider, specs: list[LaunchSpec], rights: Rights, value: str
    ) -> None:
        try:
            provider.check(rights, allow_wider=True)
        except InvalidInput:
            return
        for spec in specs:
            allowed = a_launch_spec(spec.decision, spec.new_id, rights=rights)
            for command in (provider.command(allowed), provider.interactive(allowed)):
                assert mentions(command, value) == 1

    def test_no_rights_can_always_be_expressed(self, provider: Provider) -> None:
        provider.check(NO_RIGHTS)

    def test_an_argument_that_is_decided_already_is_refused_with_what_to_use_instead(
        self, provider: Provider, specs: list[LaunchSpec]
    ) -> None:
        with_model = [a_launch_spec(spec.decision, spec.new_id, "model-7") for spec in specs]
        used = {
            argument.partition("=")[0]
            for spec in with_model
            for argument in provider.command(spec).argv[1:]
            if argument.startswith("-") and argument != "-"
        }
        assert used <= provider.arguments.owned.keys()

    def test_each_owned_argument_is_refused_however_it_is_written(self, provider: Provider) -> None:
        for name, instead in provider.arguments.owned.items():
            forms = [(name,), (name, "x")] + ([(f"{name}=x",)] if name.startswith("--") else [])
            for arguments in forms:
                with pytest.raises(InvalidInput) as refused:
                    provider.check(Rights(extra_args=arguments))
                assert name in str(refused.value)
                assert instead in str(refused.value)

    def test_what_overrides_a_decision_is_refused_even_where_wider_rights_are_accepted(
        self, provider: Provider
    ) -> None:
        for name in provider.arguments.owned:
            for arguments in [(name,), (name, "x"), (f"{name}=x",)]:
                with pytest.raises(InvalidInput):
                    provider.check(Rights(extra_args=arguments), allow_wider=True)

    def test_an_argument_that_is_not_known_to_be_harmless_must_be_accepted(self, provider: Provider) -> None:
        for arguments in [("--unheard-of",), ("--unheard-of=x",), ("-Q",)]:
            with pytest.raises(InvalidInput, match="--allow-wider-rights"):
                provider.check(Rights(extra_args=arguments))
            provider.check(Rights(extra_args=arguments), allow_wider=True)

    def test_a_word_that_belongs_to_no_option_is_refused(self, provider: Provider) -> None:
        for arguments in [("word",), ("--unheard-of", "word"), ("-",), ("--", "word"), ("",)]:
            with pytest.raises(InvalidInput, match="provider arguments"):
                provider.check(Rights(extra_args=arguments), allow_wider=True)

    def test_every_option_of_its_help_is_known(
        self, provider: Provider, probe_outputs: tuple[str, ...]
    ) -> None:
        listed = {
            option
            for line in "\n".join(probe_outputs).splitlines()
            if (found := re.match(r"\s+(--?[A-Za-z][\w-]*(?:, --?[A-Za-z][\w-]*)*)", line))
            for option in found[1].split(", ")
        }
        assert len(listed) > 5
        assert listed <= provider.arguments.owned.keys() | provider.arguments.known.keys()


class ProbeContract:
    """``binaries``, ``probes``, ``read_probe``, ``home`` and ``rules``."""

    def test_what_it_prints_about_itself_is_understood(
        self, provider: Provider, probe_outputs: tuple[str, ...]
    ) -> None:
        probe = provider.read_probe(probe_outputs)
        assert probe.version
        assert probe.distribution
        assert probe.capabilities.can_resume

    @pytest.mark.parametrize("garbage", GARBAGE, ids=lambda text: ascii(text[:12]))
    def test_of_a_program_that_is_not_known_nothing_is_expected(
        self, provider: Provider, garbage: str
    ) -> None:
        can = provider.read_probe((garbage,) * len(provider.probes)).capabilities
        assert not any((can.can_resume, can.can_fork, can.can_fork_at_turn, can.chooses_id))

    def test_its_program_has_a_name(self, provider: Provider) -> None:
        assert provider.binaries
        assert provider.probes

    def test_it_lives_in_the_home_of_the_user_it_runs_as(self, provider: Provider) -> None:
        assert provider.home({"HOME": "/home/a"}).is_relative_to("/home/a")

    def test_the_variables_of_a_home_lead_to_it(self, provider: Provider, tmp_path: Path) -> None:
        home = provider.home({"HOME": str(tmp_path)})
        variables = provider.home_variables(home)
        assert not variables or provider.home({"HOME": "/nobody", **variables}) == home

    def test_its_failure_rules_say_their_version_and_judge_nothing_by_silence(
        self, provider: Provider
    ) -> None:
        assert provider.rules.version.startswith(provider.name)
        assert provider.rules.classify(Evidence()).failure_class is FailureClass.UNKNOWN


class StreamContract:
    """``stream``, on the output of one run that ended well."""

    def test_a_run_names_its_session_says_something_and_ends(self, provider: Provider, lines: Lines) -> None:
        report, events = _read(provider, lines)
        assert report.session_id is not None
        assert any(isinstance(event, Said) for event in events) or report.response
        assert report.ended is not None
        assert report.ended.ok
        assert not report.in_flight

    def test_a_run_that_is_cut_off_has_not_ended(self, provider: Provider, lines: Lines) -> None:
        first_end = next(number for number, found in _numbered(provider, lines) if isinstance(found, Ended))
        report, _ = _read(provider, lines[:first_end])
        assert report.ended is None

    def test_no_line_however_odd_breaks_it(self, provider: Provider, lines: Lines) -> None:
        for number, line in enumerate(lines):
            for odd in _spoiled(line):
                assert isinstance(odd, dict)
                _, events = _read(provider, [*lines[:number], odd])
                assert [found for found in events if not _is_sound(found)] == [], odd

    def test_lines_of_no_known_kind_say_nothing_of_a_session_or_an_end(self, provider: Provider) -> None:
        _, events = _read(provider, [{}, {"type": "weather"}, {"kind": 1}, {"type": ["x"]}])
        assert not [found for found in events if isinstance(found, Named | Ended | Said)]


class ArchiveContract:
    """``archive``, where there is nothing, or nothing that can be read."""

    def test_an_empty_home_has_no_session(self, provider: Provider, tmp_path: Path) -> None:
        for home in (tmp_path, tmp_path / "missing"):
            archive = provider.archive(home)
            assert archive.find(RECORDED, None) is None
            assert archive.find(RECORDED, str(tmp_path)) is None

    @pytest.mark.parametrize("no_id", NO_IDS, ids=lambda text: ascii(text[:12]))
    def test_what_cannot_be_an_id_is_not_found(self, provider: Provider, tmp_path: Path, no_id: str) -> None:
        assert provider.archive(tmp_path).find(ProviderSessionId(no_id), str(tmp_path)) is None

    def test_a_session_that_is_gone_has_no_turns_no_mark_and_is_not_intact(
        self, provider: Provider, tmp_path: Path
    ) -> None:
        archive, path = provider.archive(tmp_path), str(tmp_path / "gone.jsonl")
        recorded = TranscriptMark(path, 10, "0" * 64)
        assert list(archive.turns(path, RECORDED)) == []
        assert list(archive.turns(path, RECORDED, recorded)) == []
        assert list(archive.calls(path, RECORDED)) == []
        assert archive.mark(path, RECORDED) is None
        assert archive.is_intact(recorded, RECORDED) in (False, NOT_OBSERVABLE)

    @pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"{", b"[]\n7\n{}\n", b"\xff\xfe\n" * 9])
    def test_a_damaged_session_has_no_turns(self, provider: Provider, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "damaged.jsonl"
        path.write_bytes(content)
        assert list(provider.archive(tmp_path).turns(str(path), RECORDED)) == []
        assert list(provider.archive(tmp_path).calls(str(path), RECORDED)) == []

    def test_a_kept_file_that_is_gone_is_absent_and_its_place_is_in_the_home(
        self, provider: Provider, tmp_path: Path
    ) -> None:
        archive, name = provider.archive(tmp_path), f"sessions/folder/{RECORDED}.jsonl"
        assert archive.compare(name, [b"kept"], RECORDED, str(tmp_path)) is Comparison.ABSENT
        for place in (archive.place(name, RECORDED, str(tmp_path)), archive.aside(name, RECORDED)):
            assert place is None or Path(place).is_relative_to(tmp_path)

    @pytest.mark.parametrize(
        "name",
        [
            "settings.json",
            "config.toml",
            "plugins/evil.js",
            f"plugins/{RECORDED}.js",
            f"{RECORDED}/../settings.json",
            f"sessions/../{RECORDED}.jsonl",
            f"/tmp/{RECORDED}.jsonl",  # noqa: S108 - nothing is written there
            "",
        ],
    )
    def test_a_file_that_others_have_put_into_the_vault_does_not_belong_to_a_session(
        self, provider: Provider, tmp_path: Path, name: str
    ) -> None:
        archive = provider.archive(tmp_path)
        assert own_names(archive, [name], RECORDED, lambda _: [b'{"id": 1}\n']) == frozenset()


def _numbered(provider: Provider, lines: Lines) -> Iterator[tuple[int, AgentEvent]]:
    stream = provider.stream(a_launch_spec(FRESH))
    for number, line in enumerate(lines):
        for event in stream.read(line):
            yield number, event


def _read(provider: Provider, lines: Lines) -> tuple[Report, list[AgentEvent]]:
    report, events = Report(), [event for _, event in _numbered(provider, lines)]
    for event in events:
        report.add(event)
    return report, events


def _spoiled(value: Json) -> Iterator[Json]:
    """The value with each of its parts, at any depth, taken out or replaced by something odd."""
    match value:
        case dict():
            for key, part in value.items():
                yield {name: other for name, other in value.items() if name != key}
                for odd in (*ODD, *_spoiled(part)):
                    yield {**value, key: odd}
        case list():
            for place, part in enumerate(value):
                for odd in (*ODD, *_spoiled(part)):
                    yield [*value[:place], odd, *value[place + 1 :]]


def _is_sound(event: AgentEvent) -> bool:
    """Its fields have the declared types, and a store can add up its figures."""
    hints = get_type_hints(type(event))
    if not all(
        isinstance(getattr(event, field.name), _runtime_type(hints[field.name])) for field in fields(event)
    ):
        return False
    match event:
        case Named(session_id):
            return session_id != ""
        case Spent(UsageReport(Usage(fresh, cached, answered, cost), _, context)):
            window = () if context is None else (context.tokens, context.window)
            return all(0 <= figure < 2**63 for figure in (fresh, cached, answered, cost, *window))
    return True


def _runtime_type(hint: Any) -> Any:
    """What ``isinstance`` takes: the class behind ``Mapping[str, Json]`` or a ``NewType``."""
    origin = get_origin(hint)
    return getattr(hint, "__supertype__", hint) if origin in (None, UnionType) else origin
