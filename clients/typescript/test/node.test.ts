/** Client and Worker with real nodes, which are killed, cut off and asked for the impossible. */

import assert from "node:assert/strict";
import { rmSync } from "node:fs";
import { after, before, test, TestContext } from "node:test";
import { Client, ClientOptions } from "../src/client.js";
import { defineJob } from "../src/enqueue.js";
import { ApiError, CodecError, DeadlineExceeded, InvalidJob, InvalidQuery, JobFailed, JobStopped, NotSupported, OverhopError, TLSError, PermanentError, RetryAfter, Snooze } from "../src/errors.js";
import { Job } from "../src/job.js";
import { FindOptions, FoundJob, OperationStart } from "../src/operations.js";
import { sleep } from "../src/wait.js";
import { Worker, WorkerOptions } from "../src/worker.js";
import { makeCertificate } from "./certificate.js";
import { Gate, PATIENCE, soon } from "./fakenode.js";
import { Proxy } from "./proxy.js";
import { skip, Yard, YardNode } from "./yard.js";

const log = {};
let yard: Yard; // of three nodes

before(async () => {
  if (!skip) {
    yard = await Yard.start(3, '[scheduler]\nretry_base = "50ms"\nretry_max = "500ms"\n');
  }
});
after(() => yard?.stop());

function newClient(t: TestContext, options: ClientOptions = {}): Client {
  const client = new Client({ nodes: yard.addresses, log, ...options });
  t.after(() => client.close());
  return client;
}

function newWorker(t: TestContext, options: WorkerOptions = {}): { worker: Worker; run: () => Promise<unknown> } {
  const worker = new Worker({ nodes: yard.addresses, log, createQueues: true, grace: 100, ...options }, { cancel: 300 });
  t.after(() => worker.stop());
  return { worker, run: () => worker.run().then(() => undefined, (err: unknown) => err) };
}

/** Waits until a fact holds. */
async function until(what: string, holds: () => boolean | Promise<boolean>): Promise<void> {
  for (const end = Date.now() + 4 * PATIENCE; Date.now() < end; await sleep(20)) {
    if (await holds()) {
      return;
    }
  }
  assert.fail(`${what} does not hold in time`);
}

test("jobs go to a worker, and their ends come back", { skip }, async (t) => {
  const client = newClient(t);
  const { worker, run } = newWorker(t, { concurrency: 4 });
  const divide = defineJob<{ by: number; data?: Uint8Array }, { half: number; big: bigint; attempt: number }>("divide", { queue: "basic", maxAttempts: 3 });
  worker.handle(divide, async (job) => {
    job.progress(50, { by: job.payload.by });
    job.log("dividing");
    if (job.payload.by === 0) {
      throw new PermanentError("by zero", { code: "ZERO", details: { by: 0.5 } });
    }
    if (job.attempt === 1) {
      throw new RetryAfter(10, "not the first time");
    }
    return { half: 1 / job.payload.by, big: 2n ** 62n, attempt: job.attempt };
  });
  void run();
  await until("the queue exists", async () => (await client.queues.get("basic")) !== undefined);
  assert.deepEqual(await soon(client.call(divide, { by: 4 }, { key: "quarter", trace: { a: "b" } })), { half: 0.25, big: 2n ** 62n, attempt: 2 });
  const again = await client.enqueue(divide, { by: 4 }, { key: "quarter" });
  const record = await client.get(again);
  assert.deepEqual([record?.status, record?.attempts, record?.key, record?.payload, record?.fn], ["completed", 2, "quarter", { by: 4 }, "divide"]);
  const failed = await client.call(divide, { by: 0 }).catch((err: unknown) => err);
  assert(failed instanceof JobFailed);
  assert.deepEqual([failed.fault, failed.attempts], [{ message: "by zero", type: "PermanentError", code: "ZERO", details: { by: 0.5 } }, 1]);
  const letters: string[] = [];
  for await (const job of client.list("basic", "failed", { pageSize: 1 })) {
    letters.push(job.jid);
  }
  assert.deepEqual(letters, [failed.jid]);
  assert.equal((await client.queues.stats("basic")).completed, 1);
  await client.queues.add("removed");
  await client.enqueue("removed");
  await client.queues.remove("removed", { jobs: true });
  assert.equal(await client.queues.get("removed"), undefined);
  const later = await client.enqueue("basic", { fn: "divide", payload: { by: 2 }, delay: 3_600_000, priority: 1 });
  assert.equal(await client.setJob(later, { priority: 9, delay: 7_200_000 }), "delayed");
  assert.equal(await client.cancel(later, "not any more"), "failed");
  assert.equal(await client.retry(later), "waiting");
  assert.deepEqual(await soon(client.result(later)), { half: 0.5, big: 2n ** 62n, attempt: 2 });
  await client.remove(later);
  await until("the job is gone", async () => (await client.get(later)) === undefined);
});

