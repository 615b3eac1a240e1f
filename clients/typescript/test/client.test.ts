/** Client with a node that closes connections, is unavailable, drains and refuses. */

import assert from "node:assert/strict";
import { test, TestContext } from "node:test";
import { encode } from "../src/codec.js";
import { Client, ClientOptions } from "../src/client.js";
import { defineJob, JobRequest } from "../src/enqueue.js";
import * as errors from "../src/errors.js";
import { Fields, T } from "../src/protocol.js";
import { sleep } from "../src/wait.js";
import { Worker } from "../src/worker.js";
import { FakeNode, FakeOptions, jid, NodeConnection, PATIENCE, soon } from "./fakenode.js";
import { Proxy } from "./proxy.js";

const JID = jid(1);
const quiet = {};

/** Returns a fake node and a client of it. */
async function pair(t: TestContext, options: ClientOptions = {}, fake: FakeOptions = {}): Promise<[FakeNode, Client]> {
  const node = await FakeNode.start(t, fake);
  const client = new Client({ nodes: node.address, timeout: PATIENCE, log: quiet, ...options });
  t.after(() => client.close());
  return [node, client];
}

/** Returns the error that a promise rejects with, which must be of a class. */
async function failed<E extends Error>(promise: Promise<unknown>, type: new (...args: any[]) => E): Promise<E> {
  const outcome = await soon(promise.then(() => undefined, (err: unknown) => err));
  assert(outcome instanceof type, `rejected with ${outcome}`);
  return outcome;
}

test("an enqueue is repeated with the same key", async (t) => {
  const [node, client] = await pair(t);
  const payload = { n: 2n ** 63n - 1n, b: new Uint8Array([255]) };
  const enqueued = client.enqueue("q", { payload, delay: 1000 });
  let connection = await node.accept();
  const first = (await connection.expect(T.ENQUEUE)).fields;
  connection.close();
  connection = await node.accept();
  assert.deepEqual(await connection.refuseNext(T.ENQUEUE, "UNAVAILABLE", { retry_after_ms: 50 }), first);
  assert.deepEqual(first["job_payload"], payload);
  assert.equal(first["delay_ms"], 1000);
  assert.match(String(first["key"]), /^auto-[0-9a-f]{32}$/);
  assert.deepEqual(await connection.answer(T.ENQUEUE, { jid: JID }), first);
  assert.equal(await soon(enqueued), JID);
});

test("all options of a job are sent", async (t) => {
  const [node, client] = await pair(t);
  const enqueued = client.enqueue("q", {
    fn: "resize", runAt: new Date("2030-01-01T00:00:00Z"), maxAttempts: 3, retryInterval: 1500, timeout: 60_000, retryOnTimeout: true,
    priority: 9, key: "order-1", uniqueKey: "u", uniqueTtl: 10_000, rateLimitKey: "r", rateLimit: 500.4, trace: { a: "b" },
    limitKey: "acme", limits: { stripe: "", smtp: "eu" }, tags: ["red", "blue"], meta: { order: "7" }, expiresIn: 60_000,
  });
  const connection = await node.accept();
  assert.deepEqual(await connection.answer(T.ENQUEUE, { jid: JID }), {
    q: "q", job_payload: null, fn: "resize", scheduled_at: "2030-01-01T00:00:00.000Z", max_attempts: 3, retry_interval_ms: 1500,
    timeout_ms: 60_000, retry_on_timeout: true, priority: 9, key: "order-1", unique_key: "u", unique_ttl_ms: 10_000,
    rate_limit_key: "r", rate_limit_ms: 500, trace: { a: "b" }, limit_key: "acme", limits: { stripe: "", smtp: "eu" },
    tags: ["red", "blue"], meta: { order: "7" }, expires_in_ms: 60_000,
  });
  await enqueued;
  const debounced = client.enqueue("q", { debounceKey: "d", debounce: 2000, key: "k", uniqueKey: "u", uniqueUntil: "end" });
  assert.deepEqual(await connection.answer(T.ENQUEUE, { jid: JID }), {
    q: "q", job_payload: null, key: "k", debounce_key: "d", debounce_ms: 2000, unique_key: "u", unique_until: "end",
  });
  await debounced;
});

