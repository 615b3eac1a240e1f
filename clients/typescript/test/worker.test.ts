/** Worker with a node that closes connections, loses leases, drains and refuses. */

import assert from "node:assert/strict";
import { test, TestContext } from "node:test";
import { decode, Encoded } from "../src/codec.js";
import { defineJob } from "../src/enqueue.js";
import { JobStopped, OverhopError, PermanentError, RetryAfter, Snooze } from "../src/errors.js";
import { Job } from "../src/job.js";
import { thrown } from "../src/outcome.js";
import { Fields, T } from "../src/protocol.js";
import { sleep } from "../src/wait.js";
import { HandleOptions, Worker, WorkerOptions, WorkerTiming } from "../src/worker.js";
import { FakeNode, Gate, Inbox, jid, NodeConnection, PATIENCE, SID, soon, token } from "./fakenode.js";

const BEAT = { beat_ms: 60_000 };

interface Running {
  worker: Worker;
  /** Resolves with what run throws, undefined if it returns. */
  ended: Promise<unknown>;
}

/** Runs a worker of queue q that the test's end stops. */
function start(t: TestContext, nodes: FakeNode[], handler: (job: Job<any>) => unknown, options: WorkerOptions & HandleOptions = {}, timing: Partial<WorkerTiming> = {}): Running {
  const worker = new Worker({ nodes: nodes.map((node) => node.address), grace: 50, log: {}, ...options }, { goodbye: 50, cancel: 50, ...timing });
  worker.handle("q", handler, options);
  return run(t, nodes, worker);
}

function run(t: TestContext, nodes: FakeNode[], worker: Worker): Running {
  const ended = worker.run().then(() => undefined, (err: unknown) => err);
  t.after(async () => {
    const stopped = worker.stop();
    nodes.forEach((node) => void node.close());
    await soon(stopped, "the worker's end");
  });
  return { worker, ended };
}

async function subscriber(node: FakeNode, credits = 1): Promise<NodeConnection> {
  const connection = await node.accept();
  await answerSubscribe(connection, credits);
  return connection;
}

async function answerSubscribe(connection: NodeConnection, credits = 1): Promise<void> {
  assert.deepEqual(await connection.answer(T.SUBSCRIBE, { sid: SID }), { q: "q", credits });
}

/** Resolves when the job must stop, with the reason. */
function stopOf(job: Job): Promise<JobStopped> {
  return new Promise((resolve) => job.signal.addEventListener("abort", () => resolve(job.signal.reason)));
}

test("a result is reported with the credit for the next job", async (t) => {
  const node = await FakeNode.start(t);
  start(t, [node], (job) => ({ n: job.payload, fence: job.fence, id: job.id, fn: job.fn, attempt: job.attempt, trace: job.trace, tags: job.tags, meta: job.meta }));
  const connection = await subscriber(node);
  const tok = connection.quest(7, { fn: "f", trace: { a: "b" }, tags: ["t"], meta: { m: "v" } });
  assert.deepEqual(await connection.answer(T.ACK), { jid: jid(7), tok });
  assert.deepEqual(await connection.answer(T.DONE, { status: "completed" }), {
    jid: jid(7), tok, credits: 1, result: { n: 7, fence: 7, id: jid(7), fn: "f", attempt: 1, trace: { a: "b" }, tags: ["t"], meta: { m: "v" } },
  });
});

