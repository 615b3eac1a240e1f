"""Addresses of nodes, the order in which they are tried, and the pauses between attempts."""

from __future__ import annotations

import ipaddress
import os
import random
import re
from typing import List, Optional, Sequence, Set, Tuple, Union

from .errors import OverhopError

DEFAULT_NODES = "127.0.0.1:9876"
NODES_VARIABLE = "OVERHOP_NODES"
DEFAULT_PORT = 9876

Nodes = Union[str, Sequence[str], None]  # "host:port,host:port", ["host:port", ...], or None for the default


def parse_nodes(nodes: Nodes) -> List[str]:
    """Return node addresses as a list; None means OVERHOP_NODES, or DEFAULT_NODES without it.

    Raises ValueError if the list is empty or holds an invalid address.
    """
    if nodes is None:
        nodes = os.environ.get(NODES_VARIABLE) or DEFAULT_NODES
    if isinstance(nodes, str):
        nodes = nodes.split(",")
    addresses = [node.strip() for node in nodes if node.strip()]
    if not addresses:
        raise ValueError("no node is named: give nodes=['host:port', ...]")
    for address in addresses:
        parse_address(address)
    return addresses


def parse_address(node: str) -> Tuple[str, int]:
    """Return the host and port of "host:port"; the defaults are 127.0.0.1 and DEFAULT_PORT.

    An IPv6 address with a port is in brackets, such as "[::1]:9876".
    """
    host, colon, port = node.rpartition(":")
    if ":" in host and not node.startswith("["):
        if not _is_ipv6(node) or re.fullmatch("[0-9]{4,}", port):  # such as ::1:9876, which may be meant either way
            raise ValueError(f"invalid node address {node!r}: an IPv6 address is in brackets, such as [{host}]:{port}")
        host, port = node, str(DEFAULT_PORT)
    elif not colon or node.endswith("]"):
        host, port = node, str(DEFAULT_PORT)
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"invalid node address {node!r}: must be host:port, with a port from 1 to 65535")
    return host.strip("[]") or "127.0.0.1", int(port)


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


class NodeRotation:
    """Selects the node for the next connection; the caller prevents concurrent use."""

    def __init__(self, nodes: Nodes) -> None:
        addresses = parse_nodes(nodes)
        self._rotation = random.sample(addresses, len(addresses))
        self.preferred: List[str] = []  # returned first; a draining node names them
        self.avoided: Optional[str] = None  # skipped once; the draining node itself
        self.reached = False  # a node was
        self._refusing: Set[str] = set()  # with which TLS has failed

    def next(self) -> str:
        """Return the address of the next node."""
        if self.preferred:
            return self.preferred.pop(0)
        self._rotation.append(self._rotation.pop(0))
        if self._rotation[0] == self.avoided:  # skip it once only: it may have restarted by the next time
            self._rotation.append(self._rotation.pop(0))
            self.avoided = None
        return self._rotation[0]

    def all_refuse(self, node: str) -> bool:
        """Take note that TLS with a node has failed; report whether it has with every one, and none was reached before."""
        self._refusing.add(node)
        return not self.reached and self._refusing.issuperset(self._rotation)


def backoff(attempt: int) -> float:
    """Return the seconds to wait before the next attempt: exponential up to 2 s, with jitter."""
    return min(2.0, 0.05 * 2.0 ** min(attempt, 10)) * random.uniform(0.5, 1)


def retry_delay(error: OverhopError) -> float:
    """Return the seconds to wait before repeating a refused request, as the node asks or 0.25."""
    return 0.25 if error.retry_after is None else min(max(error.retry_after, 0.05), 2.0)