test("a kind of job has its queue, function and defaults", async (t) => {
  const [node, client] = await pair(t);
  const resize = defineJob<{ width: number }, string>("resize", { queue: "media", maxAttempts: 3, priority: 1 });
  const called: Promise<string> = client.call(resize, { width: 10 }, { priority: 9, key: "k" });
  const connection = await node.accept();
  const request = { q: "media", fn: "resize", job_payload: { width: 10 }, max_attempts: 3, priority: 9, key: "k" };
  assert.deepEqual(await connection.answer(T.ENQUEUE, { jid: JID }), request);
  await connection.answer(T.AWAIT, { status: "completed", attempts: 1, result: "done" });
  assert.equal(await soon(called), "done");
});

test("options that are out of range or exclude each other are refused", async () => {
  const client = new Client({ nodes: "127.0.0.1:1" });
  const cases: Array<[RegExp, Omit<JobRequest, "queue">]> = [
    [/key is "": leave it out/, { key: "" }], [/key has 129 bytes, must have 1 to 128/, { key: "x".repeat(129) }], [/uniqueKey is " "/, { uniqueKey: " " }],
    [/need uniqueKey/, { uniqueTtl: 1 }], [/uniqueTtl or uniqueUntil, not both/, { uniqueKey: "u", uniqueTtl: 1, uniqueUntil: "end" }],
    [/"start" or "end"/, { uniqueKey: "u", uniqueUntil: "x" as "end" }], [/timeout is 0, must be 1 to/, { timeout: 0 }], [/retryInterval is 0/, { retryInterval: 0 }],
    [/delay is 1e\+21/, { delay: 1e21 }], [/delay is 5, must/, { delay: "5" as unknown as number }], [/priority is 1.5/, { priority: 1.5 }],
    [/expiresIn is -1/, { expiresIn: -1 }], [/fn has 257 bytes/, { fn: "f".repeat(257) }], [/limitKey has 129 bytes/, { limitKey: "x".repeat(129) }],
    [/no control characters/, { limitKey: "a\n" }], [/the name "a b"/, { limits: { "a b": "" } }],
    [/at most 8/, { limits: Object.fromEntries("123456789".split("").map((name) => [name, ""])) }],
    [/an array of at most 20/, { tags: "red" as unknown as string[] }], [/tags\[1\] has 0 bytes/, { tags: ["a", ""] }], [/at most 20/, { tags: new Array(21).fill("a") }],
    [/a name in meta has 65 bytes/, { meta: { ["n".repeat(65)]: "" } }], [/meta.a has 513 bytes/, { meta: { a: "x".repeat(513) } }],
    [/meta.a is 1, must be a string/, { meta: { a: 1 as unknown as string } }], [/go together/, { rateLimitKey: "r" }], [/go together/, { debounce: 1 }],
    [/debounce is 0, must be 1 to \d+ milliseconds/, { debounceKey: "d", debounce: 0 }], [/delay is -1, must be 0 to/, { delay: -1 }], [/delay is NaN/, { delay: NaN }],
    [/does not go with/, { debounceKey: "d", debounce: 1, delay: 1 }], [/not both/, { delay: 1, runAt: new Date() }],
    [/RFC 3339/, { runAt: "tomorrow" }], [/0 to 9/, { priority: 10 }], [/1 to/, { maxAttempts: 0 }], [/must be an object/, { payload: 1.5 }],
    [/no binary/, { payload: { a: 1.5, b: new Uint8Array(1) } }], [/a Date/, { payload: { at: new Date() } }], [/NaN/, { payload: { a: NaN } }],
  ];
  for (const [message, options] of cases) {
    await assert.rejects(client.enqueue("q", options), message);
  }
  for (const name of ["", "a b", "-a", "_system", "x".repeat(129)]) {
    await assert.rejects(client.enqueue(name), /queue name ".*" must have 1 to 128 letters/);
    assert.throws(() => new Worker().handle(name, () => 1), /queue name/);
  }
  await assert.rejects(client.queues.add("a b"), /queue name/);
  await assert.rejects(client.queues.add("a", { concurrencyLimit: 0 }), /concurrencyLimit is 0, must be an integer from 1/);
  assert.throws(() => new Client({ timeout: -1 }), /timeout is -1/);
  assert.throws(() => new Worker({ concurrency: 0 }), /concurrency is 0, must be an integer from 1/);
  assert.throws(() => new Worker({ grace: NaN }), /grace is NaN/);
});