test("what a handler throws or returns decides about the job", async (t) => {
  const node = await FakeNode.start(t);
  const outcomes: Array<[() => unknown, Fields]> = [
    [() => { throw new TypeError("broken \ud800"); }, { retry: true, error: { type: "TypeError", message: "broken \ufffd" } }],
    [() => { throw new RetryAfter(1500, "later", { code: "BUSY" }); }, { retry: true, retry_after_ms: 1500, error: { type: "RetryAfter", message: "later", code: "BUSY" } }],
    [() => { throw new PermanentError("never", { code: "GONE", details: { a: 1 } }); }, { retry: false, error: { type: "PermanentError", message: "never", code: "GONE", details: { a: 1 } } }],
    [() => { throw new Snooze(5000, "not yet"); }, { snooze_ms: 5000, error: { message: "not yet", type: "snooze" } }],
    [() => [1.5, new Uint8Array(1)], { retry: false, error: { type: "invalid_result" } }],
    [() => "x".repeat(9 << 20), { retry: false, error: { type: "invalid_result" } }],
    [() => Promise.reject("just text"), { retry: true, error: { type: "non_error", message: "just text" } }],
    [() => Promise.reject(undefined), { retry: true, error: { type: "non_error", message: "the handler has thrown undefined" } }],
    [() => { throw { toString() { throw new Error("no"); } }; }, { retry: true, error: { type: "non_error" } }],
    [() => { throw new Proxy({}, { getPrototypeOf() { throw new Error("no"); } }); }, { retry: true, error: { type: "unreadable_error" } }],
    [() => { throw new PermanentError("much", { details: "x".repeat(9 << 20) }); }, { retry: false, error: { details: `omitted: ${(9 << 20) + 14} bytes, more than the limit of 32768` } }],
    [() => { throw new PermanentError("odd", { details: new Date(0) }); }, { retry: false, error: { message: "odd" } }],
    [() => { throw new RetryAfter(NaN); }, { retry: true, error: { type: "RangeError" } }],
    [() => { throw Object.assign(new Error("gone", { cause: new Error("deeper") }), { code: "ENOENT" }); }, { retry: true, error: { message: "gone", code: "ENOENT" } }],
  ];
  start(t, [node], (job) => outcomes[job.payload]![0]());
  const connection = await subscriber(node);
  for (const [n, [, expected]] of outcomes.entries()) {
    connection.quest(n, BEAT);
    await connection.answer(T.ACK);
    const fields = await connection.answer(T.FAIL, { status: "failed" });
    assert.equal(fields["credits"], 1);
    const error = fields["error"] as Fields;
    for (const [key, value] of Object.entries(expected)) {
      const actual = key === "error" ? Object.fromEntries(Object.keys(value as object).map((name) => [name, error[name]])) : fields[key];
      assert.deepEqual(actual, value);
    }
    if (error["code"] === "ENOENT") {
      assert.match((error["details"] as { stack: string }).stack, /worker\.test[^]*caused by Error: deeper/);
    }
  }
});

test("a long stack loses its middle", () => {
  const outcome = thrown(new Error("ä".repeat(1 << 20)), undefined) as unknown as { error: { message: string; details: Encoded } };
  const { stack } = decode(outcome.error.details.bytes) as { stack: string };
  assert.ok(Buffer.byteLength(stack) <= 28 << 10, `${stack.length} characters`);
  assert.match(stack, /^Error: ä+\n\.\.\. [0-9]+ bytes omitted \.\.\.\nä+\n[^]*worker\.test[^]*$/);
  assert.equal(outcome.error.message.length, 4000);
});

test("a node that cannot put a job off gets a failed attempt that says so", async (t) => {
  const node = await FakeNode.start(t, { caps: [] });
  start(t, [node], (job) => {
    if (job.payload === 2) {
      return 0.5;
    }
    throw job.payload === 1 ? new Snooze(5000, "not yet") : new PermanentError("much", { details: 0.5 });
  });
  const connection = await subscriber(node);
  const expected = [
    { retry: true, retry_after_ms: 5000, type: "snooze_not_supported" }, { retry: false, type: "invalid_result" }, { retry: false, details: "0.5", type: "PermanentError" },
  ];
  for (const [i, { type, details, ...more }] of expected.entries()) {
    connection.quest(i + 1, BEAT);
    await connection.answer(T.ACK);
    const { error, jid: _, tok, credits, ...rest } = await connection.answer(T.FAIL, { status: "delayed" });
    assert.deepEqual(rest, more);
    assert.equal((error as Fields)["type"], type);
    assert.equal((error as Fields)["details"], details);
  }
});

test("fractions, progress and log lines", async (t) => {
  const node = await FakeNode.start(t);
  const release = new Gate();
  start(t, [node], async (job) => {
    job.log("half", "warn");
    job.log("y".repeat(5000) + "\udc00");
    job.progress(50.4, 0.25);
    job.progress(60);
    job.progress(70, { rows: 5 });
    assert.throws(() => job.progress(101), RangeError);
    assert.throws(() => job.progress(NaN), RangeError);
    assert.throws(() => job.progress(1, "x".repeat(5000)), /too large/);
    await release.opened;
    job.log("last");
    return { price: job.payload.price / 2 };
  });
  const connection = await subscriber(node);
  connection.quest(1, { ...BEAT, job_payload_json: Buffer.from('{"price":0.5}'), job_payload: undefined });
  await connection.answer(T.ACK);
  const first = await connection.expect(T.PROGRESS);
  assert.deepEqual(first.fields, { jid: jid(1), tok: token(1), percent: 50, data_json: new Uint8Array(Buffer.from("0.25")) });
  const lines = (await connection.answer(T.LOG, { accepted: 2 }))["lines"] as Fields[];
  assert.deepEqual(lines.map((line) => [line["level"], String(line["msg"]).length]), [["warn", 4], ["info", 2048]]);
  connection.ok(first);
  assert.deepEqual(await connection.answer(T.PROGRESS), { jid: jid(1), tok: token(1), percent: 70, data: { rows: 5 } }); // the newest
  release.open();
  assert.equal(((await connection.answer(T.LOG))["lines"] as Fields[])[0]!["msg"], "last");
  assert.deepEqual((await connection.answer(T.DONE))["result_json"], new Uint8Array(Buffer.from('{"price":0.25}')));
});

