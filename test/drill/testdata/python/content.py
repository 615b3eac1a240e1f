"""Reads a result of 12 MiB and a payload of 20 MiB, which do not fit into a frame.

The argument is the id of the job with the payload, which a worker then runs.
"""

import sys
import threading

import yardmaster

with yardmaster.Client() as client:
    client.add_queue("large", exist_ok=True)
    jid = client.enqueue("large", {"bytes": 12 << 20}, "demo#big")
    for _ in range(2):  # when it ends, and after it has ended
        result = client.result(jid, timeout=60)
        assert result == "x" * (12 << 20), (len(result), result[:40])
    payload = client.payload(sys.argv[1])
    assert payload == {"text": "ü" * (10 << 20)}, str(payload)[:80]
    worker = yardmaster.Worker()
    worker.job("large", fn="measure")(lambda job: len(job.payload["text"]))
    thread = threading.Thread(target=worker.run)
    thread.start()
    client.set_job(sys.argv[1], delay=0)
    print("read", len(result), len(payload["text"]), client.result(sys.argv[1], timeout=60))
    worker.stop()
    thread.join()
