"""Seats that senders share."""

from __future__ import annotations

import threading
import time

import pytest
from lucebox.chat.fair_seats import FairSeats
from lucebox.chat.presence import set_left
from lucebox.errors import CancelledError
from lucebox.generation.errors import BusyError


def sit(seats: FairSeats, sender: str, order: list[str], seconds: float) -> threading.Thread:
    def run() -> None:
        with seats.seat(sender):
            order.append(sender)
            time.sleep(seconds)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.02)
    return thread


def test_a_sender_has_one_seat_and_others_pass_its_requests() -> None:
    seats, order = FairSeats(2, 9), list[str]()
    threads = [sit(seats, sender, order, 0.3) for sender in ("a", "a", "a", "b", "c")]
    assert order == ["a", "b"]
    for thread in threads:
        thread.join()
    assert order[:4] == ["a", "b", "c", "a"] and len(order) == 5


def test_too_many_waiting_requests_of_a_sender() -> None:
    seats, order = FairSeats(1, 1), list[str]()
    threads = [sit(seats, "a", order, 0.2) for _ in range(2)]
    with pytest.raises(BusyError), seats.seat("a"):
        pass
    threads.append(sit(seats, "b", order, 0))
    for thread in threads:
        thread.join()
    assert sorted(order) == ["a", "a", "b"]


def test_a_client_that_leaves_waits_no_longer() -> None:
    seats, order = FairSeats(1, 9), list[str]()
    holder = sit(seats, "a", order, 1.0)
    left = threading.Event()
    raised = threading.Event()

    def wait() -> None:
        set_left(left)
        with pytest.raises(CancelledError), seats.seat("b"):
            pass
        raised.set()

    thread = threading.Thread(target=wait)
    thread.start()
    left.set()
    assert raised.wait(0.8)
    thread.join()
    holder.join()