test("a missing queue is created, once for all jobs", async (t) => {
  const [node, client] = await pair(t);
  const answers = client.enqueueMany(["old", "new", "new"].map((queue, payload) => ({ queue, payload, key: String(payload) })));
  const connection = await node.accept();
  await connection.answer(T.ENQUEUE, { jid: "old" });
  await connection.refuseNext(T.ENQUEUE, "QUEUE_NOT_FOUND");
  await connection.refuseNext(T.ENQUEUE, "QUEUE_NOT_FOUND");
  const add = await connection.expect(T.ADDQUEUE);
  assert.equal(add.fields["name"], "new");
  connection.refuse(add.rid, "DUPLICATE_QUEUE"); // another client was faster
  for (const _ of ["1", "2"]) {
    const message = await connection.expect(T.ENQUEUE); // no second ADDQUEUE
    connection.ok(message, { jid: `new${String(message.fields["key"])}` });
  }
  assert.deepEqual((await soon(answers)).map(({ jid }) => jid), ["old", "new1", "new2"]);
  const refused = failed(client.enqueue("other"), errors.OverhopError);
  await connection.refuseNext(T.ENQUEUE, "QUEUE_NOT_FOUND");
  await connection.refuseNext(T.ADDQUEUE, "INVALID_QUEUE_NAME");
  assert.equal((await refused).code, "INVALID_QUEUE_NAME");
});

test("an awaited job that was cancelled has the reason", async (t) => {
  const [node, client] = await pair(t);
  const cases: Array<[Fields, string | undefined]> = [
    [{ message: "job must stop", reason: "customer left" }, "customer left"], [{ message: "customer left" }, "customer left"], [{ message: "" }, undefined],
  ];
  let connection: NodeConnection | undefined;
  for (const [error, reason] of cases) {
    const cancelled = failed(client.result(JID), errors.JobCancelled);
    connection ??= await node.accept();
    await connection.answer(T.AWAIT, { status: "failed", attempts: 1, error: { type: "cancelled", ...error } });
    assert.equal((await cancelled).reason, reason);
    assert.match((await cancelled).message, new RegExp(`was cancelled: ${reason ?? "no reason given"}`));
  }
});

test("refusals have their own errors", async (t) => {
  const [node, client] = await pair(t, { createQueues: false });
  const enqueued = failed(client.enqueue("q"), errors.OverhopError);
  const connection = await node.accept();
  await connection.refuseNext(T.ENQUEUE, "QUEUE_NOT_FOUND");
  assert.deepEqual([(await enqueued).code, (await enqueued).message], ["QUEUE_NOT_FOUND", "QUEUE_NOT_FOUND: no"]);
  const refusal = async <E extends Error>(type: new (...args: any[]) => E, code: string, details: Fields) => {
    const refused = failed(client.enqueue("q"), type);
    await connection.refuseNext(T.ENQUEUE, code, details);
    return refused;
  };
  assert.equal((await refusal(errors.DuplicateJob, "DUPLICATE_JOB", { jid: JID })).jid, JID);
  assert.equal((await refusal(errors.RateLimited, "RATE_LIMITED", { retry_after_ms: 70 })).retryAfter, 70);
  assert.equal((await refusal(errors.RateLimited, "RATE_LIMITED", {})).retryAfter, undefined);
  const invalid = await refusal(errors.InvalidJob, "INVALID_JOB_PAYLOAD", { path: "/to" });
  assert.deepEqual([invalid.path, invalid.name], ["/to", "InvalidJob"]);
});

test("a call ends with its deadline or its signal, with the last error as cause", async (t) => {
  const [node, client] = await pair(t);
  const late = failed(client.enqueue("q", { key: "k", deadline: new Date(Date.now() + 300) }), errors.DeadlineExceeded);
  const connection = await node.accept();
  await connection.refuseNext(T.ENQUEUE, "UNAVAILABLE", { retry_after_ms: 50 });
  await connection.expect(T.ENQUEUE);
  const error = await late;
  assert.equal(error.key, "k");
  assert(error.cause instanceof errors.Unavailable);
  assert.match(error.message, /UNAVAILABLE/);
  const controller = new AbortController();
  const aborted = client.enqueue("q", { signal: controller.signal }).catch((reason: unknown) => reason);
  await connection.expect(T.ENQUEUE);
  controller.abort("changed my mind");
  assert.equal(await soon(aborted), "changed my mind");
  await assert.rejects(client.enqueue("q", { signal: controller.signal }), (reason: unknown) => reason === "changed my mind");
});

