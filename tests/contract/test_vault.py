"""Owns the clauses about the vault: chunks by their digest, bundles written last, and nothing that is referred to is lost."""

import os
from dataclasses import replace

import pytest

from holdfast.domain.policy import Policy, VaultPolicy
from holdfast.domain.vault import (
    MAX_CALL_BYTES,
    MAX_CHUNK,
    MAX_DIGESTS,
    VaultBundle,
    VaultChunk,
    VaultFile,
    VaultPart,
)
from holdfast.errors import Conflict, InvalidInput, NotFound, Refused
from holdfast.store.contract import Store
from holdfast.store.packing import digest_of
from tests.builders import a_bundle, a_chunk, a_file, a_pointer, a_provider_session_id, a_runtime
from tests.clock import ManualClock
from tests.contract.conftest import MakeStore
from tests.steps import begin, run

ONE, TWO, THREE = b"one\n" * 9, b"two\n" * 9, b"three\n" * 9


def kept(store: Store, bundle: VaultBundle) -> VaultBundle:
    found = store.bundle(bundle.provider, bundle.provider_session_id, bundle.branch)
    assert found is not None
    return found


def keep(store: Store, *parts: bytes, **changes: object) -> VaultBundle:
    bundle = a_bundle(a_file(*parts), **changes)
    store.keep_bundles([bundle], [a_chunk(part) for part in parts])
    return kept(store, bundle)