test("binary payloads and results keep their bytes", { skip }, async (t) => {
  const client = newClient(t);
  const { worker, run } = newWorker(t);
  worker.handle<Uint8Array>("bytes", (job) => [job.payload, job.payload.length]);
  void run();
  await until("the queue exists", async () => (await client.queues.get("bytes")) !== undefined);
  const payload = new Uint8Array(100_000).map((_, i) => i);
  assert.deepEqual(await soon(client.call("bytes", { payload })), [payload, payload.length]);
});

test("what is too large or unknown is refused", { skip }, async (t) => {
  const client = newClient(t);
  await assert.rejects(newClient(t, { createQueues: false }).enqueue("no-such-queue"), (err: OverhopError) => err.code === "QUEUE_NOT_FOUND");
  await client.enqueue("made-for-a-job");
  assert.equal((await client.queues.get("made-for-a-job"))?.state, "running");
  const { worker, run } = newWorker(t, { createQueues: false });
  worker.handle("no-such-queue", () => 1);
  assert.equal(((await soon(run())) as OverhopError).code, "QUEUE_NOT_FOUND");
  await client.queues.add("large", { ifMissing: true });
  await client.queues.add("large", { ifMissing: true });
  await assert.rejects(client.enqueue("large", { payload: "x".repeat(9 << 20) }), CodecError);
  await assert.rejects(client.enqueue("large", { runAt: "9999-01-01T00:00:00Z" }), InvalidJob);
  const large = newWorker(t);
  large.worker.handle<{ size: number }>("large", (job) => "x".repeat(job.payload.size));
  void large.run();
  assert.equal((await soon(client.call<string>("large", { payload: { size: 7 << 20 } }))).length, 7 << 20);
  const failed = await soon(client.call("large", { payload: { size: 9 << 20 } }).catch((err: unknown) => err));
  assert(failed instanceof JobFailed);
  assert.match(failed.fault.message, /too large/);
});

test("ten thousand jobs in one call", { skip }, async (t) => {
  const client = newClient(t);
  await client.queues.add("batch", { ifMissing: true });
  const began = Date.now();
  const answers = await client.enqueueMany(Array.from({ length: 10_000 }, (_, n) => ({ queue: "batch", key: `k${n}`, payload: { n } })));
  t.diagnostic(`${Date.now() - began} ms`);
  assert.deepEqual(answers.filter((answer) => answer.error), []);
  assert.equal(new Set(answers.map(({ jid }) => jid)).size, 10_000);
  await until("all are waiting", async () => {
    const { waiting, new: fresh } = await client.queues.stats("batch");
    return waiting + fresh === 10_000;
  });
});

test("a handler that ignores its signal does not keep the worker", { skip }, async (t) => {
  const client = newClient(t);
  const { worker, run } = newWorker(t, { grace: 100 });
  const [begun, stopped, never] = [new Gate(), new Gate<[string, string | undefined]>(), new Gate()];
  worker.handle("stubborn", async (job) => {
    job.signal.addEventListener("abort", () => {
      const { reason, why } = job.signal.reason as JobStopped;
      stopped.open([reason, why]);
    });
    begun.open();
    await never.opened;
  }, { concurrency: 2 });
  const ended = run();
  await until("the queue exists", async () => (await client.queues.get("stubborn")) !== undefined);
  const jid = await client.enqueue("stubborn");
  await soon(begun.opened);
  assert.equal(await client.cancel(jid, "not any more"), "active");
  assert.deepEqual(await soon(stopped.opened), ["cancel", "not any more"]);
  const failed = await soon(client.result(jid).catch((err: unknown) => err));
  assert(failed instanceof JobFailed);
  assert.equal(failed.fault.type, "cancelled");
  await client.enqueue("stubborn");
  await until("the second one runs", async () => (await client.queues.stats("stubborn")).active === 1);
  const began = Date.now();
  void worker.stop();
  assert.equal(await soon(ended), undefined);
  assert(Date.now() - began < 5000);
  await until("it is given back", async () => (await client.queues.stats("stubborn")).waiting === 1);
  never.open();
});

