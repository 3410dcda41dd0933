"""The exception tree. Every error raised on purpose is a LuceboxError; the engine's error codes map onto it once."""

from __future__ import annotations

__all__ = [
    "CancelledError",
    "DeviceError",
    "FormatError",
    "HubError",
    "InternalError",
    "InvalidRequestError",
    "LuceboxError",
    "ModelNotFoundError",
    "OutOfMemoryError",
    "PackError",
    "UnsupportedError",
]


class LuceboxError(Exception):
    """Base of all errors lucebox raises on purpose."""


class FormatError(LuceboxError):
    """A file is truncated, inconsistent or hostile; the message names the file and the offset, tensor or key."""


class UnsupportedError(LuceboxError):
    """The file or request is valid but names something this engine does not have."""


class InvalidRequestError(LuceboxError, ValueError):
    """An argument is out of range or of the wrong kind."""


class OutOfMemoryError(LuceboxError, MemoryError):
    """The planned memory does not fit; the message has the numbers and what would make it fit."""


class ModelNotFoundError(LuceboxError, FileNotFoundError):
    """MODEL is neither a path, a catalog name, nor a hub id that can be resolved."""


class HubError(LuceboxError, OSError):
    """A download failed or the hub cannot be reached; the message says which source and what to do."""


class DeviceError(LuceboxError):
    """A GPU, its driver or its library is missing, too old or failed; the message has the call and what to do."""


class PackError(LuceboxError):
    """A GPU pack is missing, damaged, of another version or for another device; the message has the line to run."""


class CancelledError(LuceboxError):
    """The work was interrupted by the caller; the session stays usable."""


class InternalError(LuceboxError):
    """A bug in lucebox; the message has the source line."""
