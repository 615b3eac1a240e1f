"""Finds out whether a connection has failed because of TLS, which another try would not change."""

from __future__ import annotations

import socket
import ssl
from typing import Optional

from .errors import CodecError, TLSError
from .nodes import parse_address
from .protocol import HELLO, frame

_PROBE_TIMEOUT = 3.0  # seconds


def tls_error(node: str, context: Optional[ssl.SSLContext], error: Exception) -> Optional[TLSError]:
    """Return the error for a handshake that has failed with ``error``, or None if TLS is not the reason.

    A node that expects TLS, or does not, just closes the connection of a client
    that does the opposite, as it also does when it stops. So it is tried the
    other way round.
    """
    if isinstance(error, TLSError):  # the port is another one
        return error
    if context is None:
        if not isinstance(error, socket.timeout) and _speaks_tls(node):
            return _tls_error(node, "its port requires TLS: give tls=ssl.create_default_context(), for example", error)
        return None
    if isinstance(error, ssl.SSLCertVerificationError):
        return _tls_error(node, f"its certificate is not accepted: {error.verify_message.rstrip('.')}; check the authorities in `tls` (cafile), and that "
                          "the certificate names the host in the node's address", error)
    if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
        return _tls_error(node, f"it refuses this client: {error.reason}; check the client's certificate in `tls` (load_cert_chain), which "
                          "the node's server.tls.client_ca_file must have signed", error)
    if not isinstance(error, (socket.timeout, CodecError)) and _speaks_plainly(node):
        return _tls_error(node, "its port does not speak TLS: leave out `tls`, or set server.tls of the node", error)
    return None


def _tls_error(node: str, message: str, cause: Exception) -> TLSError:
    error = TLSError(node, message)
    error.__cause__ = cause
    return error


def _speaks_tls(node: str) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent or read
    try:
        with socket.create_connection(parse_address(node), _PROBE_TIMEOUT) as sock, context.wrap_socket(sock):
            return True
    except OSError:
        return False


def _speaks_plainly(node: str) -> bool:
    try:
        with socket.create_connection(parse_address(node), _PROBE_TIMEOUT) as sock:
            sock.sendall(frame(HELLO, "1", {}))
            answer = sock.recv(1)
            return answer == b"\0"  # the first byte of a frame's length
    except OSError:
        return False