test("a job continues at another node when its own cannot be reached", { skip }, async (t) => {
  const [first, second] = yard.nodes as [YardNode, YardNode];
  const proxy = await Proxy.start(t, first.address);
  const client = newClient(t, { nodes: second.address });
  const [begun, finish] = [new Gate(), new Gate()];
  let ran = 0;
  const handler = async (job: Job) => {
    ran++;
    begun.open();
    await finish.opened;
    job.signal.throwIfAborted();
    return job.attempt;
  };
  await client.queues.add("cut-off");
  for (let isAtFirst = false; !isAtFirst; ) { // nodes are tried in a random order
    const { worker, run } = newWorker(t, { nodes: [proxy.address, second.address] });
    worker.handle("cut-off", handler);
    void run();
    await until("the worker is connected", () => worker.node !== undefined);
    isAtFirst = worker.node === proxy.address;
    if (!isAtFirst) {
      await worker.stop();
    }
  }
  const jid = await client.enqueue("cut-off");
  await soon(begun.opened);
  const began = Date.now();
  proxy.freeze();
  await until("the job has moved", async () => (await client.get(jid))?.node === second.name);
  t.diagnostic(`moved ${Date.now() - began} ms after the cut`);
  finish.open();
  assert.equal(await soon(client.result(jid)), 1);
  assert.equal(ran, 1);
});

test("operations of the API, and snoozing, where the node has them", { skip }, async (t) => {
  const client = newClient(t);
  const { worker, run } = newWorker(t);
  let snoozes = 0;
  worker.handle<{ fail?: boolean }>("nightly", (job) => {
    if (job.payload.fail) {
      throw new PermanentError("asked to");
    }
    if (snoozes++ === 0) {
      throw new Snooze(50, "not yet");
    }
    return job.attempt;
  }, { fn: "build" });
  void run();
  await until("the queue exists", async () => (await client.queues.get("nightly")) !== undefined);
  const attempt = await soon(client.call<number>("nightly", { fn: "build", payload: {} }));
  let status: { yard?: string };
  try {
    status = await client.api<{ yard?: string }>("status");
  } catch (err) {
    assert(err instanceof NotSupported, String(err));
    assert.equal(attempt, 2); // the node counted the attempt
    t.diagnostic("the node has no API over Overhop");
    return;
  }
  assert.equal(attempt, 1);
  assert(typeof status === "object");
  const limit = await client.limits.set("api", { total: 20, per_key: 2, rate: "100/s", open_after: 3, within_ms: 30_000 });
  assert.deepEqual([limit.total, limit.per_key, limit.rate, limit.within_ms], [20, 2, "100/s", 30_000]);
  await client.limits.configureQueue("nightly", { limits: ["api"], key: "params.customer", key_optional: true, fair: true });
  for (const _ of [1, 2]) {
    await client.limits.pause("api");
  }
  for await (const { name, paused } of client.limits.list()) {
    assert.deepEqual([name, paused], ["api", true]);
  }
  await client.limits.resume("api");
  await assert.rejects(client.limits.remove("api"), (err: unknown) => err instanceof ApiError && err.status === 409);
  assert.equal((await client.limits.get("api")).queues[0]?.queue, "nightly");
  await client.limits.remove("api", { force: true });
  await client.cron.add("every-night", { schedule: "0 0 3 * * *", time_zone: "Europe/Berlin", queue: "nightly", job: { function: "build", params: { fail: true } } });
  const names: string[] = [];
  for await (const { name } of client.cron.list()) {
    names.push(name);
  }
  assert.deepEqual(names, ["every-night"]);
  assert.equal((await client.cron.pause("every-night")).state, "paused");
  assert.equal((await client.cron.resume("every-night")).state, "running");
  const { ticks } = await client.cron.get("every-night", { next: 20 });
  assert.deepEqual(new Set(ticks.map(({ local }) => local.slice(11, 19))), new Set(["03:00:00"]));
  assert.equal(ticks.length, 20);
  const id = await client.cron.run("every-night");
  await assert.rejects(soon(client.result(`nightly:${id}`)), JobFailed);
  await until("it is a dead letter", async () => (await client.deadLetters.stats({ queue: "nightly" })).count === 1);
  for await (const { letter, reason } of client.deadLetters.list({ queue: "nightly" })) {
    assert.equal((await client.deadLetters.get(letter)).letter, letter);
    assert.notEqual(reason, "");
  }
  const [result] = await client.deadLetters.requeue({ queue: "nightly" });
  assert.equal(result?.result, "retried");
  // A node may still show the first letter for a moment, and not yet the second.
  await until("its second dead letter is removed", async () => (await client.deadLetters.remove({ queue: "nightly" })).some(({ letter }) => letter > (result?.letter ?? 0)));
  await client.cron.remove("every-night");
  await assert.rejects(client.cron.get("every-night"), { name: "ApiError", status: 404 });
});

