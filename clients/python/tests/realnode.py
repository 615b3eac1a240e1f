"""A real node for tests, started from the binary that the environment variable YARD_BIN names."""

import os
import socket
import subprocess
import time
import unittest
from typing import Dict

from yardmaster import Client, ConnectionLost, OverhopError

BINARY = os.path.abspath(os.environ["YARD_BIN"]) if os.environ.get("YARD_BIN") else ""
START_TIMEOUT = 20.0  # seconds

needs_binary = unittest.skipUnless(BINARY, "YARD_BIN names no binary of a node: `make build` makes bin/yardmaster")


class RealNode:
    """A node that is a yard of its own, with its data in a directory. It keeps its ports when it is restarted."""

    def __init__(self, directory: str, settings: Dict[str, str]) -> None:
        self._directory, ports = directory, free_ports(3)
        self.address = f"127.0.0.1:{ports[2]}"
        self._env = {key: value for key, value in os.environ.items() if not key.startswith("YARD_")}
        self._env.update({"YARD_NATS_LISTEN": f"127.0.0.1:{ports[0]}", "YARD_HTTP_LISTEN": f"127.0.0.1:{ports[1]}",
                          "YARD_SERVER_PORT": str(ports[2]), **settings})
        self.start()

    def start(self) -> None:
        """Start the process, without waiting until it is ready."""
        with open(os.path.join(self._directory, "node.log"), "ab") as log:
            self._process = subprocess.Popen([BINARY, "node"], cwd=self._directory, env=self._env, stdout=log, stderr=log)

    def wait_ready(self, client: Client) -> None:
        """Wait until the yard accepts changes."""
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                client.add_queue("ready", exist_ok=True)
                return
            except (ConnectionLost, TimeoutError, OverhopError):
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise AssertionError(f"the node does not start: {self.log()[-2000:]}")
                time.sleep(0.05)

    def log(self) -> str:
        with open(os.path.join(self._directory, "node.log"), encoding="utf-8", errors="replace") as file:
            return file.read()

    def kill(self) -> None:
        """End the process without notice."""
        self._process.kill()
        self._process.wait()


def free_ports(count: int) -> "list[int]":
    """Return ports that nothing listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()