test("handlers by function, with a checked payload, inside of middleware", async (t) => {
  const node = await FakeNode.start(t);
  const seen: string[] = [];
  const warnings: string[] = [];
  const resize = defineJob<{ width: number }, string>("resize", {
    queue: "q",
    parse: (payload) => {
      assert(typeof payload === "object", "no object");
      return payload as { width: number };
    },
  });
  const worker = new Worker({ nodes: node.address, log: { warn: (message) => warnings.push(message) } }, { goodbye: 50 });
  worker.handle(resize, (job) => `resized to ${job.payload.width}`).handle("q", () => "any other", { fn: "other", concurrency: 2 });
  worker.use(async (job, next) => {
    seen.push(`${job.fn} begins`);
    return `<${await next()}>`;
  });
  worker.use(async (job, next) => {
    try {
      return await next();
    } finally {
      seen.push(`${job.fn} ends`);
    }
  });
  assert.throws(() => worker.handle(resize, () => ""), /has a handler for resize already/);
  assert.throws(() => worker.handle("q", () => "", { concurrency: 0 }), RangeError);
  run(t, [node], worker);
  assert.throws(() => worker.handle("r", () => ""), /add handlers before/);
  await assert.rejects(worker.run(), /called before/);
  const connection = await subscriber(node, 2);
  const ends: Array<[Fields, number, string]> = [
    [{ fn: "resize", job_payload: { width: 5 } }, T.DONE, "<resized to 5>"], [{ fn: "other" }, T.DONE, "<any other>"],
    [{ fn: "resize", job_payload: 5 }, T.FAIL, "invalid"], [{ fn: "resize", job_payload: 6 }, T.FAIL, "invalid"],
  ];
  for (const [i, [fields, type, expected]] of ends.entries()) {
    connection.quest(i, { ...BEAT, ...fields });
    await connection.answer(T.ACK);
    const end = await connection.answer(type);
    assert.equal(type === T.DONE ? end["result"] : (end["error"] as Fields)["type"], expected);
    assert.equal(end["retry"], type === T.DONE ? undefined : false);
  }
  assert.deepEqual(seen, ["resize begins", "resize ends", "other begins", "other ends"]);
  const unknown: Array<[string | undefined, number, number]> = [["none", 0, 5000], ["none", 600_000, 300_000], [undefined, 7.2e6, 600_000], [undefined, 9e7, 0]];
  for (const [i, [fn, age, delay]] of unknown.entries()) {
    const node = Date.UTC(2001, 0); // not this machine's clock
    connection.quest(10 + i, {
      ...BEAT, fn, created_at: new Date(node - age).toISOString(), lease_ms: 6000, lease_until: new Date(node + 6000).toISOString(),
    });
    await connection.answer(T.ACK);
    const { error, retry, snooze_ms: after } = await connection.answer(T.FAIL);
    assert.deepEqual([(error as Fields)["type"], retry], delay > 0 ? ["snooze", undefined] : ["unknown_function", true]);
    assert(Math.abs(Number(after ?? 0) - delay) < 5000, `goes back for ${String(after)} ms`);
  }
  assert.equal(warnings.length, 2); // one of each function
  assert.match(warnings[0]!, /names the function "none", for which this worker has no handler; it has "resize", "other": .* go back for some time/);
});

test("a job of a function without a handler may fail for good", async (t) => {
  const node = await FakeNode.start(t);
  const worker = new Worker({ nodes: node.address, log: {}, failUnknown: true }).handle("q", () => 1, { fn: "one" });
  run(t, [node], worker);
  const connection = await subscriber(node);
  connection.quest(1, { ...BEAT, fn: "two" });
  await connection.answer(T.ACK);
  const { error, retry, retry_after_ms: after } = await connection.answer(T.FAIL);
  assert.deepEqual([(error as Fields)["type"], retry, after], ["handler_not_found", false, undefined]);
});

