"""A node for tests, which answers as the test scripts it, over a real socket."""

import os
import queue
import socket
import ssl
import subprocess
import threading
import uuid
from typing import Any, Dict, List, Optional, Tuple

from yardmaster import protocol
from yardmaster.protocol import HELLO, HI, OK, REGISTER

Payload = Dict[str, Any]
PATIENCE = 10.0  # seconds; timeout of every wait, far more than any should take


class FakeNode:
    """A listener on loopback that registers clients and passes their connections to the test.

    With an ``ssl.SSLContext`` it speaks TLS; with a token it refuses clients
    that have another. Registration runs in the accepting thread.
    """

    def __init__(self, context: Optional[ssl.SSLContext] = None, token: Optional[str] = None,
                 caps: Optional[List[str]] = None) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        self._context, self._token, self._caps = context, token, caps
        self._registered: "queue.Queue[NodeConnection]" = queue.Queue()
        self._accepted: List[NodeConnection] = []
        self._closed = False
        threading.Thread(target=self._accept_all, daemon=True).start()

    def _accept_all(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
                if self._context is not None:
                    sock = self._context.wrap_socket(sock, server_side=True)
                connection = NodeConnection(sock)
                self._accepted.append(connection)
                if connection.register(self._token, self._caps):
                    self._registered.put(connection)
            except (EOFError, OSError):  # from the connection, or from the closed listener
                if self._closed:
                    return

    def accept(self) -> "NodeConnection":
        """Return the next connection that has registered."""
        return self._registered.get(timeout=PATIENCE)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._listener.shutdown(socket.SHUT_RDWR)  # interrupts accept, which close does not
            self._listener.close()
        for connection in self._accepted:
            connection.close()


class NodeConnection:
    """The node's end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self._received = sock, b""
        sock.settimeout(PATIENCE)

    def register(self, token: Optional[str], caps: Optional[List[str]] = None) -> bool:
        """Answer HELLO and REGISTER; report whether the client's token was right. None accepts any."""
        rid, self.hello = self.expect(HELLO)
        self.send(HI, rid, {"ext": ["delivery/1"], "caps": self.hello.get("caps", []) if caps is None else caps, "node": "fake"})
        rid, _ = self.expect(REGISTER)
        if token is not None and self.hello.get("token") != token:
            self.refuse(rid, "UNAUTHORIZED")
            self.sock.close()
            return False
        self.send_ok(rid, {"wid": str(uuid.uuid4())})
        return True

    def read(self) -> Tuple[int, str, Payload]:
        """Return the type, request id and payload of the next message; raise EOFError at the end."""
        while len(self._received) < 4 or len(self._received) < 4 + int.from_bytes(self._received[:4], "big"):
            data = self.sock.recv(1 << 20)
            if not data:
                raise EOFError
            self._received += data
            if int.from_bytes(self._received[:4], "big") > 32 << 20 and len(self._received) >= 4:  # the client speaks TLS, for example
                self.sock.close()
                raise EOFError
        size = int.from_bytes(self._received[:4], "big")
        body, self._received = self._received[4:4 + size], self._received[4 + size:]
        return protocol.parse_envelope(body)

    def expect(self, message_type: int) -> Tuple[str, Payload]:
        """Return the request id and payload of the next request, which must have the given type.

        A PING is answered and skipped, and so is a BEAT before a message that
        depends on a handler, because the handler may take its time.
        """
        received, rid, p = self.read()
        if received == protocol.BEAT and message_type in (protocol.LOG, protocol.PROGRESS, protocol.DONE, protocol.FAIL):
            self.send_ok(rid, {"jobs": [{"ok": True}] * len(p["jobs"])})
            return self.expect(message_type)
        if received == protocol.PING:
            self.send(protocol.PONG, rid, {"server_time": "2026-01-01T00:00:00Z"})
            return self.expect(message_type)
        assert received == message_type, f"received t={received} {p}, expected t={message_type}"
        return rid, p

    def answer(self, message_type: int, payload: Optional[Payload] = None) -> Payload:
        """Answer the next request, which must have the given type, with OK; return the request's payload."""
        rid, p = self.expect(message_type)
        self.send_ok(rid, payload or {})
        return p

    def wait_closed(self) -> None:
        """Wait until the client has closed the connection, ignoring its messages."""
        try:
            while True:
                self.read()
        except (EOFError, ConnectionError):
            pass

    def send(self, message_type: int, rid: str, payload: Payload) -> None:
        self.sock.sendall(protocol.frame(message_type, rid, payload))

    def send_ok(self, rid: str, payload: Payload) -> None:
        self.send(OK, rid, payload)

    def refuse(self, rid: str, code: str, **details: Any) -> None:
        self.send(protocol.ERR, rid, {"code": code, "msg": "no", "details": details})

    def push(self, message_type: int, payload: Payload) -> None:
        self.send(message_type, "0", payload)

    def push_quest(self, sid: str, n: int = 1, **fields: Any) -> bytes:
        """Assign job number n, whose payload is n too, and return its token."""
        p: Payload = {
            "jid": f"q:0190a5b2-0000-7000-8000-{n:012d}", "q": "q", "sid": sid, "tok": n.to_bytes(16, "big"),
            "fence": n, "attempt": 1, "max_attempts": None, "job_payload": n, "beat_ms": 200, "lease_ms": 6000,
            "deadline": None, "redelivered": False, "credits": 0, **fields,
        }
        self.push(protocol.QUEST, p)
        return n.to_bytes(16, "big")

    def close(self) -> None:
        self.sock.close()


def make_certificate(directory: str) -> Tuple[str, str]:
    """Generate a certificate for 127.0.0.1, which signs itself; return the paths of it and its key."""
    cert, key = os.path.join(directory, "cert.pem"), os.path.join(directory, "key.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                    "-subj", "/CN=node", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
                   check=True, capture_output=True)
    return cert, key
