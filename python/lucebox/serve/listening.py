"""Binds the server's sockets before the model loads, so a port in use is reported immediately."""

from __future__ import annotations

import errno
import os
import socket

from lucebox.errors import InvalidRequestError
from lucebox.serve.settings import ServeSettings

__all__ = ["bound_sockets"]


def bound_sockets(settings: ServeSettings) -> list[socket.socket]:
    """A bound socket for every address of the host, all on the same port. Connections are refused until listen().

    Raises:
        InvalidRequestError: the host has no address, or the port is in use or not allowed.
    """
    host, port = settings.host.strip("[]"), settings.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InvalidRequestError(f"--host {host!r} has no address: {error}") from error
    bound: list[socket.socket] = []
    for family, kind, protocol, _, address in dict.fromkeys(found):
        one = socket.socket(family, kind, protocol)
        try:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind((address[0], port, *address[2:]))
        except OSError as error:
            one.close()
            if bound and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                continue  # localhost on a machine without IPv6
            for other in bound:
                other.close()
            reason = os.strerror(error.errno or 0)
            raise InvalidRequestError(
                f"cannot listen on {host} port {port}: {reason}. Choose another --port"
            ) from error
        port = one.getsockname()[1]
        bound.append(one)
    return bound