test("a payload that does not fit into a frame is read", async (t) => {
  const node = await FakeNode.start(t);
  start(t, [node], (job) => job.payload.length);
  const connection = await subscriber(node);
  connection.quest(1, { ...BEAT, job_payload: null, omitted: ["job_payload"] });
  await connection.answer(T.ACK);
  assert.equal((await connection.refuseNext(T.CONTENT, "UNAVAILABLE", { retry_after_ms: 10 }))["offset"], 0);
  for (const offset of [0, 2]) {
    const part = { size: 4, encoding: "json", version: "v", data: Buffer.from('"xy"').subarray(offset, offset + 2) };
    assert.deepEqual(await connection.answer(T.CONTENT, part), { jid: jid(1), value: "payload", offset });
  }
  assert.equal((await connection.answer(T.DONE))["result"], 2);
  connection.quest(2, { ...BEAT, job_payload: null, omitted: ["job_payload"] });
  await connection.answer(T.ACK);
  await connection.refuseNext(T.CONTENT, "CONTENT_GONE");
  assert.equal(((await connection.answer(T.FAIL))["error"] as Fields)["code"], "CONTENT_GONE");
});

test("an outcome is repeated over the next connection", async (t) => {
  const node = await FakeNode.start(t);
  let ran = 0;
  start(t, [node], () => ++ran);
  let connection = await subscriber(node);
  const tok = connection.quest(1);
  await connection.answer(T.ACK);
  await connection.expect(T.DONE);
  connection.close();
  connection = await node.accept();
  const done = await connection.answer(T.DONE, { status: "completed", dup: true });
  assert.deepEqual(done, { jid: jid(1), tok, result: 1 }); // without credits: it is not subscribed
  await answerSubscribe(connection);
  connection.quest(2);
  await connection.answer(T.ACK);
  const first = await connection.refuseNext(T.DONE, "UNAVAILABLE", { retry_after_ms: 50 });
  assert.equal(first["credits"], 1);
  const repeated = await connection.answer(T.DONE);
  assert.deepEqual([repeated["tok"], repeated["credits"], ran], [first["tok"], undefined, 2]);
});

test("a result that the node finds too large fails the job", async (t) => {
  const node = await FakeNode.start(t);
  start(t, [node], () => "large");
  const connection = await subscriber(node);
  connection.quest(1);
  await connection.answer(T.ACK);
  await connection.refuseNext(T.DONE, "RESULT_TOO_LARGE", { limit: 3 });
  const fail = await connection.answer(T.FAIL);
  assert.deepEqual([(fail["error"] as Fields)["type"], fail["retry"]], ["invalid_result", false]);
});

test("a BEAT does not wait for answers", async (t) => {
  const node = await FakeNode.start(t);
  const finish = new Gate();
  t.after(() => finish.open());
  start(t, [node], (job) => (job.payload === 1 ? 1 : finish.opened), { concurrency: 2 });
  const connection = await subscriber(node, 2);
  connection.quest(2);
  await connection.answer(T.ACK);
  connection.quest(1);
  let beats = 0;
  for (let isDone = false; beats < 3; ) { // a DONE that commits slowly delays all answers after it
    const message = await connection.read();
    if (message.type === T.ACK) {
      connection.ok(message);
    } else if (message.type === T.DONE) {
      isDone = true;
    } else if (isDone && message.type === T.BEAT) {
      assert((message.fields["jobs"] as Fields[]).some((job) => Buffer.from(job["tok"] as Uint8Array).equals(token(2))));
      beats++;
    }
  }
});

test("many jobs are split into BEATs that fit into a frame", async (t) => {
  const node = await FakeNode.start(t, { maxFrame: 65536 });
  const finish = new Gate();
  t.after(() => finish.open());
  start(t, [node], () => finish.opened, { concurrency: 300 });
  const connection = await subscriber(node, 300);
  for (let n = 0; n < 300; n++) {
    connection.quest(n % 200, { tok: new Uint8Array(Buffer.from(String(n).padStart(16, "0"))), jid: jid(n), beat_ms: 1500 });
  }
  for (let n = 0; n < 300; n++) {
    await connection.answer(T.ACK);
  }
  const counts = [];
  for (let n = 0; n < 2; n++) {
    counts.push(((await connection.answer(T.BEAT, { jobs: [] }))["jobs"] as Fields[]).length);
  }
  assert.equal(counts[0]! + counts[1]!, 300);
  assert(counts[0]! <= 256);
});

