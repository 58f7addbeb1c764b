from holdfast.testing.observed_contract import ObservedContract
from holdfast.testing.welcome_contract import WelcomeContract


class TestObserved(ObservedContract):
    pass


class TestWelcome(WelcomeContract):
    pass
