"""Tests of TLS, with a certificate generated for the test, and of nodes that stop answering."""

import contextlib
import shutil
import socket
import ssl
import tempfile
import threading
import time
import unittest
import unittest.mock
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, List, Optional

from .fakenode import PATIENCE, FakeNode, make_certificate
from yardmaster import Client, NewJob, TLSError, Worker
from yardmaster.protocol import ACK, BEAT, DONE, LSJOB, PING, PONG, STATUS, SUBSCRIBE


@unittest.skipUnless(shutil.which("openssl"), "openssl is needed to generate a certificate")
class TLS(unittest.TestCase):
    server: ssl.SSLContext
    cert: str  # path of the certificate
    key: str   # path of its key

    @classmethod
    def setUpClass(cls) -> None:
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.cert, cls.key = make_certificate(directory.name)
        cls.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        cls.server.load_cert_chain(cls.cert, cls.key)

    def setUp(self) -> None:
        self.node = FakeNode(self.server)
        self.addCleanup(self.node.close)

    def test_large_requests_and_answers_at_once(self) -> None:
        client = Client(self.node.address, tls=ssl.create_default_context(cafile=self.cert), timeout=PATIENCE)
        self.addCleanup(client.close)
        sent = ["x" * (3 << 20) + str(i) for i in range(4)]
        received = []

        def call(i: int) -> None:
            received.append(client.jobs_page(sent[i], "completed")[0]["jid"])
        threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        connection = self.node.accept()
        # Each answer is as large as its request, and is written while the client sends the next request.
        for _ in threads:
            rid, p = connection.expect(LSJOB)
            connection.send_ok(rid, {"jobs": [{"jid": p["q"]}]})
        for t in threads:
            t.join(PATIENCE)
        self.assertEqual(sorted(received), sorted(sent))

    def assert_refused(self, message: str, address: str, tls: Optional[ssl.SSLContext]) -> None:
        """Check that clients and workers end at once, though they have time."""
        client = Client([address], tls=tls, timeout=PATIENCE)
        self.addCleanup(client.close)
        worker = Worker(address, tls=tls)
        worker.job("q")(lambda job: None)
        calls: List[Callable[[], object]] = [client.ping, lambda: client.enqueue_many([NewJob("q")]), worker.run]
        for call in calls:
            begun = time.monotonic()
            with self.assertRaisesRegex(TLSError, message):
                call()
            self.assertLess(time.monotonic() - begun, PATIENCE / 2)

    def test_unknown_certificate(self) -> None:
        self.assert_refused("its certificate is not accepted: self.signed certificate; check the authorities in `tls`", self.node.address,
                            ssl.create_default_context())

    def test_name_in_certificate(self) -> None:
        self.assert_refused("not accepted: Hostname mismatch", self.node.address.replace("127.0.0.1", "localhost"),
                            ssl.create_default_context(cafile=self.cert))

    def test_certificate_of_the_client_is_required(self) -> None:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(self.cert, self.key)
        server.verify_mode = ssl.CERT_REQUIRED
        server.load_verify_locations(self.cert)
        node = FakeNode(server)
        self.addCleanup(node.close)
        self.assert_refused("refuses this client: .*CERTIFICATE_REQUIRED; check the client's certificate", node.address,
                            ssl.create_default_context(cafile=self.cert))

    def test_only_one_side_uses_tls(self) -> None:
        self.assert_refused("its port requires TLS: give tls=", self.node.address, None)
        plain = FakeNode()
        self.addCleanup(plain.close)
        self.assert_refused("its port does not speak TLS: leave out `tls`", plain.address, ssl.create_default_context())

    def test_other_ports(self) -> None:
        for says, protocol, asks in ((b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP", True), (b"INFO {}\r\n", "NATS", False), (b"SSH-2.0-x\r\n", "SSH", False)):
            with self.subTest(protocol):
                address = other_service(self, says, asks)
                self.assert_refused(f"its port speaks {protocol}.*: give the address of the worker port", address, None)

    def test_one_good_node_is_enough(self) -> None:
        plain = FakeNode()
        self.addCleanup(plain.close)
        client = Client([plain.address, self.node.address], tls=ssl.create_default_context(cafile=self.cert), timeout=PATIENCE)
        self.addCleanup(client.close)
        with ThreadPoolExecutor(1) as threads:
            for _ in range(2):  # the second time, the plain node may be tried first
                status = threads.submit(client.node_status)
                connection = self.node.accept()
                connection.answer(STATUS, {"here": True})
                self.assertEqual(status.result(PATIENCE), {"here": True})
                connection.close()


def other_service(case: unittest.TestCase, says: bytes, asks: bool) -> str:
    """Return the address of a server that says something, after a blank line if ``asks`` is true."""
    listener = socket.create_server(("127.0.0.1", 0))
    case.addCleanup(listener.close)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                with sock:
                    sock.settimeout(PATIENCE)
                    received = b""
                    while asks and b"\r\n\r\n" not in received:
                        data = sock.recv(1 << 16)
                        if not data:
                            break
                        received += data
                    with contextlib.suppress(OSError):
                        sock.sendall(says)
                        sock.recv(1 << 16)
    threading.Thread(target=serve, daemon=True).start()
    return "127.0.0.1:%d" % listener.getsockname()[1]


class SilentNode(unittest.TestCase):
    def test_switch_from_silent_node(self) -> None:
        with unittest.mock.patch("yardmaster.connection._PING_AFTER", 0.2), unittest.mock.patch("yardmaster.connection._BUSY_TIMEOUT", 1.5):
            node = FakeNode()
            self.addCleanup(node.close)
            client = Client(node.address, timeout=PATIENCE)
            self.addCleanup(client.close)
            answers = []
            thread = threading.Thread(target=lambda: answers.append(client.node_status()))
            thread.start()
            connection = node.accept()
            self.assertEqual([connection.read()[0], connection.read()[0]], [STATUS, PING])
            second = node.accept()  # the first connection is given up without an answer
            rid, _ = second.expect(STATUS)
            second.send(PONG, "x", {})  # an answer to no request is ignored
            second.send_ok(rid, {"here": True})
            thread.join(PATIENCE)
            self.assertEqual(answers, [{"here": True}])

    def test_worker_moves_its_job_from_a_half_open_connection(self) -> None:
        """The node takes what the worker sends and answers nothing more, as if a firewall had dropped the connection."""
        finish = threading.Event()
        with unittest.mock.patch("yardmaster.connection._PING_AFTER", 0.2), unittest.mock.patch("yardmaster.connection._BUSY_TIMEOUT", 0.5), \
                unittest.mock.patch("yardmaster.connection._IDLE_TIMEOUT", 0.5), \
                unittest.mock.patch("yardmaster.dispatcher._GOODBYE_TIMEOUT", 0.2):
            node = FakeNode()
            self.addCleanup(node.close)
            worker = Worker(node.address)
            worker.job("q")(lambda job: finish.wait(PATIENCE))
            thread = threading.Thread(target=worker.run)
            thread.start()
            for cleanup in (lambda: thread.join(PATIENCE), node.close, worker.stop, finish.set):  # in reverse order
                self.addCleanup(cleanup)
            connection = node.accept()
            connection.answer(SUBSCRIBE, {"sid": "s"})
            token = connection.push_quest("s")
            connection.answer(ACK)
            second = node.accept()
            self.assertEqual([job["tok"] for job in second.answer(BEAT, {"jobs": [{"ok": True}]})["jobs"]], [token])
            second.answer(SUBSCRIBE, {"sid": "s2"})
            finish.set()
            self.assertEqual(second.answer(DONE)["tok"], token)

    def test_wait_for_slow_answer(self) -> None:
        with unittest.mock.patch("yardmaster.connection._PING_AFTER", 0.1), unittest.mock.patch("yardmaster.connection._IDLE_TIMEOUT", 0.3):
            node = FakeNode()
            self.addCleanup(node.close)
            client = Client(node.address, timeout=PATIENCE)
            self.addCleanup(client.close)
            thread = threading.Thread(target=client.node_status)
            thread.start()
            connection = node.accept()
            rid, _ = connection.expect(STATUS)
            self.assertEqual(connection.read()[0], PING)
            connection.sock.settimeout(0.8)
            with self.assertRaises(socket.timeout):  # a request is pending, so the longer timeout applies
                connection.read()
            connection.sock.settimeout(PATIENCE)
            connection.send_ok(rid, {})
            thread.join(PATIENCE)
            connection.wait_closed()  # with only a PING pending, the shorter timeout applies


if __name__ == "__main__":
    unittest.main()