test("fractions and huge integers travel as JSON", async (t) => {
  const [node, client] = await pair(t);
  const called = client.call("q", { payload: { price: 19.99, big: 2n ** 64n, b: [true, null, "ä"] } });
  const connection = await node.accept();
  assert.deepEqual(connection.hello["caps"], ["json", "content", "api", "snooze", "\r\n\r\n"]);
  const request = await connection.answer(T.ENQUEUE, { jid: JID });
  assert.equal("job_payload" in request, false);
  assert.equal(Buffer.from(request["job_payload_json"] as Uint8Array).toString(), '{"b":[true,null,"ä"],"big":18446744073709551616,"price":19.99}');
  await connection.answer(T.AWAIT, { pending: true });
  connection.push(T.JOBEND, { jid: JID, status: "completed", attempts: 1, error: null, result_json: Buffer.from('{"price":0.1,"big":18446744073709551617}') });
  assert.deepEqual(await soon(called), { price: 0.1, big: 2n ** 64n + 1n });
  const [old, oldClient] = await pair(t, {}, { caps: [] });
  const refused = failed(oldClient.enqueue("q", { payload: { a: 0.5 } }), errors.CodecError);
  await old.accept();
  assert.match((await refused).message, /older release/);
});

test("a payload that no node accepts is not sent for ever", async (t) => {
  const [node, client] = await pair(t);
  const refused = failed(client.enqueue("q", { payload: "x".repeat(100_000) }), errors.ConnectionLost);
  for (let i = 0; i < 5; i++) {
    const connection = await node.accept();
    await connection.expect(T.ENQUEUE);
    connection.close();
  }
  assert.match((await refused).message, /too large/);
  const [small, smallClient] = await pair(t, {}, { maxFrame: 65536 });
  const tooLarge = failed(smallClient.enqueue("q", { payload: "x".repeat(70_000) }), errors.CodecError);
  await small.accept();
  assert.match((await tooLarge).message, /is too large.*accepts 65536/);
});

test("many jobs are enqueued with an answer each, within the node's limit", async (t) => {
  const [node, client] = await pair(t);
  const send = defineJob<{ n: number }>("send", { queue: "q" });
  const jobs: JobRequest[] = Array.from({ length: 1300 }, (_, n) => send.with({ n }, { key: `k${n}` }));
  jobs[7] = { queue: "q", payload: NaN, key: "wrong" };
  const answered = client.enqueueMany(jobs);
  const connection = await node.accept();
  const pending = [];
  for (let i = 0; i < 1000; i++) {
    pending.push(await connection.expect(T.ENQUEUE));
  }
  connection.refuse(pending.shift()!.rid, "DUPLICATE_JOB", { jid: "q:other" });
  for (let done = 1; done < 300; done++) {
    assert(connection.received - 2 - done <= 1010); // HELLO and REGISTER are answered, and perhaps some PINGs
    const message = pending.shift()!;
    connection.ok(message, { jid: message.fields["key"] });
    pending.push(await connection.expect(T.ENQUEUE));
  }
  pending.forEach((message) => connection.ok(message, { jid: message.fields["key"] }));
  const answers = await soon(answered);
  assert.equal(answers.length, 1300);
  assert(answers[0]!.error instanceof errors.DuplicateJob);
  assert(answers[7]!.error instanceof errors.CodecError);
  assert.deepEqual(answers.map(({ jid: id }) => id).filter((id) => id !== undefined), jobs.map(({ key }) => key).filter((_, n) => n !== 0 && n !== 7));
  assert.deepEqual(answers.map(({ key }) => key), jobs.map(({ key }) => key));
});

test("a result is awaited again after a lost connection", async (t) => {
  const [node, client] = await pair(t);
  const result = client.result(JID);
  let connection = await node.accept();
  await connection.answer(T.AWAIT, { pending: true });
  connection.close();
  connection = await node.accept();
  assert.equal((await connection.answer(T.AWAIT, { pending: true }))["jid"], JID);
  connection.push(T.JOBEND, { jid: JID, status: "completed", attempts: 1, result: { a: new Uint8Array([1]) }, error: null });
  assert.deepEqual(await soon(result), { a: new Uint8Array([1]) });
});

test("a JOBEND may come before the answer to the AWAIT", async (t) => {
  const [node, client] = await pair(t);
  const result = failed(client.result(JID), errors.JobFailed);
  const connection = await node.accept();
  const message = await connection.expect(T.AWAIT);
  connection.push(T.JOBEND, { jid: JID, status: "failed", attempts: 2, result: null, error: { message: "no", code: "X", details_json: Buffer.from('{"after":1.5}') } });
  connection.ok(message, { pending: true });
  const error = await result;
  assert.match(error.message, /after 2 attempts: no/);
  assert.deepEqual([error.jid, error.attempts, error.fault], [JID, 2, { message: "no", code: "X", details: { after: 1.5 } }]);
  const removed = failed(client.result(JID), errors.JobFailed);
  await connection.answer(T.AWAIT, { pending: true });
  connection.push(T.JOBEND, { jid: JID, status: "failed", attempts: 0, result: null, error: { type: "removed", message: "gone" } });
  assert.match((await removed).message, /was removed/);
});