class TestChunks:
    def test_what_is_lacking_is_said_once_and_in_order(self, store: Store) -> None:
        one, two, three = (digest_of(data) for data in (ONE, TWO, THREE))
        store.add_chunks([a_chunk(TWO)])
        assert store.lacking_chunks([three, two, one, three]) == (three, one)
        assert store.lacking_chunks([]) == ()

    def test_a_chunk_is_read_back_as_it_was_written(self, store: Store) -> None:
        chunks = [a_chunk(bytes(range(256))), a_chunk(ONE), a_chunk(b"x" * MAX_CHUNK)]
        store.add_chunks(chunks)
        assert store.read_chunks([chunk.digest for chunk in reversed(chunks)]) == tuple(reversed(chunks))

    def test_a_chunk_that_is_there_stays_as_it_is(self, store: Store) -> None:
        raw = VaultChunk(digest_of(ONE), len(ONE), "raw", ONE)
        store.add_chunks([raw])
        store.add_chunks([a_chunk(ONE), a_chunk(ONE)])
        assert store.read_chunks([raw.digest]) == (raw,)

    @pytest.mark.parametrize(
        ("wrong", "field"),
        [
            (replace(a_chunk(ONE), digest=digest_of(TWO)), "digest"),
            (replace(a_chunk(ONE), digest="nothing"), "digest"),
            (replace(a_chunk(ONE), size=len(ONE) - 1), "chunk"),
            (replace(a_chunk(ONE), size=0), "chunk"),
            (replace(a_chunk(ONE), data=b"\0\1\2", codec="zlib"), "chunk"),
            (replace(a_chunk(ONE), codec="rar"), "codec"),
            (VaultChunk(digest_of(b"x" * (MAX_CHUNK + 1)), MAX_CHUNK + 1, "raw", b"x" * (MAX_CHUNK + 1)), "chunk"),
        ],
    )  # fmt: skip
    def test_a_chunk_that_could_not_be_read_back_is_refused(
        self, store: Store, wrong: VaultChunk, field: str
    ) -> None:
        with pytest.raises(InvalidInput) as refused:
            store.add_chunks([a_chunk(TWO), wrong])
        assert refused.value.field == field
        assert store.vault_figures().chunks == 0

    def test_the_digest_of_an_encrypted_chunk_is_not_compared(self, store: Store) -> None:
        secret = VaultChunk("ab" * 32, 500, "zlib+aes-gcm", b"not to be read")
        store.add_chunks([secret])
        assert store.read_chunks([secret.digest]) == (secret,)

    def test_many_chunks_are_read_in_several_calls(self, store: Store) -> None:
        data = [bytes([n]) * MAX_CHUNK for n in range(10)]
        chunks = [VaultChunk(digest_of(plain), MAX_CHUNK, "raw", plain) for plain in data]
        for chunk in chunks:
            store.add_chunks([chunk])
        digests = [chunk.digest for chunk in chunks]
        first = store.read_chunks(digests)
        assert first == tuple(chunks[: len(first)])
        assert 0 < len(first) < 10
        assert first + store.read_chunks(digests[len(first) :]) == tuple(chunks)

    def test_one_call_takes_as_much_as_it_promises(self, store: Store) -> None:
        data = [os.urandom(MAX_CHUNK) for _ in range(MAX_CALL_BYTES // MAX_CHUNK)]
        chunks = [VaultChunk(digest_of(plain), MAX_CHUNK, "raw", plain) for plain in data]
        bundle = a_bundle(a_file(*data))
        store.keep_bundles([bundle], chunks)
        assert store.read_chunks([part.digest for part in kept(store, bundle).main.parts]) == tuple(chunks)

    def test_a_chunk_that_is_not_there_is_not_found(self, store: Store) -> None:
        store.add_chunks([a_chunk(ONE)])
        with pytest.raises(NotFound, match="chunk"):
            store.read_chunks([digest_of(ONE), digest_of(TWO)])

    def test_too_many_digests_are_refused(self, store: Store) -> None:
        for verb in (store.lacking_chunks, store.read_chunks):
            with pytest.raises(InvalidInput, match="at most"):
                verb(["0" * 64] * (MAX_DIGESTS + 1))


class TestBundles:
    def test_a_bundle_is_read_back_as_it_was_kept(self, store: Store, clock: ManualClock) -> None:
        side = a_file(THREE, name="projects/-srv-infra/5b1c/tool-results/1.txt", is_main=False)
        empty = a_file(name="projects/-srv-infra/5b1c/empty", is_main=False)
        given = a_bundle(a_file(ONE, TWO, ONE), side, empty, runtime_id="runtime")
        store.keep_bundles([given], [a_chunk(part) for part in (ONE, TWO, THREE)])
        assert kept(store, given) == replace(given, kept_at=clock(), revision=1)
        assert store.bundles("claude", given.provider_session_id) == (kept(store, given),)

    def test_nothing_is_there_before(self, store: Store) -> None:
        assert store.bundle("claude", a_provider_session_id()) is None
        assert store.bundles("claude", a_provider_session_id()) == ()

    def test_a_bundle_without_its_chunks_is_refused_as_a_whole(self, store: Store) -> None:
        fine, lacks = a_bundle(a_file(ONE)), a_bundle(a_file(ONE, TWO))
        with pytest.raises(Conflict, match="lacks 1"):
            store.keep_bundles([fine, lacks], [a_chunk(ONE)])
        assert store.vault_figures().bundles == 0
        assert store.vault_figures().chunks == 0

    def test_an_append_adds_parts(self, store: Store, clock: ManualClock) -> None:
        before = keep(store, ONE)
        clock.advance(60)
        after = replace(before, files=(a_file(ONE, TWO),))
        store.keep_bundles([after], [a_chunk(TWO)])
        assert kept(store, before) == replace(after, revision=2, kept_at=clock())

    def test_a_file_that_was_rewritten_has_its_new_parts_alone(self, store: Store) -> None:
        before = keep(store, ONE, TWO)
        store.keep_bundles([replace(before, files=(a_file(THREE, TWO),))], [a_chunk(THREE)])
        assert kept(store, before).files == (a_file(THREE, TWO),)
        shorter = replace(kept(store, before), files=(a_file(THREE),))
        store.keep_bundles([shorter])
        assert kept(store, before).files == (a_file(THREE),)

    def test_a_bundle_that_was_repacked_is_as_old_as_before(self, store: Store, clock: ManualClock) -> None:
        before = keep(store, ONE, TWO)
        clock.advance(60)
        after = replace(before, files=(a_file(ONE + TWO),))
        store.keep_bundles([after], [a_chunk(ONE + TWO)], repacked=True)
        assert kept(store, before) == replace(after, revision=2)

    def test_files_come_and_go(self, store: Store) -> None:
        first, second = (a_file(TWO, name=f"side/{n}", is_main=False) for n in (1, 2))
        bundle = a_bundle(a_file(ONE), first)
        store.keep_bundles([bundle], [a_chunk(ONE), a_chunk(TWO), a_chunk(THREE)])
        for files in [
            (a_file(ONE), first, second),
            (a_file(ONE), second),
            (a_file(ONE, name="moved/5b1c.jsonl"), second, a_file(THREE, name="side/3", is_main=False)),
            (a_file(ONE),),
        ]:
            store.keep_bundles([replace(kept(store, bundle), files=files)])
            assert kept(store, bundle).files == files

    def test_what_was_changed_meanwhile_is_not_overwritten(self, store: Store) -> None:
        before = keep(store, ONE)
        store.keep_bundles([replace(before, files=(a_file(ONE, TWO),))], [a_chunk(TWO)])
        with pytest.raises(Conflict, match="changed meanwhile"):
            store.keep_bundles([replace(before, files=(a_file(ONE, THREE),))], [a_chunk(THREE)])
        with pytest.raises(Conflict, match="changed meanwhile"):
            store.keep_bundles([replace(before, revision=0, files=(a_file(THREE),))], [a_chunk(THREE)])
        with pytest.raises(Conflict, match="changed meanwhile"):
            store.keep_bundles([a_bundle(a_file(ONE), revision=1)])
        assert kept(store, before).files == (a_file(ONE, TWO),)

    def test_the_same_call_again_changes_nothing(self, store: Store, clock: ManualClock) -> None:
        given = a_bundle(a_file(ONE))
        store.keep_bundles([given], [a_chunk(ONE)])
        before = kept(store, given)
        clock.advance(60)
        store.keep_bundles([given], [a_chunk(ONE)])
        assert kept(store, given) == before

    def test_branches_stand_beside_the_session(self, store: Store) -> None:
        main = keep(store, ONE)
        other = keep(store, ONE, TWO, branch="f" * 64, provider_session_id=main.provider_session_id)
        assert store.bundles("claude", main.provider_session_id) == (main, other)

    @pytest.mark.parametrize(
        "files",
        [
            (a_file(ONE, name="/etc/passwd"),),
            (a_file(ONE, name="projects/../../passwd"),),
            (a_file(ONE, name="projects//x"),),
            (a_file(ONE, name="projects\\x"),),
            (a_file(ONE, name=""),),
            (a_file(ONE, is_main=False),),
            (a_file(ONE), a_file(ONE, name="another")),
            (a_file(ONE), a_file(ONE, is_main=False)),
            (replace(a_file(ONE), size=3),),
            (replace(a_file(ONE), size=0, parts=(VaultPart(digest_of(ONE), 0),)),),
            (replace(a_file(ONE), size=5, parts=(VaultPart(digest_of(ONE), 5),)),),
        ],
    )
    def test_a_bundle_that_could_not_be_put_back_is_refused(
        self, store: Store, files: tuple[VaultFile, ...]
    ) -> None:
        store.add_chunks([a_chunk(ONE)])
        with pytest.raises(InvalidInput):
            store.keep_bundles([replace(a_bundle(), files=files)])
        assert store.vault_figures().bundles == 0

    def test_a_bundle_is_dropped_with_its_references(self, store: Store, clock: ManualClock) -> None:
        bundle = keep(store, ONE, TWO)
        assert not store.drop_bundle("claude", bundle.provider_session_id, "another")
        assert not store.drop_bundle("claude", bundle.provider_session_id, kept_at=clock.advance(1))
        assert store.drop_bundle("claude", bundle.provider_session_id, kept_at=bundle.kept_at)
        assert not store.drop_bundle("claude", bundle.provider_session_id)
        assert store.vault_figures().loose_chunks == 2

    def test_entries_come_in_pages_the_oldest_change_first(self, store: Store, clock: ManualClock) -> None:
        bundles = []
        for n in range(5):
            bundles.append(keep(store, ONE, TWO[: n + 1]))
            clock.advance(60)
        first = store.vault_entries(limit=2)
        rest = store.vault_entries(after=first[-1])
        assert [entry.provider_session_id for entry in first + rest] == [
            bundle.provider_session_id for bundle in bundles
        ]
        entry = first[1]
        assert (entry.main, entry.size, entry.parts) == (bundles[1].main.name, len(ONE) + 2, 2)
        assert (entry.home, entry.work_dir, entry.kept_at) == (
            bundles[1].home, bundles[1].work_dir, bundles[1].kept_at,
        )  # fmt: skip


class TestLimit:
    @pytest.fixture
    def small(self, make_store: MakeStore) -> Store:
        return make_store(policy=replace(Policy(), vault=VaultPolicy(limit_bytes=100)))

    def test_a_full_vault_takes_nothing_more(self, small: Store) -> None:
        first = keep(small, bytes(range(60)))
        with pytest.raises(Refused) as full:
            keep(small, bytes(range(60, 120)))
        assert (full.value.reason, full.value.details["needed_bytes"]) == ("vault_full", 60)
        assert small.vault_figures().bundles == 1
        # what does not grow is still written
        small.keep_bundles([replace(first, work_dir="/elsewhere")])
        assert kept(small, first).work_dir == "/elsewhere"
        small.drop_bundle("claude", first.provider_session_id)
        keep(small, bytes(range(60, 120)))


class TestSweep:
    def test_only_chunks_that_nothing_has_used_for_a_day_go(self, store: Store, clock: ManualClock) -> None:
        used = keep(store, ONE)
        store.add_chunks([a_chunk(TWO)])
        clock.advance(23 * 3600)
        store.add_chunks([a_chunk(THREE)])
        assert store.sweep_vault().chunks == 0
        clock.advance(2 * 3600)
        swept = store.sweep_vault()
        assert (swept.chunks, swept.stored_bytes) == (1, len(a_chunk(TWO).data))
        assert store.lacking_chunks([digest_of(part) for part in (ONE, TWO, THREE)]) == (digest_of(TWO),)
        assert kept(store, used).files == (a_file(ONE),)

    def test_a_chunk_stays_for_a_day_after_its_last_use(self, store: Store, clock: ManualClock) -> None:
        removed, rewritten = keep(store, ONE), keep(store, TWO)
        clock.advance(48 * 3600)
        store.drop_bundle("claude", removed.provider_session_id)
        store.keep_bundles([replace(rewritten, files=(a_file(THREE),))], [a_chunk(THREE)])
        assert store.sweep_vault().chunks == 0
        clock.advance(25 * 3600)
        assert store.sweep_vault().chunks == 2
        assert store.read_chunks([digest_of(THREE)]) == (a_chunk(THREE),)

    def test_a_chunk_that_two_bundles_use_stays_with_the_second(
        self, store: Store, clock: ManualClock
    ) -> None:
        first, second = keep(store, ONE), keep(store, ONE)
        store.drop_bundle("claude", first.provider_session_id)
        clock.advance(48 * 3600)
        assert store.sweep_vault().chunks == 0
        assert kept(store, second).files == (a_file(ONE),)

    def test_a_sweep_takes_more_than_one_batch(self, store: Store, clock: ManualClock) -> None:
        for start in range(0, 450, 150):
            store.add_chunks([a_chunk(b"chunk %d" % n) for n in range(start, start + 150)])
        clock.advance(25 * 3600)
        assert store.sweep_vault().chunks == 450
        assert store.vault_figures().chunks == 0


class TestFigures:
    def test_everything_is_counted(self, store: Store) -> None:
        keep(store, ONE, TWO)
        keep(store, ONE)
        store.add_chunks([a_chunk(THREE)])
        figures = store.vault_figures()
        one, two, three = (len(a_chunk(part).data) for part in (ONE, TWO, THREE))
        assert (figures.bundles, figures.size) == (2, 2 * len(ONE) + len(TWO))
        assert (figures.stored_bytes, figures.chunk_bytes) == (2 * one + two, one + two + three)
        assert (figures.chunks, figures.loose_chunks, figures.loose_bytes) == (3, 1, three)
        assert figures.limit_bytes == 10_000_000_000

    def test_the_chunks_of_all_workspaces_are_counted_together(
        self, store: Store, make_store: MakeStore
    ) -> None:
        before = store.vault_figures().all_bytes
        keep(store, ONE)
        other = make_store(workspace="other")
        keep(other, ONE, TWO)
        for each in (store, other):
            added = 2 * len(a_chunk(ONE).data) + len(a_chunk(TWO).data)
            assert each.vault_figures().all_bytes == before + added


class TestRemovedSessions:
    def test_what_belongs_to_a_removed_session_is_dropped(self, store: Store) -> None:
        session, native = begin(store), a_provider_session_id()
        run(store, session, provider_session_id=native)
        keep(store, ONE, provider_session_id=native)
        keep(store, ONE, TWO, branch="f" * 64, provider_session_id=native)
        elsewhere = keep(store, THREE)
        store.remove_session(session.id)
        assert store.bundles("claude", native) == ()
        assert kept(store, elsewhere).files == (a_file(THREE),)

    def test_what_another_session_points_to_stays(self, store: Store) -> None:
        session, other, native = begin(store), begin(store), a_provider_session_id()
        run(store, session, provider_session_id=native)
        store.register_runtime(a_runtime())
        keep(store, ONE, provider_session_id=native)
        store.set_pointer(a_pointer(other.id, provider_session_id=native))
        store.remove_session(session.id)
        assert len(store.bundles("claude", native)) == 1
        store.remove_session(other.id)
        assert store.bundles("claude", native) == ()
