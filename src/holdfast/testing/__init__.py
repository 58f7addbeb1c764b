"""Owns the test kit for authors of providers: the provider contract as tests that every provider must pass.

The tests need pytest. Subclass the classes of ``holdfast.testing.provider_contract``::

    from holdfast.testing import provider_contract

    class TestCommands(provider_contract.CommandContract): ...

and define these fixtures:

``provider``
    the provider.
``probe_outputs``
    what a binary that can do everything prints when it is asked with ``provider.probes``.
``lines``
    the output of one run that ended well, as objects.

``pytest.register_assert_rewrite("holdfast.testing")`` in a ``conftest.py`` makes failures readable.
"""