test("an AWAIT is repeated if the job is unknown at first, or there are too many", async (t) => {
  const [node, client] = await pair(t);
  for (const [i, code] of ["JOB_NOT_FOUND", "RATE_LIMITED", "UNAVAILABLE"].entries()) {
    const result = client.result(jid(i));
    const connection = i === 0 ? await node.accept() : connected!;
    var connected: NodeConnection | undefined = connection;
    await connection.refuseNext(T.AWAIT, code);
    await connection.answer(T.AWAIT, { status: "completed", result: 5, runtime: { attempts_so_far: 1 } });
    assert.equal(await soon(result), 5);
  }
  const late = failed(client.result(JID, { deadline: new Date(Date.now() + 100) }), errors.DeadlineExceeded);
  const request = await connected!.answer(T.AWAIT, { pending: true });
  assert(Number(request["timeout_ms"]) <= 100);
  assert.match((await late).message, /has not ended/);
});

/** Answers the CONTENTs for a value, four bytes each; the last part has another version if that is given. */
async function sendParts(connection: NodeConnection, value: string, encoding: string, whole: Uint8Array, version = "v"): Promise<void> {
  for (let offset = 0; offset < whole.length; offset += 4) {
    const isLast = offset + 4 >= whole.length;
    const part = { size: whole.length, encoding, data: whole.subarray(offset, offset + 4), version: isLast ? version : "v" };
    assert.deepEqual(await connection.answer(T.CONTENT, part), { jid: JID, value, offset });
  }
}

test("values that do not fit into a frame are read in parts", async (t) => {
  const [node, client] = await pair(t);
  const result = client.result(JID);
  const connection = await node.accept();
  await connection.answer(T.AWAIT, { status: "completed", attempts: 1, result: null, omitted: ["payload", "result"] });
  await sendParts(connection, "result", "json", Buffer.from('{"a":[1.5,18446744073709551616]}'));
  assert.deepEqual(await soon(result), { a: [1.5, 2n ** 64n] });
  const payload = client.payload(JID);
  await sendParts(connection, "payload", "msgpack", encode([new Uint8Array([255]), "large"]));
  assert.deepEqual(await soon(payload), [new Uint8Array([255]), "large"]);
  const changed = failed(client.payload(JID), errors.CodecError);
  await sendParts(connection, "payload", "json", Buffer.from('"changed"'), "another");
  assert.match((await changed).message, /has changed/);
  const short = failed(client.payload(JID), errors.CodecError);
  await connection.answer(T.CONTENT, { size: 9, encoding: "json", version: "v", data: new Uint8Array(0) });
  assert.match((await short).message, /has 9 bytes/);
  const gone = failed(client.result(JID), errors.OverhopError);
  await connection.answer(T.AWAIT, { status: "completed", attempts: 1, result: null, result_gone: "result_evicted" });
  assert.match((await gone).message, /CONTENT_GONE: result_evicted/);
  const [old, oldClient] = await pair(t, {}, { caps: ["json"] });
  const unsupported = failed(oldClient.payload(JID), errors.NotSupported);
  await old.accept();
  assert.match((await unsupported).message, /capability "content"/);
});