test("a job moves to another node when its own drains", async (t) => {
  const [node, other] = [await FakeNode.start(t), await FakeNode.start(t)];
  const finish = new Gate();
  let ran = 0;
  const { worker } = start(t, [node], async () => {
    ran++;
    await finish.opened;
    return "kept";
  });
  const connection = await subscriber(node);
  const tok = connection.quest(1);
  await connection.answer(T.ACK);
  assert.deepEqual(await connection.answer(T.BEAT, { jobs: [{ ok: true }] }), { jobs: [{ jid: jid(1), tok }] });
  connection.push(T.DRAIN, { reason: "node stops", reconnect: [other.address] });
  const second = await other.accept();
  const beat = await second.answer(T.BEAT, { jobs: [{ ok: false, code: "UNAVAILABLE" }] }); // it must repeat it
  await answerSubscribe(second, 0);
  connection.push(T.RECALL, { jid: jid(1), tok, reason: "SUPERSEDED", grace_ms: 0 }); // by the node that it has left
  const repeated = await second.expect(T.BEAT);
  assert.deepEqual(repeated.fields, beat);
  assert.equal(connection.socket.destroyed, false); // the lease is still that node's
  second.ok(repeated, { jobs: [{ ok: true }] });
  await connection.closed; // by the worker, whose jobs have all moved
  assert.equal(worker.node, other.address);
  finish.open();
  const done = (await second.answerUntil(T.DONE)).at(-1)!;
  assert.deepEqual([done.fields["tok"], done.fields["result"], done.fields["credits"], ran], [tok, "kept", 1, 1]);
});

test("an ACK without answer is repeated", async (t) => {
  const node = await FakeNode.start(t);
  const finish = new Gate();
  start(t, [node], () => finish.opened);
  let connection = await subscriber(node);
  const tok = connection.quest(1);
  await connection.expect(T.ACK);
  connection.close();
  connection = await node.accept();
  const message = await connection.expect(T.ACK);
  await answerSubscribe(connection, 0);
  connection.refuse(message.rid, "UNAVAILABLE", { retry_after_ms: 100 });
  assert.deepEqual((await connection.answer(T.ACK))["tok"], tok);
  finish.open();
  assert.deepEqual((await connection.answer(T.DONE))["tok"], tok);
});

test("a QUEST that comes twice runs once", async (t) => {
  const node = await FakeNode.start(t);
  const finish = new Gate();
  let ran = 0;
  start(t, [node], () => (ran++, finish.opened));
  const connection = await subscriber(node);
  for (let i = 0; i < 2; i++) {
    const tok = connection.quest(1, BEAT);
    assert.deepEqual((await connection.answer(T.ACK))["tok"], tok);
  }
  finish.open();
  assert.equal((await connection.answer(T.DONE))["credits"], 1);
  assert.equal(ran, 1);
});

test("a job is stopped when its lease is lost, and sends nothing", async (t) => {
  const node = await FakeNode.start(t);
  const reasons: JobStopped[] = [];
  start(t, [node], async (job) => {
    if (job.payload < 3) {
      reasons.push(await stopOf(job));
      assert.throws(() => job.progress(1), JobStopped);
      assert.throws(() => job.log("late"), JobStopped);
      if (job.payload === 1) {
        job.signal.throwIfAborted();
      }
    }
  });
  const connection = await subscriber(node);
  connection.quest(1);
  await connection.answer(T.ACK);
  await connection.answer(T.BEAT, { jobs: [{ ok: false, code: "LEASE_LOST" }] });
  assert.deepEqual(await connection.answer(T.CREDIT), { sid: SID, credits: 1 });
  connection.quest(2);
  await connection.refuseNext(T.ACK, "ACK_TIMEOUT");
  await connection.answer(T.CREDIT); // this one has not started
  assert.deepEqual(reasons.map(({ reason, code }) => [reason, code]), [["lease_lost", "LEASE_LOST"]]);
  connection.quest(3);
  await connection.answer(T.ACK);
  await connection.answer(T.DONE);
});

test("a job is stopped at the end of its lease while no node is reached", async (t) => {
  const node = await FakeNode.start(t);
  const stopped = new Gate<JobStopped>();
  start(t, [node], async (job) => stopped.open(await stopOf(job)));
  const connection = await subscriber(node);
  connection.quest(1, { lease_ms: 300, beat_ms: 100 });
  await connection.answer(T.ACK);
  await node.close();
  const reason = await soon(stopped.opened);
  assert.deepEqual([reason.reason, reason.code], ["lease_lost", "LEASE_EXPIRED"]);
});

test("a later assignment of the same job stops the earlier one", async (t) => {
  const node = await FakeNode.start(t);
  const started = new Gate();
  const stopped = new Gate<JobStopped>();
  start(t, [node], async (job) => {
    started.open();
    if (job.payload === 1) {
      stopped.open(await stopOf(job));
    }
  }, { concurrency: 2 });
  const connection = await subscriber(node, 2);
  connection.quest(1, BEAT);
  await connection.answer(T.ACK);
  await soon(started.opened);
  connection.quest(2, { ...BEAT, jid: jid(1), redelivered: true });
  await connection.answer(T.ACK);
  assert.equal((await soon(stopped.opened)).code, "SUPERSEDED");
});

