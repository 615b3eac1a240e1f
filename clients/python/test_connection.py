"""Tests of TLS, with a certificate generated for the test, and of nodes that stop answering."""

import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import unittest
import unittest.mock

from fakenode import PATIENCE, FakeNode
from yardmaster import LSJOB, PING, PONG, STATUS, Client, ConnectionLost


@unittest.skipUnless(shutil.which("openssl"), "openssl is needed to generate a certificate")
class TLS(unittest.TestCase):
    server: ssl.SSLContext
    cert: str  # path of the certificate

    @classmethod
    def setUpClass(cls) -> None:
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.cert, key = os.path.join(directory.name, "cert.pem"), os.path.join(directory.name, "key.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                        "-subj", "/CN=node", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cls.cert],
                       check=True, capture_output=True)
        cls.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        cls.server.load_cert_chain(cls.cert, key)

    def setUp(self) -> None:
        self.node = FakeNode(self.server)
        self.addCleanup(self.node.close)

    def test_large_requests_and_answers_at_once(self) -> None:
        client = Client(self.node.address, tls=ssl.create_default_context(cafile=self.cert), timeout=PATIENCE)
        self.addCleanup(client.close)
        sent = ["x" * (3 << 20) + str(i) for i in range(4)]
        received = []

        def call(i: int) -> None:
            received.append(client.jobs(sent[i], "completed")[0]["jid"])
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

    def test_unknown_certificate(self) -> None:
        with self.assertRaisesRegex(ConnectionLost, "certificate verify failed"):
            Client(self.node.address, tls=ssl.create_default_context(), timeout=1).ping()

    def test_client_without_tls(self) -> None:
        with self.assertRaises(ConnectionLost):
            Client(self.node.address, timeout=1).ping()


class SilentNode(unittest.TestCase):
    def test_switch_from_silent_node(self) -> None:
        with unittest.mock.patch("yardmaster._PING_AFTER", 0.2), unittest.mock.patch("yardmaster._BUSY_TIMEOUT", 1.5):
            node = FakeNode()
            self.addCleanup(node.close)
            client = Client(node.address, timeout=PATIENCE)
            self.addCleanup(client.close)
            answers = []
            thread = threading.Thread(target=lambda: answers.append(client.status()))
            thread.start()
            connection = node.accept()
            self.assertEqual([connection.read()[0], connection.read()[0]], [STATUS, PING])
            second = node.accept()  # the first connection is given up without an answer
            rid, _ = second.expect(STATUS)
            second.send(PONG, "x", {})  # an answer to no request is ignored
            second.send_ok(rid, {"here": True})
            thread.join(PATIENCE)
            self.assertEqual(answers, [{"here": True}])

    def test_wait_for_slow_answer(self) -> None:
        with unittest.mock.patch("yardmaster._PING_AFTER", 0.1), unittest.mock.patch("yardmaster._IDLE_TIMEOUT", 0.3):
            node = FakeNode()
            self.addCleanup(node.close)
            client = Client(node.address, timeout=PATIENCE)
            self.addCleanup(client.close)
            thread = threading.Thread(target=client.status)
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
