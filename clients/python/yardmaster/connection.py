"""A connection to one node, with a thread of its own."""

from __future__ import annotations

import collections
import concurrent.futures
import itertools
import os
import selectors
import socket
import ssl
import threading
import time
import weakref
from typing import Callable, Dict, FrozenSet, Iterable, Optional, Protocol, Tuple, Union

from .codec import Encoded
from .errors import CodecError, ConnectionLost, MessageTooLarge, NotSupported, OverhopError, TLSError, Unauthorized
from .nodes import parse_address
from .protocol import (API, CAPABILITIES, CAPABILITY_API, CAPABILITY_CONTENT, CAPABILITY_JSON, CONTENT, DELIVERY, ERR, HELLO, HI, IDENT,
                       MAX_FRAME, OK, PING, PUSH_RID, REGISTER, Fields, OtherPort, check_size, error_of, frame, only_strings,
                       parse_envelope)
from .tlscheck import tls_error
from .waits import resolve

# Receives the payload of the answer and None, or a dict without meaning and the error.
Callback = Callable[[Fields, Optional[Exception]], None]

_MAX_INCOMING_FRAME = 32 << 20  # bytes, the largest frame that any node can be configured for
_CONNECT_TIMEOUT = 5.0  # seconds for connecting, and for each read and write until registered
_PING_AFTER = 5.0       # seconds without received bytes before a PING is sent
# Seconds without received bytes after which a node that was sent a PING is given up.
# A node answers in order, and a request before the PING may take the node's
# request_timeout, which is at most 60 s. If only the PING is pending, less is enough.
_BUSY_TIMEOUT = 65.0
_IDLE_TIMEOUT = 15.0
# Seconds after which bytes that the peer's TCP does not acknowledge end the connection.
# Together with the time between two BEATs it is shorter than a lease, so that a
# worker can move its jobs to another node before their leases expire.
_UNACKNOWLEDGED_TIMEOUT = 3.0
_CHUNK_SIZE = 64 << 10  # bytes written to the socket at once


class Settings:
    """Settings that all connections of a Worker or Client share."""

    def __init__(self, name: Optional[str], tls: Optional[ssl.SSLContext], token: Optional[str]) -> None:
        self.tls = tls
        self.hello: Fields = {
            "client": "yardmaster-python", "ext": [DELIVERY], "caps": CAPABILITIES,
            "name": name or f"{socket.gethostname()}-{os.getpid()}",
        }
        if token is not None:
            self.hello["token"] = token


class ForkAware(Protocol):
    """What holds state that a forked child cannot share."""

    def after_fork(self) -> None:
        """Give up that state; called in the child."""
        ...


