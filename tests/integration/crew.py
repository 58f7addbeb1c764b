"""Owns a crew: real worker processes on a workshop's store, and the turns that they are given."""

import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast import Holdfast
from holdfast.domain.ids import RuntimeId
from holdfast.domain.turns import Attempt, NewTurn, Orphan, Turn, TurnRequest, TurnStatus
from tests.integration.workshop import PATIENCE, Workshop, eventually

#: nobody waits for what comes by itself: tests say what they wait for
EAGER = {
    "HOLDFAST_QUEUE__POLL_SECONDS": "0.1",
    "HOLDFAST_QUEUE__HEARTBEAT_SECONDS": "0.2",
    "HOLDFAST_QUEUE__RECOVER_SECONDS": "0.3",
    "HOLDFAST_QUEUE__RETRY_DELAY_SECONDS": "0.1",
}
#: until somebody makes the file that is called ``go``
WAIT = 'TOOL shell {"command": "touch begun; while [ ! -e go ]; do sleep 0.05; done"}'


@dataclass
class Crew:
    shop: Workshop
    hf: Holdfast
    workers: list[subprocess.Popen[str]] = field(default_factory=list)

    def enlist(self, *arguments: str, environ: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        worker = self.shop.start("worker", "--provider", "scripted", *arguments, environ=environ)
        self.workers.append(worker)
        return worker

    def dismiss(self) -> None:
        """Whoever still works hands back at once."""
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGCONT)
                worker.send_signal(signal.SIGTERM)
                worker.send_signal(signal.SIGINT)
        for worker in self.workers:
            # pytest shows what the workers said if the test has failed
            print(*worker.communicate(timeout=PATIENCE), sep="\n")

    def session(self) -> str:
        return self.hf.begin("work", agent="worker", provider="scripted").id

    def ask(
        self, session_id: str, prompt: str, *, runtime_id: RuntimeId | None = None, cwd: Path | None = None
    ) -> Turn:
        request = TurnRequest(str(cwd or self.shop.work_dir))
        return self.hf.enqueue(
            session_id, prompt, NewTurn(prompt, "scripted", request, runtime_id=runtime_id)
        )

    def follow_up(self, session_id: str, prompt: str) -> Turn:
        """A turn that says nothing about where it runs."""
        return self.hf.enqueue(session_id, prompt, NewTurn(prompt, "scripted"))

    def look(self, turn: Turn) -> Turn:
        return self.hf.store.get_turn(turn.conversation_id, turn.seq)

    def attempts(self, turn: Turn) -> tuple[Attempt, ...]:
        return self.hf.store.attempts(turn.conversation_id, turn.seq)

    def until(self, turn: Turn, status: TurnStatus) -> Turn:
        def found() -> Turn | None:
            seen = self.look(turn)
            return seen if seen.status is status else None

        seen: Turn = eventually(found)
        return seen

    def until_begun(self, turn: Turn) -> Orphan:
        """The agent works, and waits for ``go``."""
        eventually((self.shop.work_dir / "begun").exists)
        holder = self.hf.store.holder(turn.session_id)
        assert holder is not None
        return holder

    def go(self) -> None:
        (self.shop.work_dir / "go").touch()
