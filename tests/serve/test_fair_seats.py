"""Seats that senders share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from lucebox.chat.fair_seats import FairSeats
from lucebox.chat.presence import set_left
from lucebox.errors import CancelledError
from lucebox.generation.errors import BusyError


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def sit(seats: FairSeats, sender: str, order: list[str], *, waits: bool = False) -> Callable[[], None]:
    """Takes a seat in another thread; returns when the thread has it or waits. The result leaves the seat."""
    leaving = threading.Event()
    n_seated, n_waiting = len(order), len(seats._waiting)

    def run() -> None:
        with seats.seat(sender):
            order.append(sender)
            leaving.wait(60)

    def leave() -> None:
        leaving.set()
        thread.join()

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: len(seats._waiting) > n_waiting if waits else len(order) > n_seated)
    return leave


def test_a_sender_has_one_seat_and_others_pass_its_requests() -> None:
    seats, order = FairSeats(2, 9), list[str]()
    first = sit(seats, "a", order)
    second, third = (sit(seats, "a", order, waits=True) for _ in range(2))
    other = sit(seats, "b", order)
    last = sit(seats, "c", order, waits=True)
    assert order == ["a", "b"]
    first()
    wait_until(lambda: order == ["a", "b", "c"])
    other()
    wait_until(lambda: order == ["a", "b", "c", "a"])
    for leave in (last, second, third):
        leave()
    assert order == ["a", "b", "c", "a", "a"]


def test_too_many_waiting_requests_of_a_sender() -> None:
    seats, order = FairSeats(1, 1), list[str]()
    first, second = sit(seats, "a", order), sit(seats, "a", order, waits=True)
    with pytest.raises(BusyError), seats.seat("a"):
        pass
    other = sit(seats, "b", order, waits=True)
    for leave in (first, other, second):
        leave()
    assert order == ["a", "b", "a"]


def test_a_client_that_leaves_waits_no_longer() -> None:
    """It finds out although no seat is given back."""
    seats, order = FairSeats(1, 9), list[str]()
    leave = sit(seats, "a", order)
    left = threading.Event()
    raised = threading.Event()

    def wait() -> None:
        set_left(left)
        with pytest.raises(CancelledError), seats.seat("b"):
            pass
        raised.set()

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: len(seats._waiting) == 1)
    left.set()
    assert raised.wait(60)
    thread.join()
    leave()