test("a recalled job reports how it has ended", async (t) => {
  const node = await FakeNode.start(t);
  const started = new Inbox<number>();
  start(t, [node], async (job) => {
    started.put(job.payload);
    const stopped = await stopOf(job);
    if (job.payload === 1) {
      return "finished none the less";
    }
    throw job.payload === 2 ? new Error("wrapped", { cause: stopped }) : stopped;
  });
  const connection = await subscriber(node);
  const recalls: Array<[string, number, number, string | undefined, boolean | undefined]> = [
    ["CANCELLED", 2000, T.DONE, undefined, undefined], ["CANCELLED", 2000, T.FAIL, "cancelled", true], ["DEADLINE", 2000, T.FAIL, "timeout", false],
    ["SHUTDOWN", 2000, T.FAIL, "cancelled", true], ["QUEUE_REMOVED", 0, T.CREDIT, undefined, undefined],
  ];
  for (const [i, [reason, grace, type, kind, retry]] of recalls.entries()) {
    const tok = connection.quest(i + 1, BEAT);
    await connection.answer(T.ACK);
    await started.take("the handler's start");
    connection.push(T.RECALL, { jid: jid(i + 1), tok, reason, grace_ms: grace, ...(kind === "cancelled" && { msg: "customer left" }) });
    const end = await connection.answer(type, { status: "failed" });
    if (kind === "cancelled") {
      assert.equal((end["error"] as Fields)["message"], i === 1 ? "wrapped" : "job must stop: customer left");
    }
    assert.deepEqual([(end["error"] as Fields | undefined)?.["type"], end["retry"]], [kind, retry]);
  }
});

test("a job is stopped at its deadline, by the node's clock", async (t) => {
  const node = await FakeNode.start(t);
  const stopped: JobStopped[] = [];
  start(t, [node], async (job) => {
    assert.deepEqual(job.deadline, new Date("2001-01-01T00:00:06.050Z"));
    stopped.push(await stopOf(job));
    await sleep(1);
    throw new Error("too slow");
  });
  const connection = await subscriber(node);
  connection.quest(1, { ...BEAT, lease_until: "2001-01-01T00:00:12Z", deadline: "2001-01-01T00:00:06.050Z" });
  await connection.answer(T.ACK);
  const fail = await connection.answer(T.FAIL, { status: "failed" });
  assert.deepEqual([(fail["error"] as Fields)["type"], fail["retry"], stopped[0]?.reason], ["timeout", false, "deadline"]);
});

test("credits follow what the node reports", async (t) => {
  const node = await FakeNode.start(t);
  const finish = new Gate();
  start(t, [node], (job) => (job.payload === 2 ? finish.opened : stopOf(job).then(() => undefined)), { concurrency: 3 });
  const connection = await subscriber(node, 3);
  connection.push(T.CREDITS, { sid: SID, credits: 0, reason: "STALLED" });
  assert.deepEqual(await connection.answer(T.CREDIT), { sid: SID, credits: 3 });
  const tok = connection.quest(1, BEAT);
  await connection.answer(T.ACK);
  connection.quest(2, BEAT);
  await connection.answer(T.ACK);
  connection.push(T.CREDITS, { sid: SID, credits: 2, reason: "RESTORED" });
  connection.push(T.RECALL, { jid: jid(1), tok, reason: "CANCELLED", grace_ms: 0 }); // that credit is back already
  connection.push(T.CREDITS, { sid: "of another subscription", credits: 0, reason: "STALLED" });
  finish.open();
  assert.equal((await connection.answer(T.DONE))["credits"], 1);
  for (const n of [3, 4, 5]) {
    connection.quest(n, BEAT);
    await connection.answer(T.ACK);
  }
  connection.quest(6, BEAT);
  assert.deepEqual(await connection.answer(T.NACK), { jid: jid(6), tok: token(6), reason: "worker is busy" });
});

test("a job that ends while the worker subscribes gives its credit afterwards", async (t) => {
  const node = await FakeNode.start(t);
  const finish = new Gate();
  start(t, [node], () => finish.opened);
  let connection = await subscriber(node);
  connection.quest(1, BEAT);
  await connection.answer(T.ACK);
  connection.close();
  connection = await node.accept();
  await connection.answer(T.BEAT, { jobs: [{ ok: true }] });
  const message = await connection.expect(T.SUBSCRIBE);
  assert.equal(message.fields["credits"], 0);
  finish.open();
  assert.equal((await connection.answer(T.DONE))["credits"], undefined);
  connection.ok(message, { sid: SID });
  assert.deepEqual(await connection.answer(T.CREDIT), { sid: SID, credits: 1 });
  connection.push(T.CREDITS, { sid: SID, credits: 0, reason: "STALLED" });
  await connection.refuseNext(T.CREDIT, "SUBSCRIPTION_NOT_FOUND");
  await answerSubscribe(connection); // a second later
});