test("jobs are shown, listed, changed and removed", async (t) => {
  const [node, client] = await pair(t);
  const shown = client.get<{ to: string }>(JID);
  const connection = await node.accept();
  await connection.answer(T.JOB, {
    uuid: "u", jid: JID, queue_name: "q", payload_json: Buffer.from('{"to":"ann"}'), status: "active", created_at: "2026-01-01T00:00:00.5Z",
    execution_start_at: "2026-01-01T00:00:01Z", max_attempts: null, retry_interval_ms: null, result: null, error: { message: "no" }, priority: 5,
    runtime: { attempts_so_far: 2, last_error: "no", lease_until: "2026-01-01T00:00:09Z", progress: { percent: 50, data_json: Buffer.from("0.5") } },
  });
  assert.deepEqual(await soon(shown), {
    jid: JID, queue: "q", status: "active", payload: { to: "ann" }, payloadGone: false, result: null, fault: { message: "no" }, attempts: 2, priority: 5,
    createdAt: new Date("2026-01-01T00:00:00.5Z"), dueAt: new Date("2026-01-01T00:00:01Z"), leaseUntil: new Date("2026-01-01T00:00:09Z"),
    progress: { percent: 50, data: 0.5 },
  });
  const unknown = client.get(JID);
  await connection.answer(T.JOB, {});
  assert.equal(await soon(unknown), undefined);

  const listed: string[] = [];
  const listing = (async () => {
    for await (const job of client.list("q", "failed", { pageSize: 6 })) {
      listed.push(job.jid);
    }
  })();
  assert.deepEqual(await connection.answer(T.LSJOB, { jobs: [1, 2, 3, 4, 5, 6].map((n) => ({ jid: jid(n) })) }), { q: "q", status: "failed", page: 1, page_size: 6 });
  await connection.refuseNext(T.LSJOB, "RESPONSE_TOO_LARGE");
  assert.deepEqual(await connection.refuseNext(T.LSJOB, "RESPONSE_TOO_LARGE"), { q: "q", status: "failed", page: 3, page_size: 3 });
  assert.deepEqual(await connection.answer(T.LSJOB, { jobs: [{ jid: jid(7) }] }), { q: "q", status: "failed", page: 7, page_size: 1 });
  await connection.answer(T.LSJOB, { jobs: [] });
  await soon(listing);
  assert.deepEqual(listed, [1, 2, 3, 4, 5, 6, 7].map(jid));

  const changes: Array<[Parameters<Client["setJob"]>[1], Fields]> = [
    [{ delay: 0 }, { delay_ms: 0 }], [{ delay: 86_400_000, priority: 9 }, { delay_ms: 86_400_000, priority: 9 }],
    [{ runAt: "2030-01-01T00:00:00Z" }, { scheduled_at: "2030-01-01T00:00:00Z" }], [{ priority: 0 }, { priority: 0 }],
  ];
  for (const [change, sent] of changes) {
    const changed = client.setJob(JID, change);
    assert.deepEqual(await connection.answer(T.SETJOB, { status: "delayed" }), { jid: JID, ...sent });
    assert.equal(await soon(changed), "delayed");
  }
  for (const [wrong, change] of [[/nothing to change/, {}], [/not both/, { runAt: new Date(), delay: 0 }], [/0 milliseconds/, { delay: NaN }], [/0 to 9/, { priority: 10 }]] as const) {
    await assert.rejects(client.setJob(JID, change), wrong);
  }
  const cancelled = client.cancel(JID, "not any more");
  assert.deepEqual(await connection.answer(T.CANCEL, { status: "active" }), { jid: JID, reason: "not any more" });
  assert.equal(await soon(cancelled), "active");
  const retried = client.retry(JID);
  await connection.answer(T.RETRYJOB, { status: "waiting" });
  assert.equal(await soon(retried), "waiting");
});

test("queues are added, changed, shown and removed", async (t) => {
  const [node, client] = await pair(t);
  const { queues } = client;
  const added = queues.add("q", { concurrencyLimit: 5 });
  const connection = await node.accept();
  assert.deepEqual(await connection.answer(T.ADDQUEUE, { qid: "x" }), { name: "q", config: { concurrency_limit: 5 } });
  await added;
  const again = queues.add("q", { ifMissing: true });
  await connection.refuseNext(T.ADDQUEUE, "DUPLICATE_QUEUE");
  await soon(again);
  for (const [config, sent] of [[{ concurrencyLimit: null }, { concurrency_limit: null }], [{ retryOnTimeout: false }, { retry_on_timeout: false }]] as const) {
    const set = queues.set("q", config);
    assert.deepEqual(await connection.answer(T.SETQUEUE), { q: "q", config: sent });
    await set;
  }
  const shown = queues.get("q");
  await connection.answer(T.QUEUE, { id: "i", name: "q", state: "paused", config: { concurrency_limit: 5 } });
  assert.deepEqual(await soon(shown), { id: "i", name: "q", state: "paused", concurrencyLimit: 5 });
  const missing = queues.get("q");
  await connection.answer(T.QUEUE, {});
  assert.equal(await soon(missing), undefined);
  const listed = queues.list();
  await connection.answer(T.LSQUEUE, { queues: [{ id: "i", name: "q", state: "running", config: { concurrency_limit: null } }] });
  assert.deepEqual(await soon(listed), [{ id: "i", name: "q", state: "running" }]);
  const stats = queues.stats("q");
  await connection.answer(T.QSTATS, { q: "q", stats: { new: 1 } });
  assert.deepEqual(await soon(stats), { new: 1 });
  assert.equal(await queues.clear("q", []), 0);
  const cleared = queues.clear("q", ["failed"]);
  assert.deepEqual(await connection.answer(T.CLRQUEUE, { removed: 3 }), { q: "q", statuses: ["failed"] });
  assert.equal(await soon(cleared), 3);
  const removed = queues.remove("q");
  assert.deepEqual(await connection.answer(T.RMQUEUE), { q: "q" });
  await removed;
  const obliterated = queues.remove("q", { jobs: true, force: true });
  assert.deepEqual(await connection.answer(T.OBLITERATE, { removed: 2 }), { q: "q", force: true });
  await obliterated;
});

