"""Being stopped: at once while an agent talks, afterwards while a turn is brought to its end."""

import signal
import threading

import pytest

from holdfast.engine.running.stopping import HeldSignals


def test_a_stop_outside_waits_for_the_end() -> None:
    with HeldSignals() as stops:
        signal.raise_signal(signal.SIGINT)
        assert stops.is_pending
    assert isinstance(stops.postponed(), KeyboardInterrupt)
    assert stops.postponed() is None


def test_a_stop_inside_is_raised_where_it_arrives() -> None:
    with HeldSignals() as stops:
        with pytest.raises(KeyboardInterrupt), stops.allowed():
            signal.raise_signal(signal.SIGINT)
        assert not stops.is_pending


def test_a_stop_that_has_waited_is_raised_when_it_is_welcome() -> None:
    with HeldSignals() as stops:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), stops.allowed():
            pytest.fail("it waited long enough")


def test_whoever_insists_is_obeyed() -> None:
    with HeldSignals():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_handlers_are_as_before_afterwards() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with HeldSignals():
        pass
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_what_would_end_the_process_without_an_exception_is_left_alone() -> None:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with HeldSignals():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_another_thread_has_no_say_in_signals() -> None:
    before = signal.getsignal(signal.SIGINT)
    during: list[object] = []

    def enter() -> None:
        with HeldSignals() as stops, stops.allowed():
            during.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert during == [before]
