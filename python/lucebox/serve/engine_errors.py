"""Maps exceptions of the engine and the scheduler to ApiErrors."""

from __future__ import annotations

import math

from lucebox.errors import CancelledError, LuceboxError
from lucebox.generation.errors import BusyError, DeadlineError, QueueFullError, SchedulerClosedError
from lucebox.serve.errors import ApiError, from_lucebox, overloaded

__all__ = ["api_error_of", "queue_full"]

MAX_RETRY_AFTER = 60
RETRY_BUSY_S = 5


def queue_full(error: QueueFullError, n_slots: int, mean_request_s: float) -> ApiError:
    rounds = (error.n_waiting + 1) / n_slots
    return overloaded(str(error), max(1, min(MAX_RETRY_AFTER, math.ceil(rounds * mean_request_s))))


def api_error_of(error: Exception) -> ApiError:
    """The ApiError of a failed request. The message of an internal fault is not sent to the client."""
    match error:
        case ApiError():
            return error
        case CancelledError():
            return ApiError("cancelled", "the request was cancelled")
        case DeadlineError():
            return ApiError("timeout", str(error))
        case BusyError():
            return overloaded(str(error), RETRY_BUSY_S)
        case SchedulerClosedError():
            return ApiError("overloaded", "the server is shutting down", retry_after=5)
        case LuceboxError():
            return from_lucebox(error)
    return ApiError("internal", f"{type(error).__name__} while generating")