test("a repeated request that was carried out before has succeeded", async (t) => {
  const calls: Array<[number, (client: Client, name: string) => Promise<unknown>, string, unknown]> = [
    [T.PAUSE, (client, q) => client.queues.pause(q), "QUEUE_ALREADY_PAUSED", undefined], [T.RMQUEUE, (client, q) => client.queues.remove(q), "QUEUE_NOT_FOUND", undefined],
    [T.CANCEL, (client, id) => client.cancel(id), "JOB_ALREADY_TERMINAL", "failed"], [T.RETRYJOB, (client, id) => client.retry(id), "JOB_NOT_ACTIVE", "waiting"],
  ];
  for (const [type, call, code, value] of calls) {
    const [node, client] = await pair(t);
    const called = call(client, "q");
    let connection = await node.accept();
    await connection.expect(type);
    connection.close();
    connection = await node.accept();
    await connection.refuseNext(type, code);
    assert.equal(await soon(called), value);
    const refused = failed(call(client, "q"), errors.OverhopError); // a first try throws the same code
    await connection.refuseNext(type, code);
    assert.equal((await refused).code, code);
  }
});

test("a draining node is left, and still answers what is pending", async (t) => {
  const [node, client] = await pair(t);
  const other = await FakeNode.start(t);
  const shown = client.get(JID);
  const connection = await node.accept();
  const message = await connection.expect(T.JOB);
  connection.push(T.DRAIN, { reason: "node stops", reconnect: [other.address] });
  connection.ok(message);
  assert.equal(await soon(shown), undefined);
  const status = client.status();
  await (await other.accept()).answer(T.STATUS, { application: {} });
  assert.deepEqual(await soon(status), { application: {} });
});

test("an unavailable node is left after three answers", async (t) => {
  const [node, client] = await pair(t);
  const called = client.status();
  const connection = await node.accept();
  for (let i = 0; i < 3; i++) {
    await connection.refuseNext(T.STATUS, "UNAVAILABLE", { retry_after_ms: 1 });
  }
  await connection.closed;
  await (await node.accept()).answer(T.STATUS, { here: true });
  assert.deepEqual(await soon(called), { here: true });
});

test("another node is tried, and a closed client throws", async (t) => {
  const dead = await FakeNode.start(t);
  await dead.close();
  const late = await failed(new Client({ nodes: dead.address, timeout: 200, log: quiet }).ping(), errors.DeadlineExceeded);
  assert.match(late.message, /ECONNREFUSED/);
  const [node, client] = await pair(t);
  const both = new Client({ nodes: [dead.address, node.address], timeout: PATIENCE, log: quiet });
  t.after(() => both.close());
  const pinged = both.ping();
  const connection = await node.accept();
  const message = await connection.read();
  connection.send(T.PONG, message.rid, { server_time: "2026-01-01T00:00:00Z" });
  assert.deepEqual(await soon(pinged), new Date("2026-01-01T00:00:00Z"));
  const stats = failed(client.queues.stats("q"), errors.ClosedError);
  await (await node.accept()).expect(T.QSTATS);
  client.close();
  await stats;
  await failed(client.queues.stats("q"), errors.ClosedError);
});

test("a closed client neither waits nor connects", async (t) => {
  const dead = await FakeNode.start(t);
  await dead.close();
  const failing = new Client({ nodes: dead.address, log: quiet });
  const pending = failed(failing.ping(), errors.ClosedError);
  await sleep(300); // some attempts have failed
  const began = performance.now();
  failing.close();
  await pending;
  assert(performance.now() - began < 100);
  const [proxied] = await pair(t);
  const proxy = await Proxy.start(t, proxied.address);
  proxy.freeze();
  const connecting = new Client({ nodes: proxy.address, log: quiet });
  const unanswered = failed(connecting.ping(), errors.ClosedError);
  await soon(new Promise<void>((resolve) => proxy.onNextConnection(resolve)));
  connecting.close();
  await unanswered;
});