test("missing queues are created, or end the worker", async (t) => {
  const node = await FakeNode.start(t);
  start(t, [node], () => 1);
  const connection = await node.accept();
  await connection.refuseNext(T.SUBSCRIBE, "QUEUE_NOT_FOUND");
  assert.deepEqual(await connection.refuseNext(T.ADDQUEUE, "UNAVAILABLE", { retry_after_ms: 50 }), { name: "q" });
  await connection.refuseNext(T.SUBSCRIBE, "QUEUE_NOT_FOUND");
  await connection.refuseNext(T.ADDQUEUE, "DUPLICATE_QUEUE");
  await answerSubscribe(connection);
  connection.quest(1);
  await connection.answer(T.ACK);
  await connection.answer(T.DONE);

  const strict = await FakeNode.start(t);
  const { ended } = start(t, [strict], () => 1, { createQueues: false });
  const second = await strict.accept();
  await second.refuseNext(T.SUBSCRIBE, "QUEUE_NOT_FOUND");
  await second.answerUntil(T.GOODBYE);
  const error = await soon(ended);
  assert(error instanceof OverhopError);
  assert.deepEqual([error.code, error.message], ["QUEUE_NOT_FOUND", 'QUEUE_NOT_FOUND: cannot subscribe to queue "q": QUEUE_NOT_FOUND: no']);
});

test("a thousand queues do not delay a BEAT", async (t) => {
  const node = await FakeNode.start(t);
  const worker = new Worker({ nodes: node.address, log: {} }, { goodbye: 50 });
  for (let n = 0; n < 100; n++) {
    worker.handle(`q${n}`, (job) => job.queue);
  }
  run(t, [node], worker);
  let connection = await node.accept();
  const requests = [];
  for (let n = 0; n < 64; n++) { // at a time, while none is answered
    requests.push(await connection.expect(T.SUBSCRIBE));
  }
  requests.forEach((message) => connection.ok(message, { sid: message.fields["q"] }));
  for (let n = 64; n < 100; n++) {
    assert.deepEqual(await connection.answer(T.SUBSCRIBE, { sid: `q${n}` }), { q: `q${n}`, credits: 1 });
  }
  connection.quest(1, { q: "q99", sid: "q99" });
  await connection.answer(T.ACK);
  assert.equal((await connection.answer(T.DONE))["result"], "q99");
  connection.close();
  connection = await node.accept();
  for (let n = 0; n < 64; n++) {
    await connection.expect(T.SUBSCRIBE);
  }
  void worker.stop();
  await connection.expect(T.GOODBYE); // not a 65th SUBSCRIBE
});

test("a refused subscription is tried again, and a draining node left", async (t) => {
  const node = await FakeNode.start(t);
  const warnings: string[] = [];
  start(t, [node], () => 1, { log: { warn: (message) => warnings.push(message) } });
  const connection = await node.accept();
  await connection.refuseNext(T.SUBSCRIBE, "UNAVAILABLE", { retry_after_ms: 50 });
  await connection.refuseNext(T.SUBSCRIBE, "UNAVAILABLE", { retry_after_ms: 50 });
  await connection.refuseNext(T.SUBSCRIBE, "DRAINING");
  await answerSubscribe(await node.accept()); // it is the only node, so the worker tries it once more
  assert.deepEqual(warnings, ["cannot subscribe to a queue, trying again"]);
});

test("a wrong token ends the worker, and so does one without handlers", async (t) => {
  const node = await FakeNode.start(t, { token: "secret" });
  const { ended } = start(t, [node], () => 1, { token: "wrong" });
  assert.equal(((await soon(ended)) as OverhopError).code, "UNAUTHORIZED");
  start(t, [node], () => 1, { token: "secret" });
  await subscriber(node);
  await assert.rejects(new Worker({ nodes: node.address }).run(), /no handler/);
});

test("a worker that stops finishes its jobs and takes no more", async (t) => {
  const node = await FakeNode.start(t);
  const finish = new Gate();
  const { worker, ended } = start(t, [node], () => finish.opened, { concurrency: 2, grace: PATIENCE });
  const connection = await subscriber(node, 2);
  connection.quest(1, BEAT);
  await connection.answer(T.ACK);
  const stopped = worker.stop();
  assert.equal((await connection.answer(T.GOODBYE, { inflight: 1 }))["drain"], true);
  const late = connection.quest(2, BEAT); // sent before the node has read the GOODBYE
  assert.deepEqual((await connection.answer(T.NACK))["tok"], late);
  finish.open();
  assert.equal((await connection.answer(T.DONE))["credits"], undefined);
  assert.equal((await connection.answer(T.GOODBYE, { inflight: 0 }))["drain"], false);
  await connection.closed;
  assert.equal(await soon(ended), undefined);
  await soon(stopped);
});

