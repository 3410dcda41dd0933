"""The exceptions. Every error raised on purpose is a LuceboxError; the bindings map the engine's codes to them."""

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
    """Base class of all errors that lucebox raises on purpose."""


class FormatError(LuceboxError):
    """A file is truncated, inconsistent or hostile; the message names the file and the offset, tensor or key."""


class UnsupportedError(LuceboxError):
    """The file or request is valid but needs something that this engine lacks."""


class InvalidRequestError(LuceboxError, ValueError):
    """An argument is out of range or of the wrong kind."""


class OutOfMemoryError(LuceboxError, MemoryError):
    """The planned memory does not fit; the message has the numbers and a way to make it fit."""


class ModelNotFoundError(LuceboxError, FileNotFoundError):
    """MODEL is neither a path, a catalog name, nor the id of a hub model."""


class HubError(LuceboxError, OSError):
    """A download failed or the hub is unreachable; the message has the source and what to do."""


class DeviceError(LuceboxError):
    """A GPU, its driver or its library is missing, too old or failed; the message has the call and what to do."""


class PackError(LuceboxError):
    """A GPU pack is missing, damaged, of another version or for another device; the message has the command to run."""


class CancelledError(LuceboxError):
    """The caller interrupted the work; the session stays usable."""


class InternalError(LuceboxError):
    """A bug in lucebox; the message has the source line."""
