"""Enqueues jobs until the gate file exists, then compares each result with the
payload: producer.py <gate file>

It prints "accepted <jid>" for each job, and "right <number>" at the end.
"""

import concurrent.futures
import os
import sys
import time

import yardmaster

EDGES = {"max": 2**63 - 1, "min": -2**63, "none": None, "true": True, "text": "Ü\u2028\U0001f600", "deep": [[[{"a": [{}]}]]]}
LARGE = 2 << 20


def print_line(line):
    """Write a line in one system call, so that threads do not mix theirs."""
    os.write(1, f"{line}\n".encode())


def payload(n):
    """Return the payload of job n: different for each, of all types of the wire in turn."""
    kinds = [{"n": n, **EDGES}, {"n": n, "bytes": bytes(range(256))}, n, f"text {n}", [n, b"\x00", EDGES]]
    large = {40: bytes(LARGE), 41: {"n": n, "text": "ü" * (LARGE // 2)}}
    return large.get(n, kinds[n % len(kinds)])


def produce(client, first):
    """Enqueue every fourth job from first on, until the gate file exists."""
    sent = []
    n = first
    while not os.path.exists(sys.argv[1]) or n < 100:
        sent.append((n, client.enqueue("python", payload(n), max_attempts=20)))
        print_line(f"accepted {sent[-1][1]}")
        n += 4
        time.sleep(0.02)
    return sent


with yardmaster.Client() as client, concurrent.futures.ThreadPoolExecutor(4) as threads:
    for name in ("python", "python-long"):
        client.add_queue(name, exist_ok=True)
    long = client.enqueue("python-long", max_attempts=1)
    print_line(f"accepted {long}")
    right = 0
    for sent in list(threads.map(lambda first: produce(client, first), range(4))):
        for n, jid in sent:
            result = client.result(jid, timeout=30)
            if result != payload(n):
                sys.exit(f"job {jid} gave {str(result)[:200]}, want {str(payload(n))[:200]}")
            right += 1
    if client.result(long, timeout=30) != "held":
        sys.exit("the long job gave another result")
    print_line(f"right {right + 1}")
