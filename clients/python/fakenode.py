"""A node for tests: it does what the test tells it, over a real socket."""

import queue
import socket
import threading
import uuid

import yardmaster
from yardmaster import HELLO, HI, OK, REGISTER

PATIENCE = 10.0  # seconds, far more than anything here takes


class FakeNode:
    """Listens on loopback and hands every connection to the test, registered."""

    def __init__(self, context=None, token=None):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        self._context, self._token = context, token
        self._lines, self._open, self._closed = queue.Queue(), [], False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                sock, _ = self._listener.accept()
                line = Line(sock if self._context is None else self._context.wrap_socket(sock, server_side=True))
                self._open.append(line)
                if line.register(self._token):
                    self._lines.put(line)
            except (EOFError, OSError):  # of the connection, or of the listener that was closed
                if self._closed:
                    return

    def line(self):
        """The next connection that has registered."""
        return self._lines.get(timeout=PATIENCE)

    def close(self):
        if not self._closed:
            self._closed = True
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept; close alone would leave it there
            self._listener.close()
        for line in self._open:
            line.drop()


class Line:
    """One connection, seen from the node."""

    def __init__(self, sock):
        self.sock, self._in = sock, b""
        sock.settimeout(PATIENCE)

    def register(self, token):
        rid, self.hello = self.want(HELLO)
        self.send(HI, rid, {"ext": ["delivery/1"], "node": "fake"})
        rid, _ = self.want(REGISTER)
        if token is not None and self.hello.get("token") != token:
            self.refuse(rid, "UNAUTHORIZED")
            self.sock.close()
            return False
        self.ok(rid, {"wid": str(uuid.uuid4())})
        return True

    def read(self):
        while len(self._in) < 4 or len(self._in) < 4 + int.from_bytes(self._in[:4], "big"):
            data = self.sock.recv(1 << 20)
            if not data:
                raise EOFError
            self._in += data
        size = int.from_bytes(self._in[:4], "big")
        body, self._in = self._in[4:4 + size], self._in[4 + size:]
        return yardmaster.parse_envelope(body)

    def want(self, t):
        """The next request, which must be a t; gives its rid and payload. A PING is none,
        nor is a BEAT before what a handler says: it may take its time."""
        got, rid, p = self.read()
        if got == yardmaster.BEAT and t in (yardmaster.LOG, yardmaster.PROGRESS, yardmaster.DONE, yardmaster.FAIL):
            self.ok(rid, {"jobs": [{"ok": True}] * len(p["jobs"])})
            return self.want(t)
        if got == yardmaster.PING:
            self.send(yardmaster.PONG, rid, {"server_time": "2026-01-01T00:00:00Z"})
            return self.want(t)
        assert got == t, f"got t={got} {p}, want t={t}"
        return rid, p

    def take(self, t, ok=None):
        """The next request, which must be a t and is answered OK; gives its payload."""
        rid, p = self.want(t)
        self.ok(rid, ok or {})
        return p

    def closed(self):
        """Waits until the other side has gone, whatever it says before."""
        try:
            while True:
                self.read()
        except (EOFError, ConnectionError):
            pass

    def send(self, t, rid, p):
        self.sock.sendall(yardmaster.frame(t, rid, p))

    def ok(self, rid, p):
        self.send(OK, rid, p)

    def refuse(self, rid, code, **details):
        self.send(yardmaster.ERR, rid, {"code": code, "msg": "no", "details": details})

    def push(self, t, p):
        self.send(t, "0", p)

    def quest(self, sid, n=1, token=None, **more):
        p = {
            "jid": f"q:0190a5b2-0000-7000-8000-{n:012d}", "q": "q", "sid": sid, "tok": token or n.to_bytes(16, "big"),
            "fence": n, "attempt": 1, "max_attempts": None, "job_payload": n, "beat_ms": 200, "lease_ms": 6000,
            "deadline": None, "redelivered": False, "credits": 0, **more,
        }
        self.push(yardmaster.QUEST, p)
        return p["tok"]

    def drop(self):
        self.sock.close()
