"""Owns what the tests must know of each provider to drive Holdfast on it; a provider joins with a row here."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Traits:
    #: how people call the product
    #: the options of Holdfast that let it run commands without asking
    rights: tuple[str, ...]
    #: where its sessions are, below its home; the id is filled in
    sessions: str
    #: the words of its command line that continue a session
    continuing: frozenset[str]
    #: the variable that moves its home, and the home's folder
    home_variable: str
    home_folder: str
    #: it says how full its context window is
    reports_context: bool
    #: its model counts the tokens out of a cache besides the others, not among them
    counts_cache_apart: bool
    #: makes its interactive program, as ``holdfast open`` starts it, a turn that asks ``by hand?`` and ends
    by_hand: str

    def session_files(self, home: Path, session_id: str = "*") -> Iterator[Path]:
        return home.glob(self.sessions.format(session_id))


TRAITS = {
    "claude": Traits(
        rights=("--allow-tool", "Bash"),
        sessions=".claude/projects/*/{}.jsonl",
        continuing=frozenset({"--resume", "--continue", "--fork-session"}),
        home_variable="CLAUDE_CONFIG_DIR",
        home_folder=".claude",
        reports_context=True,
        counts_cache_apart=True,
        by_hand="case \"$1\" in --resume) exec '{program}' -p 'by hand?' \"$@\";; esac",
    ),
    "codex": Traits(
        rights=("--permission-mode", "danger-full-access"),
        sessions=".codex/sessions/*/*/*/rollout-*-{}.jsonl",
        continuing=frozenset({"resume", "fork", "--last"}),
        home_variable="CODEX_HOME",
        home_folder=".codex",
        reports_context=False,
        counts_cache_apart=False,
        by_hand="case \"$1\" in resume) exec '{program}' exec --skip-git-repo-check \"$@\" 'by hand?';; esac",
    ),
}
