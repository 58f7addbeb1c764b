"""The launch, explain and policy clauses of the store's contract, on every engine."""

from holdfast.testing.launch_contract import ExplainContract, LaunchContract, RulesContract


class TestLaunch(LaunchContract):
    pass


class TestExplain(ExplainContract):
    pass


class TestRules(RulesContract):
    pass
