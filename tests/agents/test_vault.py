"""The sessions of the real agents are in the vault after each turn, with everything that the agents need to resume them."""

from pathlib import Path

from holdfast.domain.ids import ProviderSessionId
from holdfast.engine.vault import Vault
from tests.agents.driver import Driver, only
from tests.agents.lab.model_servers.replies import Say
from tests.agents.test_interruptions import RIGHTS

#: of the bytes of the transcripts, after repacking
MOST_STORED = 0.3


def kept(driver: Driver, native: str) -> dict[str, bytes]:
    with driver.library() as holdfast:
        bundle = holdfast.store.bundle(driver.provider, ProviderSessionId(native))
        assert bundle is not None
        vault = Vault(holdfast.store, holdfast.policy.vault)
        return {file.name: b"".join(vault.read(bundle, file)) for file in bundle.files}


def at_its_provider(driver: Driver, native: str) -> dict[str, bytes]:
    with driver.library() as holdfast:
        archive = holdfast.agents.get(driver.provider).archive
        session_id = ProviderSessionId(native)
        path = archive.find(session_id, str(driver.lab.workdir))
        assert path is not None
        return {
            file.name: (file.data or b"") if file.path is None else Path(file.path).read_bytes()
            for file in archive.files(path, session_id)
        }


@only("claude", "codex", "opencode", "gemini")
def test_each_turn_is_in_the_vault_byte_for_byte(driver: Driver) -> None:
    server, agent = driver.lab.server, driver.lab.agent
    server.script(agent.shell("seq 1 2000"), Say("violet"))
    first = driver.run("colour?", *RIGHTS[driver.provider])
    for n in range(4):
        assert kept(driver, first.native) == at_its_provider(driver, first.native)
        server.script(Say(f"stone {n}"))
        resumed = driver.resume(first.session, f"stone {n}?")
        assert (resumed.decision, resumed.native) == ("resume", first.native)
    assert kept(driver, first.native) == at_its_provider(driver, first.native)
    with driver.library() as holdfast:
        holdfast.tidy_vault()
        figures = holdfast.store.vault_figures()
    assert kept(driver, first.native) == at_its_provider(driver, first.native)
    assert figures.stored_bytes <= MOST_STORED * figures.size
