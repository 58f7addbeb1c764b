"""With a key, the vault tells nothing to those who do not have it; a lost key is said, and loses nothing else."""

import builtins
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.policy import Policy, VaultPolicy
from holdfast.domain.turns import TurnStatus
from holdfast.domain.vault import VaultBundle
from holdfast.engine.vault import Vault, VaultSource
from holdfast.engine.vault_key import names_of
from holdfast.errors import ConfigError, VaultLocked
from holdfast.providers.contract import SessionFile
from holdfast.store.contract import Store
from holdfast.store.open import open_store
from holdfast.store.packing import digest_of
from tests.consistency import driver_of
from tests.integration.workshop import Workshop

ID = ProviderSessionId("6a13a176")
SAID = b'{"text": "the password is swordfish"}\n' * 20


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(open_store(url, durability="normal")) as store:
        yield store


def key_file(folder: Path, name: str = "key", text: str = "ab" * 32 + "\n") -> VaultPolicy:
    path = folder / name
    path.write_text(text)
    path.chmod(0o600)
    return VaultPolicy(key_file=str(path))


def keep(store: Store, policy: VaultPolicy, said: bytes) -> VaultBundle:
    file = SessionFile("6a13a176.jsonl", None, said, is_main=True)
    kept = Vault(store, policy).keep(VaultSource("claude", ID, (file,), "/home/ada/.claude")).bundle
    assert kept is not None
    return kept


def read(store: Store, policy: VaultPolicy, bundle: VaultBundle) -> bytes:
    return b"".join(Vault(store, policy).read(bundle, bundle.main))


def test_what_is_kept_with_a_key_is_read_with_that_key_alone(store: Store, tmp_path: Path) -> None:
    policy, other = key_file(tmp_path), key_file(tmp_path, "other", "cd" * 32)
    bundle = keep(store, policy, SAID)

    assert read(store, policy, bundle) == SAID
    with pytest.raises(VaultLocked, match="was encrypted with another key, or is damaged"):
        read(store, other, bundle)
    with pytest.raises(
        VaultLocked, match=r"is not set in your user file, and this part of the vault is encrypted"
    ):
        read(store, VaultPolicy(), bundle)


def test_the_store_holds_neither_the_bytes_nor_their_digest(store: Store, tmp_path: Path) -> None:
    keep(store, key_file(tmp_path), SAID)
    with driver_of(store).read() as tx:
        found = tx.all("SELECT digest, codec, data FROM vault_chunks", {})
    (digest, codec, data) = found[0]
    assert digest != digest_of(SAID)
    assert codec.endswith("+aes-gcm")
    assert b"swordfish" not in data


def test_an_append_costs_its_new_bytes_under_a_key_too(store: Store, tmp_path: Path) -> None:
    policy = key_file(tmp_path)
    before = keep(store, policy, SAID)
    after = keep(store, policy, SAID + b"more\n")
    assert after.main.parts[:-1] == before.main.parts
    assert read(store, policy, after) == SAID + b"more\n"


def test_a_key_that_comes_later_encrypts_what_comes_then_and_repacking_the_rest(
    store: Store, tmp_path: Path
) -> None:
    keep(store, VaultPolicy(), SAID)
    policy = key_file(tmp_path)
    bundle = keep(store, policy, SAID + b"more\n")
    assert len(bundle.main.parts) == 2
    assert read(store, policy, bundle) == SAID + b"more\n"
    assert Vault(store, policy).tidy().repacked == 1
    repacked = store.bundle("claude", ID)
    assert repacked is not None
    (chunk,) = store.read_chunks([part.digest for part in repacked.main.parts])
    assert chunk.codec.endswith("+aes-gcm")
    assert read(store, policy, repacked) == SAID + b"more\n"


def test_without_the_key_nothing_is_stored_beside_what_is_encrypted(store: Store, tmp_path: Path) -> None:
    before = keep(store, key_file(tmp_path), SAID)
    with pytest.raises(VaultLocked):
        keep(store, VaultPolicy(), SAID + b"more\n")
    found = store.bundle("claude", ID)
    assert found is not None
    assert found.files == before.files
    assert store.vault_figures().chunks == 1


def test_after_a_lost_key_a_new_one_begins_anew_and_the_old_copy_stays(store: Store, tmp_path: Path) -> None:
    old, new = key_file(tmp_path), key_file(tmp_path, "new", "cd" * 32)
    keep(store, old, SAID)
    kept = keep(store, new, SAID)
    assert read(store, new, kept) == SAID
    _, aside = store.bundles("claude", ID)
    assert read(store, old, aside) == SAID


def test_a_chunk_cannot_pass_for_another(store: Store, tmp_path: Path) -> None:
    policy = key_file(tmp_path)
    bundle = keep(store, policy, SAID)
    other = keep(store, policy, SAID + b"more\n").main.parts[1]
    with driver_of(store).write() as tx:
        tx.run(
            "UPDATE vault_chunks SET data = (SELECT data FROM vault_chunks WHERE digest = :other)",
            {"other": other.digest},
        )
    with pytest.raises(VaultLocked):
        read(store, policy, bundle)


# --- where the key comes from ---


def test_a_command_can_print_the_key(store: Store, tmp_path: Path) -> None:
    policy = VaultPolicy(key_command=f"echo '{'ab' * 32}'")
    assert read(store, key_file(tmp_path), keep(store, policy, SAID)) == SAID


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ({"key_command": "false"}, "vault.key_command: gave no key: CalledProcessError"),
        ({"key_command": "/no/such/program"}, "vault.key_command: gave no key: No such file or directory"),
        ({"key_command": "echo swordfish"}, "the key must be 64 hexadecimal digits; make one with: openssl"),
        ({"key_file": "/no/such/file"}, "the key of the vault cannot be read: No such file or directory"),
    ],
)
def test_a_key_that_cannot_be_had_is_said_without_showing_it(policy: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        names_of(VaultPolicy(**policy))  # type: ignore[arg-type] # its fields
    assert told in str(refused.value)
    assert "swordfish" not in str(refused.value)


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    policy = key_file(tmp_path)
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(ConfigError, match=f"others can read this key: chmod 600 {tmp_path}/key"):
        names_of(policy)


def test_without_the_library_the_command_that_installs_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return own(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError) as refused:
        names_of(key_file(tmp_path))
    assert "install it: pip install 'holdfast-sessions[vault]'" in str(refused.value)


def test_a_turn_ends_without_its_key_and_says_so(shop: Workshop, tmp_path: Path) -> None:
    lost = replace(Policy(), vault=VaultPolicy(key_file=str(tmp_path / "lost")))
    result = shop.open(lost).run("hello", provider="scripted", cwd=str(shop.work_dir))
    assert result.turn_status is TurnStatus.DONE
    (notice,) = result.notices
    assert notice.startswith("the vault has no copy of this turn: ")
    assert notice.endswith("the key of the vault cannot be read: No such file or directory")