test("jobs that failed are found, and run again with other params", { skip }, async (t) => {
  const client = newClient(t);
  const { worker, run } = newWorker(t);
  worker.handle<{ timeout: number }>("orders", (job) => {
    if (job.payload.timeout < 30) {
      throw new PermanentError("too slow", { code: "TIMEOUT" });
    }
    return job.payload.timeout;
  });
  void run();
  const jids: string[] = [];
  for (const timeout of [1, 2, 3, 30]) {
    jids.push(await client.enqueue("orders", { payload: { timeout }, meta: { customer: "acme" } }));
  }
  assert.equal(await soon(client.result(jids[3]!)), 30);
  const query = "queue:orders customer:acme error:TIMEOUT";
  const find = async (text: string, options?: FindOptions) => {
    const found: FoundJob[] = [];
    for await (const job of client.find(text, options)) {
      found.push(job);
    }
    return found;
  };
  await until("the failed jobs are found", async () => (await find(query)).length === 3);
  const found = await find(query, { sort: "created", pageSize: 1 });
  assert.deepEqual(found.map(({ jid, state, meta }) => [jid, state, meta]), jids.slice(0, 3).map((jid) => [jid, "failed", { customer: "acme" }]));
  await until("the dead letters are published", async () => (await client.deadLetters.stats({ queue: "orders" })).count === 3);
  const start: OperationStart = { action: "requeue", query, params: { timeout: 40 }, rate: 1, key: "ship again" };
  const preview = await client.operations.preview(start);
  assert.deepEqual([preview.matched, preview.applicable, preview.states], [3, 3, { failed: 3 }]);
  assert.deepEqual(preview.sample.map(({ params }) => params), [{ timeout: 40 }, { timeout: 40 }, { timeout: 40 }]);
  const { id } = await client.operations.start(start);
  assert.equal((await client.operations.start(start)).id, id);
  assert.equal((await client.operations.pause(id)).state, "paused");
  await assert.rejects(client.operations.wait(id, { deadline: new Date(Date.now() + 10) }), DeadlineExceeded);
  assert.equal((await client.operations.setRate(id, 0)).rate, 0);
  assert.equal((await client.operations.resume(id)).state, "running");
  const done = await soon(client.operations.wait(id));
  assert.deepEqual([done.state, done.changed, done.matched, done.expected], ["done", 3, 3, 3]);
  const listed: number[] = [];
  for await (const operation of client.operations.list()) {
    listed.push(operation.id);
  }
  assert.deepEqual(listed, [id]);
  await until("the new jobs have ended", async () => (await find("queue:orders state:completed")).length === 4);
  await assert.rejects(client.operations.cancel(id), (err: unknown) => err instanceof ApiError && err.status === 409);
});

test("the error of a query has the part that is wrong", { skip }, async (t) => {
  const client = newClient(t);
  const query = "text:«größe» stat:failed";
  const start: OperationStart = { action: "retry", query };
  for (const call of [() => client.find(query).next(), () => client.operations.preview(start), () => client.operations.start(start)]) {
    await assert.rejects(call, (err: unknown) => err instanceof InvalidQuery && err.status === 400 && err.partOf(query) === "stat" && /state/.test(err.data.advice));
  }
  await assert.rejects(client.operations.start({ action: "cancel", query: "" }), (err: unknown) => err instanceof ApiError && !(err instanceof InvalidQuery));
});