fork_aware: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def _after_fork() -> None:
    for instance in list(fork_aware):
        instance.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Connection:
    """A connection to one node: requests are pipelined, answers go to callbacks.

    The constructor starts a thread that connects, registers, reads and writes;
    one thread does both because an SSL socket must not be used by two. The
    thread calls ``on_connected`` once if the connection is registered,
    ``on_push`` for each push, and ``on_disconnected`` once at the end, after the
    callbacks of all pending requests. Callbacks must not block.
    """

    def __init__(self, node: str, settings: Settings, on_connected: Callable[[Connection], None],
                 on_push: Callable[[Connection, int, Fields], None],
                 on_disconnected: Callable[[Connection, Exception], None]) -> None:
        self.node, self._settings = node, settings
        self.node_name = ""         # announced by the node; "" until registered
        self.max_frame = MAX_FRAME  # bytes, announced by the node
        self.capabilities: FrozenSet[str] = frozenset()  # of both the node and this client
        self.ready: concurrent.futures.Future[None] = concurrent.futures.Future()  # done once registered, or failed
        self._on_connected, self._on_push, self._on_disconnected = on_connected, on_push, on_disconnected
        self._request_ids = itertools.count(1)
        self._closing = False

        self._lock = threading.Lock()  # guards _outgoing, _pending and _error
        self._outgoing: collections.deque[bytes] = collections.deque()  # frames to write
        self._pending: Dict[str, Callback] = {}  # by request id
        self._error: Optional[Exception] = None   # why the connection ended; None while it has not

        # A byte sent to _wake_sender interrupts select() in the connection's thread.
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)

        # Used by the connection's thread only.
        self._received = bytearray()   # bytes that are not yet a whole frame
        self._unsent = memoryview(b"")  # rest of the frames being written
        self._socket: Optional[socket.socket] = None
        fork_aware.add(self)
        self._thread = threading.Thread(target=self._run, name=f"yardmaster {node}", daemon=True)
        self._thread.start()

    def send(self, message_type: int, payload: Union[Fields, Encoded], callback: Optional[Callback] = None) -> None:
        """Send a request without waiting for its answer.

        ``callback`` receives the answer in the connection's thread, or in the
        caller's if the connection has already ended. Raises CodecError if the
        payload cannot be encoded or is larger than the node accepts, and
        NotSupported if the node does not have the request.
        """
        self._check_supported(message_type, payload)
        request_id = str(next(self._request_ids))
        request = frame(message_type, request_id, payload)
        if len(request) - 4 > self.max_frame:
            raise MessageTooLarge(f"message of {len(request) - 4} bytes is too large: {self.node} accepts {self.max_frame}")
        with self._lock:
            error = self._error
            if error is None:
                if callback is not None:
                    self._pending[request_id] = callback
                self._outgoing.append(request)
        if error is None:
            self._wake()
        elif callback is not None:
            callback({}, error)

    def _check_supported(self, message_type: int, payload: Union[Fields, Encoded]) -> None:
        """Raise NotSupported or CodecError for a request that the node, of an older release, does not have."""
        older = f"{self.node}, of an older release,"
        if message_type == API:
            if CAPABILITY_API not in self.capabilities:
                raise NotSupported("NOT_IMPLEMENTED", f"{older} has no API over Overhop: use HTTP or NATS, or upgrade it")
        elif message_type == CONTENT:
            if CAPABILITY_CONTENT not in self.capabilities:
                raise NotSupported("RESPONSE_TOO_LARGE", f"{older} sends no value that does not fit into a frame")
        elif isinstance(payload, dict) and CAPABILITY_JSON not in self.capabilities and any(key.endswith("_json") for key in payload):
            raise CodecError(f"{older} takes no floats and no ints beyond 64 bits")

    def call(self, message_type: int, payload: Fields) -> concurrent.futures.Future[Fields]:
        """Send a request and return the future of the payload of its answer.

        The future fails with OverhopError if the node refuses the request, and with ConnectionLost.
        """
        future: concurrent.futures.Future[Fields] = concurrent.futures.Future()
        self.send(message_type, payload, lambda answer, error: resolve(future, answer, error))
        return future

    def check(self) -> None:
        """Raise the error that ended the connection, if it has ended."""
        with self._lock:
            error = self._error
        if error is not None:
            raise error

    def close(self) -> None:
        """Close the connection after all queued requests are written; do not wait for that."""
        self._closing = True
        self._wake()

    def join(self, timeout: float) -> None:
        """Wait until a closed connection has written all queued requests, at most ``timeout`` seconds."""
        self._thread.join(timeout)

    def after_fork(self) -> None:
        """Close the child's duplicate of the socket, which would keep the connection open."""
        if self._socket is not None:
            self._socket.close()

    def _wake(self) -> None:
        if threading.current_thread() is self._thread:  # a callback: the thread writes once it has returned
            return
        try:
            self._wake_sender.send(b"!")
        except OSError:  # the buffer is full, or the thread has ended
            pass

    def _run(self) -> None:
        """Run the connection's thread: connect, serve until an error or close(), report the end."""
        try:
            self._socket = self._connect()
            resolve(self.ready, None)
            self._on_connected(self)
            self._serve(self._socket)
            error: Exception = ConnectionLost("connection was closed by this client")
        except (OverhopError, ConnectionLost) as e:
            error = e
        except Exception as e:  # any other error ends this connection, too
            error = ConnectionLost(f"{self.node}: {e or type(e).__name__}")
        if self._socket is not None:
            self._socket.close()
        with self._lock:
            self._error = error
            pending, self._pending = self._pending, {}
            self._outgoing.clear()
            self._wake_receiver.close()
            self._wake_sender.close()
        resolve(self.ready, None, error)
        for callback in pending.values():
            callback({}, error if isinstance(error, ConnectionLost) else ConnectionLost(str(error)))
        self._on_disconnected(self, error)

    def _connect(self) -> socket.socket:
        """Connect and register, and return the socket in non-blocking mode."""
        host, port = parse_address(self.node)
        sock = socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(_UNACKNOWLEDGED_TIMEOUT * 1000))
            try:
                if self._settings.tls is not None:
                    sock = self._settings.tls.wrap_socket(sock, server_hostname=host)
                hi = self._handshake(sock, HELLO, self._settings.hello, HI)
            except (OSError, CodecError) as e:
                raise tls_error(self.node, self._settings.tls, e) or e
            if DELIVERY not in (hi.get("ext") or ()):
                raise NotSupported("NOT_IMPLEMENTED", f"{self.node} does not support {DELIVERY}")
            self.node_name = str(hi.get("node") or "")
            self.capabilities = frozenset(only_strings(hi.get("caps")))
            self.max_frame = int(hi.get("max_envelope_size_bytes") or MAX_FRAME)
            self._handshake(sock, REGISTER, {}, OK)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
        return sock

    def _handshake(self, sock: socket.socket, message_type: int, payload: Fields, expected: int) -> Fields:
        """Send one request on the blocking socket and return the payload of its answer.

        An IDENT, by which a node asks for the request, is skipped.
        """
        sock.sendall(frame(message_type, str(next(self._request_ids)), payload))
        while True:
            for received, _, answer in self._whole_frames():
                if received == ERR:
                    raise self._explain(error_of(answer))
                if received == expected:
                    return answer
                if received != IDENT:
                    raise ConnectionLost(f"{self.node} answered t={received} to t={message_type}")
            self._append_received(sock.recv(_CHUNK_SIZE))

    def _explain(self, error: OverhopError) -> OverhopError:
        """Return the refusal of a handshake; that of the token says what to check."""
        if not isinstance(error, Unauthorized):
            return error
        given = "refuses the token of this client" if "token" in self._settings.hello else "requires a token, and this client has none"
        return Unauthorized(error.code, f"{self.node} {given}: check `token`, which is server.token of the nodes", error.details)

    def _append_received(self, data: bytes) -> None:
        if not data:
            raise ConnectionLost(f"{self.node} closed the connection")
        self._received += data

    def _whole_frames(self) -> Iterable[Tuple[int, str, Fields]]:
        """Remove the whole frames from the received bytes and yield type, request id and payload of each."""
        while len(self._received) >= 4:
            try:
                size = check_size(bytes(self._received[:4]), _MAX_INCOMING_FRAME)
            except OtherPort as e:
                raise TLSError(self.node, str(e)) from None
            except ValueError as e:
                raise ConnectionLost(f"{self.node} {e}") from None
            if len(self._received) < 4 + size:
                return
            body = bytes(memoryview(self._received)[4:4 + size])
            del self._received[:4 + size]
            yield parse_envelope(body)

    def _serve(self, sock: socket.socket) -> None:
        """Read and write until close() is called and all requests are written.

        Raises ConnectionLost if the node closes the connection or is silent for
        too long, and OverhopError if it ends the connection with an error.
        """
        last_received, ping_sent, timeout = time.monotonic(), False, _BUSY_TIMEOUT
        with selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_READ)
            selector.register(self._wake_receiver, selectors.EVENT_READ)
            self._handle_frames()
            self._read(sock)  # TLS may have buffered bytes that select does not report
            while True:
                unwritten = self._write(sock)
                if self._closing and not unwritten:
                    return
                selector.modify(sock, selectors.EVENT_READ | (selectors.EVENT_WRITE if unwritten else 0))
                events = {key.fileobj: mask for key, mask in selector.select(_PING_AFTER / 5)}
                if self._wake_receiver in events:
                    self._drain_wake_receiver()
                mask = events.get(sock, 0)
                if mask and (self._read(sock) or mask & selectors.EVENT_WRITE):
                    last_received, ping_sent = time.monotonic(), False
                silence = time.monotonic() - last_received
                if ping_sent and silence > timeout:
                    raise ConnectionLost(f"{self.node} has been silent for {silence:.0f} s")
                if silence > _PING_AFTER and not ping_sent:
                    ping_sent = True
                    with self._lock:
                        timeout = _BUSY_TIMEOUT if self._pending else _IDLE_TIMEOUT
                    self.send(PING, {})

    def _drain_wake_receiver(self) -> None:
        try:
            while self._wake_receiver.recv(4096):
                pass
        except BlockingIOError:
            pass

    def _read(self, sock: socket.socket) -> bool:
        """Read and handle the available bytes; report whether there were any."""
        try:
            self._append_received(sock.recv(4 * _CHUNK_SIZE))
            while isinstance(sock, ssl.SSLSocket) and sock.pending():
                self._append_received(sock.recv(4 * _CHUNK_SIZE))
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        self._handle_frames()
        return True

    def _handle_frames(self) -> None:
        """Pass received pushes to on_push and received answers to their callbacks."""
        for message_type, request_id, payload in self._whole_frames():
            if request_id == PUSH_RID:
                if message_type == ERR:
                    raise error_of(payload)
                self._on_push(self, message_type, payload)
                continue
            with self._lock:
                callback = self._pending.pop(request_id, None)
            if callback is not None:
                callback(payload, error_of(payload) if message_type == ERR else None)

    def _write(self, sock: socket.socket) -> bool:
        """Write until the socket accepts no more; report whether bytes remain.

        After an incomplete write the same bytes are offered again, as OpenSSL
        requires.
        """
        while True:
            if not self._unsent:
                with self._lock:
                    if not self._outgoing:
                        return False
                    # Join small frames up to one chunk; a larger frame is written in slices.
                    batch = [self._outgoing.popleft()]
                    size = len(batch[0])
                    while self._outgoing and size + len(self._outgoing[0]) <= _CHUNK_SIZE:
                        size += len(self._outgoing[0])
                        batch.append(self._outgoing.popleft())
                self._unsent = memoryview(batch[0] if len(batch) == 1 else b"".join(batch))
            try:
                self._unsent = self._unsent[sock.send(self._unsent[:_CHUNK_SIZE]):]
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return True


