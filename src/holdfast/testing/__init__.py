"""Owns the conformance kit: the contracts of stores and providers as tests that any implementation can run.

Each ``*_contract`` module holds classes of tests; every test checks one clause of ``holdfast.store.contract``,
and those of ``provider_contract`` one of ``holdfast.providers.contract``. They need pytest; ``clock`` and
``builders`` do not. Subclass what you implement::

    from holdfast.testing.session_contract import SessionContract

    class TestSessions(SessionContract): ...

and give these fixtures for a store:

``clock``
    a ``holdfast.testing.clock.ManualClock``.
``make_store``
    a function of ``workspace="default"`` and ``policy=None`` that opens another handle on the test's own
    data, with that clock as its time. The data are empty at first.
``store``
    ``make_store()``.
``damage``
    a function of a session's id and fields (``phase="dancing"``) that overwrites them behind the store's
    back, so that the row cannot be understood any more.

For a provider, give these:

``provider``
    the provider.
``probe_outputs``
    what a binary that can do everything prints when it is asked with ``provider.probes``.
``lines``
    the output of one run that ended well, as objects.

``pytest.register_assert_rewrite("holdfast.testing")`` in a ``conftest.py`` makes failures readable.
"""