test("a wrong token is refused at once", async (t) => {
  const [, client] = await pair(t, { token: "wrong" }, { token: "secret" });
  assert.equal((await failed(client.ping(), errors.OverhopError)).code, "UNAUTHORIZED");
});

test("operations of the API", async (t) => {
  const [node, client] = await pair(t);
  const json = (value: unknown) => ({ reply_json: Buffer.from(JSON.stringify(value)) });
  const request = (fields: Fields) => [fields["op"], JSON.parse(Buffer.from(fields["request_json"] as Uint8Array).toString())];
  const explained = client.api<{ verdict: string }>("job.explain", { id: JID });
  const connection = await node.accept();
  assert.deepEqual(request(await connection.answer(T.API, json({ verdict: "It waits" }))), ["job.explain", { id: JID }]);
  assert.equal((await soon(explained)).verdict, "It waits");
  const refused = failed(client.api("job.show", { id: "x" }), errors.ApiError);
  await connection.refuseNext(T.API, "API_ERROR", { status: 404, data_json: Buffer.from('{"id":"x"}') });
  const error = await refused;
  assert.deepEqual([error.status, error.data, error.message], [404, { id: "x" }, "API_ERROR: job.show: no"]);

  const letters: number[] = [];
  const listed = (async () => {
    for await (const { letter } of client.deadLetters.list({ queue: "q" })) {
      letters.push(letter);
    }
  })();
  assert.deepEqual(request(await connection.answer(T.API, json({ letters: [{ letter: 4 }], next: 5, until: 9 }))), ["dlq.list", { queue: "q" }]);
  assert.deepEqual(request(await connection.answer(T.API, json({ letters: [{ letter: 9 }], until: 9 }))), ["dlq.list", { queue: "q", from: 5, until: 9 }]);
  await soon(listed);
  assert.deepEqual(letters, [4, 9]);
  const counted = client.deadLetters.stats();
  await connection.answer(T.API, json({ count: 2, oldest: "2026-11-28T03:00:00.5Z", newest: "2026-11-28T04:00:00Z", queues: { q: 2 }, functions: { "": 2 }, errors: {}, next: 3, until: 4 }));
  await connection.answer(T.API, json({ count: 1, oldest: "2026-11-28T01:00:00Z", newest: "2026-11-28T03:00:00Z", queues: { q: 1 }, functions: {}, errors: { e: 1 }, until: 4 }));
  assert.deepEqual(await soon(counted), { count: 3, oldest: "2026-11-28T01:00:00Z", newest: "2026-11-28T04:00:00Z", queues: { q: 3 }, functions: { "": 2 }, errors: { e: 1 } });
  const requeued = failed(client.deadLetters.requeue({ all: true }), errors.ApiError);
  await connection.answer(T.API, json({ items: [{ letter: 4, result: "retried" }], until: 9, stopped: "no authority" }));
  assert.match((await requeued).message, /stopped after 1 dead letters: no authority/);

  const ran = client.cron.run("nightly");
  connection.refuse((await connection.expect(T.API)).rid, "UNAVAILABLE", { retry_after_ms: 50 });
  const [, { new_id: key }] = request(await connection.answer(T.API, json({ id: "u" })));
  assert.match(key, /^auto-/);
  assert.equal(await soon(ran), "u");
  const names = (async () => {
    const found: string[] = [];
    for await (const { name } of client.cron.list()) {
      found.push(name);
    }
    return found;
  })();
  await connection.answer(T.API, json({ entries: [{ name: "a" }], more: true }));
  assert.deepEqual(request(await connection.answer(T.API, json({ entries: [{ name: "b" }], more: false }))), ["cron.list", { after: "a" }]);
  assert.deepEqual(await soon(names), ["a", "b"]);

  const [old, oldClient] = await pair(t, {}, { caps: ["json", "content"] });
  const unsupported = failed(oldClient.cron.get("a"), errors.NotSupported);
  await old.accept();
  assert.match((await unsupported).message, /capability "api"/);
});

test("invalid bytes end the connection, and the call is repeated", async (t) => {
  for (const hex of ["00000000", "ffffffff", "00000001c1", Buffer.from("HTTP/1.1 400 Bad Request\r\n\r\n").toString("hex")]) {
    const [node, client] = await pair(t);
    const status = client.status();
    let connection = await node.accept();
    await connection.expect(T.STATUS);
    connection.socket.write(Buffer.from(hex, "hex"));
    await connection.closed;
    connection = await node.accept();
    await connection.answer(T.STATUS, { ok: true });
    assert.deepEqual(await soon(status), { ok: true });
  }
});
