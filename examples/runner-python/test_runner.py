"""Tests of the runner as a process, by its protocol, and of its parts."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import unittest
from datetime import datetime, timedelta, timezone

import runner

HERE = os.path.dirname(os.path.abspath(__file__))
TIMEOUT = 20


def frame(kind, payload):
    body = json.dumps({"type": kind, "payload": payload}).encode()
    return struct.pack(">I", len(body)) + body


def request(function, params=None, n=1, context=None, **more):
    return frame("request", {"protocol_version": "2", "request_id": f"j#{n}", "job_id": "j", "function_name": function,
                             "params": params or {}, "context": {"attempt": n, "queue_name": "q", "dispatch_id": f"j#{n}", **(context or {})}, **more})


def soon(**delta):
    return (datetime.now(timezone.utc) + timedelta(**delta)).isoformat().replace("+00:00", "123Z")  # nanoseconds


class RunnerCase(unittest.TestCase):
    def setUp(self):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.address = probe.getsockname()
        environment = {**os.environ, runner.SOCKET_ENV: "localhost:%d" % self.address[1]}
        self.process = subprocess.Popen([sys.executable, "runner.py"], cwd=HERE, env=environment, stderr=subprocess.PIPE)
        self.addCleanup(self.process.stderr.close)
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.kill)
        self.sock = self.connect()
        self.stream = self.sock.makefile("rb")
        self.addCleanup(self.stream.close)

    def connect(self):
        while True:
            try:
                sock = socket.create_connection(self.address, TIMEOUT)
                self.addCleanup(sock.close)
                return sock
            except ConnectionRefusedError:
                self.assertIsNone(self.process.poll(), "the runner has ended")

    def answer(self):
        kind, payload = runner.read_frame(self.stream)
        self.assertEqual(kind, "response")
        return payload

    def ask(self, *args, **more):
        self.sock.sendall(request(*args, **more))
        return self.answer()

    def test_outcomes(self):
        for function, params, n, status, result in (
                ("echo", {"n": 9007199254740993, "f": 0.1, "t": "ä\ud800"}, 1, "success", {"n": 9007199254740993, "f": 0.1, "t": "ä\ud800"}),
                ("sleep", {"ms": 1}, 2, "success", {"ms": 1}),
                ("fail", {"message": "x"}, 3, "error", "demo"),
                ("retry", {"times": 1, "after": 0.5}, 1, "retry", 0.5),
                ("retry", {"times": 1}, 2, "success", {"attempt": 2}),
                ("big", {"bytes": 3}, 6, "success", "xxx"),
                ("big", {"bytes": 17000000}, 7, "error", None),
                ("sleep", {"ms": "x"}, 8, "error", "params"),
                ("unknown", {}, 9, "error", "handler_not_found")):
            with self.subTest(function=function, n=n):
                outcome = self.ask(function, params, n=n)
                self.assertEqual((outcome["status"], outcome["job_id"], outcome["request_id"]), (status, "j", f"j#{n}"))
                if status == "error":
                    self.assertEqual(outcome["error"]["type"], result)
                else:
                    self.assertEqual(outcome["retry_after_seconds" if status == "retry" else "result"], result)

    def test_deadlines(self):
        self.assertEqual(self.ask("sleep", {"ms": 60000}, context={"deadline": soon(milliseconds=50)})["status"], "timeout")
        late = self.ask("crash", context={"deadline": soon(seconds=-1)})
        self.assertEqual((late["status"], late["error"]["message"]), ("timeout", "Job deadline exceeded"))

    def test_cancel_from_another_connection(self):
        for target in ({"request_id": "j#1"}, {"request_id": None}):
            self.sock.sendall(request("sleep", {"ms": 60000}) + request("echo", n=2))
            self.assertEqual(self.answer()["request_id"], "j#2")  # the first request is still running
            with self.connect() as other:
                other.sendall(frame("cancel", {"protocol_version": "1", "job_id": "j"}))
                other.sendall(frame("cancel", {"protocol_version": "2", "job_id": "j", "request_id": "j#7"}))
                other.sendall(frame("cancel", {"protocol_version": "2", "job_id": "j", **target}))
            self.assertEqual(self.answer()["error"]["type"], "cancelled")

    def test_end_of_connection_cancels(self):
        self.sock.sendall(request("sleep", {"ms": 60000}))
        self.sock.shutdown(socket.SHUT_WR)
        self.assertEqual(self.answer()["error"]["type"], "cancelled")
        self.assertEqual(self.stream.read(), b"")

    def test_request_given_up_while_stopped(self):
        self.assertEqual(self.ask("echo")["status"], "success")
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)
        self.sock.sendall(request("crash", n=2))
        self.sock.shutdown(socket.SHUT_WR)
        self.process.send_signal(signal.SIGCONT)
        self.assertEqual(self.answer()["error"]["type"], "cancelled")
        self.assertIsNone(self.process.poll())

    def test_too_many_requests(self):
        for n in range(runner.MAX_IN_FLIGHT + 1):
            self.sock.sendall(request("sleep", {"ms": 60000}, n=n + 1))
        outcome = self.answer()
        self.assertEqual((outcome["request_id"], outcome["error"]["message"]), ("j#65", "Runner busy: too many in-flight requests"))

    def test_wrong_version(self):
        self.assertEqual(self.ask("echo", protocol_version="1")["error"]["message"], "Unsupported protocol version")

    def test_invalid_message_closes_connection(self):
        self.connect().close()  # a node checks the port like this
        for garbage in (bytes(4), b"\1\0\0\1", b"\0\0\0\4null", b"\0\0\0\2{}", frame("response", {}), frame("request", {}),
                        frame("what", {}), request("echo", params=[1]), request("echo", context={"deadline": "soon"}),
                        struct.pack(">I", 200000) + b"[" * 200000):
            with self.subTest(garbage=garbage[:40]), self.connect() as other:
                other.sendall(garbage)
                other.shutdown(socket.SHUT_WR)
                with other.makefile("rb") as stream:
                    self.assertEqual(stream.read(), b"")
        self.assertEqual(self.ask("echo")["status"], "success")  # other connections are not affected

    def test_stops_on_sigterm(self):
        self.sock.sendall(request("sleep", {"ms": 60000}) + request("echo", n=2))
        self.assertEqual(self.answer()["request_id"], "j#2")
        self.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.answer()["error"]["type"], "cancelled")
        self.assertEqual(self.process.wait(TIMEOUT), 0)


class ConnectionCase(unittest.TestCase):
    def test_ends_after_the_last_answer(self):
        ours, theirs = socket.socketpair()
        self.addCleanup(ours.close)
        ours.settimeout(TIMEOUT)
        connection = runner.Connection(runner.Runner(), theirs)
        answer, begun, go_on = connection.answer, threading.Event(), threading.Event()

        def slow(*outcome):
            begun.set()
            go_on.wait(TIMEOUT)
            answer(*outcome)

        connection.answer = slow
        serving = threading.Thread(target=connection.serve)
        serving.start()
        ours.sendall(request("echo"))
        self.assertTrue(begun.wait(TIMEOUT))
        ours.shutdown(socket.SHUT_WR)
        serving.join(0.2)  # serve must still be waiting for the response
        go_on.set()
        with ours.makefile("rb") as stream:
            self.assertEqual(runner.read_frame(stream)[1]["status"], "success")
            self.assertEqual(stream.read(), b"")
        serving.join()


class HandlerCase(unittest.TestCase):
    """Handlers, without a process."""

    def run_handler(self, function):
        self.addCleanup(runner.handlers.pop, "mine", None)
        runner.handler("mine")(function)
        return runner.run(runner.Job({"request_id": "r", "job_id": "j", "function_name": "mine", "context": {"attempt": 1}}))

    def test_async_handler_is_refused(self):
        async def send(job):
            return None
        with self.assertRaisesRegex(TypeError, r"'mine' is async.*asyncio\.run\(send\(job\)\)"):
            self.run_handler(send)

    def test_exceptions(self):
        def broken(job):
            raise KeyError("to")

        def leaving(job):
            sys.exit(3)

        def detailed(job):
            raise runner.AttemptFailed("no", code="E7", details=[1])

        def again(job):
            raise runner.Retry(2, "not yet")

        with self.assertLogs("runner"):
            self.assertEqual(self.run_handler(broken)["error"]["type"], "KeyError")
        runner.handlers.pop("mine")
        with self.assertLogs("runner"):
            self.assertEqual(self.run_handler(leaving)["error"]["type"], "SystemExit")
        runner.handlers.pop("mine")
        self.assertEqual(self.run_handler(detailed)["error"], {"message": "no", "type": None, "code": "E7", "details": [1]})
        runner.handlers.pop("mine")
        outcome = self.run_handler(again)
        self.assertEqual((outcome["status"], outcome["retry_after_seconds"], outcome["error"]["message"]), ("retry", 2, "not yet"))

    def test_duplicate_handler_name(self):
        with self.assertRaisesRegex(ValueError, "two handlers are named 'echo'"):
            runner.handler("echo")(lambda job: None)

    def test_result_that_is_not_json(self):
        for result in ({1, 2}, float("nan"), object()):
            with self.assertRaises((TypeError, ValueError)):
                runner.to_frame({"result": result})


class SocketCase(unittest.TestCase):
    def test_sockets(self):
        for text in ("", "9000", "10.0.0.1:9000", "0.0.0.0:9000", "127.0.0.1:0", "127.0.0.1:70000", "example.org:9000", "127.0.0.1:x"):
            with self.subTest(text=text), self.assertRaises(ValueError):
                runner.loopback(text)
        for text, host in (("127.0.0.1:9000", "127.0.0.1"), ("localhost:9000", "127.0.0.1"), ("[::1]:9000", "::1")):
            address, port = runner.loopback(text)
            self.assertEqual((str(address), port), (host, 9000))

    def test_usage_errors(self):
        for arguments, message in (((), "from a runner pool"), (("--tcp-socket", "10.0.0.1:1"), "not on the loopback")):
            environment = {key: value for key, value in os.environ.items() if key != runner.SOCKET_ENV}
            ended = subprocess.run([sys.executable, "runner.py", *arguments], cwd=HERE, env=environment, capture_output=True, text=True)
            self.assertEqual(ended.returncode, 2)
            self.assertIn(message, ended.stderr)


if __name__ == "__main__":
    unittest.main()
