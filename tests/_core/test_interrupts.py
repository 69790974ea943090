import signal
from threading import Thread
from types import FrameType

import pytest

from metareplay._core.interrupts import HeldBack, let_through


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_what_comes_in_the_block_comes_at_its_end() -> None:
    before, done = signal.getsignal(signal.SIGINT), list[str]()

    def work() -> None:
        with HeldBack():
            press()
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done
    assert signal.getsignal(signal.SIGINT) is before


def test_nothing_comes_if_nothing_came() -> None:
    with HeldBack():
        let_through()
    let_through()


def test_it_can_be_let_through_earlier_and_comes_once() -> None:
    with HeldBack():
        press()
        with pytest.raises(KeyboardInterrupt):
            let_through()
        let_through()


def test_the_second_one_is_not_held_back() -> None:
    with HeldBack():
        press()
        with pytest.raises(KeyboardInterrupt):
            press()
        with pytest.raises(KeyboardInterrupt):
            let_through()


def test_blocks_in_blocks_hand_it_on() -> None:
    done = list[str]()

    def work() -> None:
        with HeldBack():
            with HeldBack():
                press()
                done.append("inner")
            done.append("outer")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["inner", "outer"]
    with HeldBack(), HeldBack():
        press()
        with pytest.raises(KeyboardInterrupt):
            let_through()


def test_the_second_one_in_an_inner_block_comes_at_the_end_of_the_outer_one() -> None:
    done = list[str]()

    def work() -> None:
        with HeldBack():
            with HeldBack():
                press()
                press()
                done.append("inner")
            done.append("outer")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["inner", "outer"]


def test_a_handler_that_does_not_raise_is_called_at_the_end() -> None:
    called: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        called.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        with HeldBack():
            press()
            assert called == []
        assert called == [signal.SIGINT]
        assert signal.getsignal(signal.SIGINT) is note
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_error_in_the_block_is_not_lost() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match="its own"), HeldBack():
        raise ValueError("its own")
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_do_nothing() -> None:
    before, found = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with HeldBack():
            found.append(signal.getsignal(signal.SIGINT))
            let_through()

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before]
