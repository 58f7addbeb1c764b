"""The launch, explain and policy clauses of the store's contract, on every engine."""

from holdfast.testing.launch_contract import AttemptContract, ExplainContract, LaunchContract, RulesContract


class TestAttempts(AttemptContract):
    pass


class TestLaunch(LaunchContract):
    pass


class TestExplain(ExplainContract):
    pass


class TestRules(RulesContract):
    pass