test("a killed node loses no job of a producer, and interrupts none of a worker", { skip }, async (t) => {
  const { worker, run } = newWorker(t, { concurrency: 10 });
  const [begun, finish] = [new Gate(), new Gate()];
  const long: Array<[number, number, boolean]> = [];
  worker.handle<{ n: number }>("killed", (job) => job.payload.n);
  worker.handle("killed-long", async (job) => {
    begun.open();
    await finish.opened;
    long.push([job.attempt, job.fence, job.signal.aborted]);
    return "kept";
  });
  void run();
  await until("the worker is connected", () => worker.node !== undefined);
  let client = newClient(t);
  await until("the client is at the worker's node", async () => {
    await client.ping();
    if (client.node !== worker.node) {
      client = newClient(t);
    }
    return client.node === worker.node;
  });
  await until("the queues exist", async () => (await client.queues.get("killed")) !== undefined && (await client.queues.get("killed-long")) !== undefined);
  const longJob = await client.enqueue("killed-long");
  await soon(begun.opened);
  const victim = yard.nodes.find(({ address }) => address === worker.node)!;
  const accepted: Array<Promise<string>> = [];
  for (let n = 0; n < 400; n++) {
    accepted.push(client.enqueue("killed", { payload: { n } }));
    if (n === 200) {
      await accepted[100];
      await victim.kill();
    }
    await sleep(2);
  }
  const jids = await soon(Promise.all(accepted), "the acceptance of all jobs");
  assert.equal(new Set(jids).size, 400);
  const results = await soon(Promise.all(jids.map((jid) => client.result<number>(jid))), "the end of all jobs", 4 * PATIENCE);
  assert.deepEqual(results, Array.from({ length: 400 }, (_, n) => n));
  await until("the worker is at another node", () => worker.node !== undefined && worker.node !== victim.address);
  finish.open();
  assert.equal(await soon(client.result(longJob)), "kept");
  assert.deepEqual(long.map(([attempt, , aborted]) => [attempt, aborted]), [[1, false]]);
  assert.deepEqual({ ...(await client.queues.stats("killed")) }, { new: 0, waiting: 0, delayed: 0, active: 0, completed: 400, failed: 0 });
});

const certificate = skip ? undefined : makeCertificate();
after(() => certificate && rmSync(certificate.directory, { recursive: true }));

test("TLS and the token are required", { skip: skip || (certificate === undefined && "openssl is needed to make a certificate") }, async (t) => {
  const { cert, certFile, keyFile } = certificate!;
  const secured = await Yard.start(1, `token = "secret"\n[server.tls]\ncert_file = "${certFile}"\nkey_file = "${keyFile}"\n`);
  t.after(() => secured.stop());
  const nodes = secured.addresses;
  const refusal = (options: ClientOptions) => newClient(t, { nodes, ...options }).ping().then(() => undefined, (err: unknown) => err);
  const [plain, unknown, wrong, none] = await Promise.all([
    refusal({ token: "secret" }), refusal({ token: "secret", tls: true }), refusal({ token: "wrong", tls: { ca: cert } }), refusal({ tls: { ca: cert } }),
  ]);
  assert(plain instanceof TLSError);
  assert.match(plain.message, /its port requires TLS/);
  assert(unknown instanceof TLSError);
  assert.match(unknown.message, /not accepted: self-signed/);
  assert.equal((wrong as OverhopError).code, "UNAUTHORIZED");
  assert.equal((none as OverhopError).code, "UNAUTHORIZED");
  const client = newClient(t, { nodes, token: "secret", tls: { ca: cert } });
  await client.queues.add("secured");
  const { worker, run } = newWorker(t, { nodes, token: "secret", tls: { ca: cert } });
  worker.handle("secured", () => "safe");
  void run();
  assert.equal(await soon(client.call("secured")), "safe");
  const denied = newWorker(t, { nodes, token: "wrong", tls: { ca: cert } });
  denied.worker.handle("secured", () => 1);
  assert.equal(((await soon(denied.run())) as OverhopError).code, "UNAUTHORIZED");
});