test("an outcome is reported to another connection while the worker stops", async (t) => {
  const node = await FakeNode.start(t);
  const finish = new Gate();
  const { worker } = start(t, [node], () => finish.opened, { grace: PATIENCE });
  let connection = await subscriber(node);
  const tok = connection.quest(1);
  await connection.answer(T.ACK);
  void worker.stop();
  await connection.answer(T.GOODBYE, { inflight: 1 });
  connection.close();
  connection = await node.accept(); // it does not subscribe
  assert.deepEqual(await connection.answer(T.BEAT, { jobs: [{ ok: true }] }), { jobs: [{ jid: jid(1), tok }] });
  finish.open();
  const messages = await connection.answerUntil(T.DONE);
  assert.equal(messages.some(({ type }) => type === T.SUBSCRIBE), false);
});

test("jobs that do not end in time are given back", async (t) => {
  const node = await FakeNode.start(t);
  const finish = new Gate();
  const begun = [1, 2, 3, 4, 5].map(() => new Gate());
  const { worker, ended } = start(t, [node], async (job) => {
    begun[job.payload - 1]!.open();
    if (job.payload === 5) {
      await finish.opened; // ignores its signal
    }
    const stopped = await stopOf(job);
    assert.equal(stopped.reason, "shutdown");
    if (job.payload === 1) {
      throw stopped;
    }
    if (job.payload === 2) {
      return "just done";
    }
    throw job.payload === 3 ? new Error("cannot stop") : Object.assign(new Error("aborted"), { name: "AbortError" });
  }, { concurrency: 5, grace: 0 }, { cancel: 500, goodbye: PATIENCE });
  const connection = await subscriber(node, 5);
  for (let n = 1; n <= 5; n++) {
    connection.quest(n, { beat_ms: 100 });
    await connection.answer(T.ACK);
    await soon(begun[n - 1]!.opened);
  }
  void worker.stop();
  assert.equal((await connection.answerUntil(T.GOODBYE)).at(-1)!.fields["drain"], true);
  const messages = await connection.answerUntil(T.GOODBYE);
  assert.equal(messages.at(-1)!.fields["drain"], false);
  const outcomes = messages.filter(({ type }) => type === T.DONE || type === T.FAIL).map(({ type, fields }) => [type, fields["jid"]]);
  assert.deepEqual(outcomes, [[T.DONE, jid(2)], [T.FAIL, jid(3)]]);
  const beats = messages.filter(({ type }) => type === T.BEAT);
  const last = (beats.at(-1)!.fields["jobs"] as Fields[]).map((job) => job["jid"]);
  assert.deepEqual(last.sort(), [jid(1), jid(4), jid(5)]); // they are leased until they are given back
  assert.equal(await soon(ended), undefined); // although a handler still runs
  finish.open();
});

test("a worker stops as soon as all handlers were interrupted", async (t) => {
  const node = await FakeNode.start(t);
  const { worker, ended } = start(t, [node], async (job) => {
    throw await stopOf(job);
  }, { grace: 0 }, { cancel: 10 * PATIENCE });
  const connection = await subscriber(node);
  connection.quest(1, BEAT);
  await connection.answer(T.ACK);
  await sleep(1);
  void worker.stop();
  await connection.answerUntil(T.GOODBYE);
  const messages = await connection.answerUntil(T.GOODBYE);
  assert.equal(messages.some(({ type }) => type === T.FAIL), false);
  assert.equal(await soon(ended), undefined);
});

test("a worker stops at a signal of the process or the caller", async (t) => {
  const node = await FakeNode.start(t);
  const worker = new Worker({ nodes: node.address, log: {} }, { goodbye: 50 }).handle("q", () => 1).stopOnSignals("SIGUSR2");
  const running = worker.run();
  const connection = await subscriber(node);
  process.kill(process.pid, "SIGUSR2");
  assert.equal((await connection.answer(T.GOODBYE))["drain"], false);
  await soon(running);
  const controller = new AbortController();
  const other = new Worker({ nodes: node.address, log: {} }, { goodbye: 50 }).handle("q", () => 1).run({ signal: controller.signal });
  await subscriber(node);
  controller.abort();
  await soon(other);
});
