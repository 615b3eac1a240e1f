"""TLS, with a certificate that is made for the test; and nodes that fall silent."""

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


@unittest.skipUnless(shutil.which("openssl"), "openssl is not here to make a certificate")
class TLS(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory()
        cls.cert, key = os.path.join(cls.dir.name, "cert.pem"), os.path.join(cls.dir.name, "key.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                        "-subj", "/CN=node", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cls.cert],
                       check=True, capture_output=True)
        cls.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        cls.server.load_cert_chain(cls.cert, key)

    @classmethod
    def tearDownClass(cls):
        cls.dir.cleanup()

    def setUp(self):
        self.node = FakeNode(self.server)
        self.addCleanup(self.node.close)

    def test_both_ways_at_once(self):
        client = Client(self.node.address, tls=ssl.create_default_context(cafile=self.cert), timeout=PATIENCE)
        self.addCleanup(client.close)
        sent = ["x" * (3 << 20) + str(i) for i in range(4)]
        got = []

        def ask(i):
            got.append(client.jobs(sent[i], "completed")[0])
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        line = self.node.line()
        # An answer as large as the question, while the next one is on its way.
        for _ in threads:
            rid, p = line.want(LSJOB)
            line.ok(rid, {"jobs": [p["q"]]})
        for t in threads:
            t.join(PATIENCE)
        self.assertEqual(sorted(got), sorted(sent))

    def test_unknown_certificate(self):
        with self.assertRaisesRegex(ConnectionLost, "certificate verify failed"):
            Client(self.node.address, tls=ssl.create_default_context(), timeout=1).ping()

    def test_plain_client(self):
        with self.assertRaises(ConnectionLost):
            Client(self.node.address, timeout=1).ping()


class Silence(unittest.TestCase):
    def test_node_that_hangs_is_left(self):
        with unittest.mock.patch("yardmaster._QUIET", 0.2), unittest.mock.patch("yardmaster._SILENT", 1.5):
            node = FakeNode()
            self.addCleanup(node.close)
            client = Client(node.address, timeout=PATIENCE)
            self.addCleanup(client.close)
            answers = []
            asking = threading.Thread(target=lambda: answers.append(client.status()))
            asking.start()
            line = node.line()
            self.assertEqual([line.read()[0], line.read()[0]], [STATUS, PING])
            again = node.line()  # the other has not said a word
            rid, _ = again.want(STATUS)
            again.send(PONG, "x", {})  # an answer that nobody waits for
            again.ok(rid, {"here": True})
            asking.join(PATIENCE)
            self.assertEqual(answers, [{"here": True}])

    def test_slow_answer_is_waited_for(self):
        with unittest.mock.patch("yardmaster._QUIET", 0.1), unittest.mock.patch("yardmaster._DEAF", 0.3):
            node = FakeNode()
            self.addCleanup(node.close)
            client = Client(node.address, timeout=PATIENCE)
            self.addCleanup(client.close)
            asking = threading.Thread(target=client.status)
            asking.start()
            line = node.line()
            rid, _ = line.want(STATUS)
            self.assertEqual(line.read()[0], PING)
            line.sock.settimeout(0.8)
            with self.assertRaises(socket.timeout):  # the PING stands behind the request: nobody hangs up
                line.read()
            line.sock.settimeout(PATIENCE)
            line.ok(rid, {})
            asking.join(PATIENCE)
            line.closed()  # now only a PING is to be answered


if __name__ == "__main__":
    unittest.main()
