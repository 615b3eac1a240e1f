"""Reads a result of 12 MiB and a payload of 20 MiB, which do not fit into a frame.

The argument is the id of the job with the payload.
"""

import sys

import yardmaster

with yardmaster.Client() as client:
    client.add_queue("large", exist_ok=True)
    jid = client.enqueue("large", {"bytes": 12 << 20}, "demo#big")
    for _ in range(2):  # when it ends, and after it has ended
        result = client.result(jid, timeout=60)
        assert result == "x" * (12 << 20), (len(result), result[:40])
    payload = client.payload(sys.argv[1])
    assert payload == {"text": "ü" * (10 << 20)}, str(payload)[:80]
    print("read", len(result), len(payload["text"]))
