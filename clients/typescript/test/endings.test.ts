/** What handlers return and throw, and every way in which they, and their processes, may end. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { test } from "node:test";
import { PermanentError, Snooze } from "../src/errors.js";
import { Job } from "../src/job.js";
import { Fields, T } from "../src/protocol.js";
import { Worker } from "../src/worker.js";
import { FakeNode, NodeConnection, PATIENCE, SID, soon } from "./fakenode.js";

const BEAT = { beat_ms: 60_000 };

function itself(): Fields {
  const value: Fields = {};
  value["self"] = value;
  return value;
}

/** An object each of whose uses throws a value. */
function hostile(thrown: unknown): object {
  const raise = () => { throw thrown; };
  return new Proxy({}, { get: raise, has: raise, ownKeys: raise, getPrototypeOf: raise, getOwnPropertyDescriptor: raise });
}

function revoked(): object {
  const { proxy, revoke } = Proxy.revocable({}, {});
  revoke();
  return proxy;
}

function throws(value: unknown): () => never {
  return () => { throw value; };
}

function withProperty(name: string, get: () => unknown): Error {
  return Object.defineProperty(new TypeError("told"), name, { get });
}

/** What a handler does, and the type and a part of the message of its job's error. */
const CASES: Array<[() => unknown, string, string]> = [
  [throws(undefined), "non_error", "the handler has thrown undefined"],
  [throws(null), "non_error", "the handler has thrown null"],
  [throws(Symbol("s")), "non_error", "the handler has thrown Symbol(s)"],
  [throws(5n), "non_error", "the handler has thrown 5"],
  [throws({ status: 500, text: "down" }), "non_error", 'the handler has thrown a Object {"status":500,"text":"down"}'],
  [throws({ toJSON: throws(1) }), "non_error", "the handler has thrown a Object"],
  [throws(Object.create(null)), "non_error", "the handler has thrown an object {}"],
  [throws(itself()), "non_error", "the handler has thrown a Object"],
  [throws(hostile(1)), "unreadable_error", "the handler has thrown an object that cannot be read, which cannot be read: 1"],
  [throws(hostile(hostile(1))), "unreadable_error", "an object that cannot be read"],
  [throws(revoked()), "unreadable_error", "Cannot perform 'getPrototypeOf' on a proxy that has been revoked"],
  [throws(withProperty("message", throws(undefined))), "unreadable_error", "the handler has thrown an object that cannot be read"],
  [throws(withProperty("message", () => ({}))), "TypeError", "a TypeError {}"],
  [throws(withProperty("stack", throws(1))), "unreadable_error", "the handler has thrown told, which cannot be read: 1"],
  [throws(withProperty("name", () => Symbol("n"))), "unreadable_error", "the handler has thrown told, which cannot be read"],
  [throws(withProperty("code", throws(new Error("no code")))), "unreadable_error", "told, which cannot be read: no code"],
  [throws(withProperty("cause", () => itself())), "TypeError", "told"],
  [throws(new Error("x".repeat(9 << 20))), "Error", "xxx"],
  [throws(new Error("\ud800\0")), "Error", "\ufffd\0"],
  [throws(new PermanentError("p", { details: hostile(1) })), "PermanentError", "p"],
  [throws(new PermanentError("p", { details: itself() })), "PermanentError", "p"],
  [throws(new PermanentError("p", { code: hostile(1) as unknown as string })), "unreadable_error", "the handler has thrown p, which cannot be read: 1"],
  [throws(Object.assign(new Snooze(1), { message: hostile(1) })), "snooze", "a Snooze"],
  [() => Promise.reject(), "non_error", "the handler has thrown undefined"],
  [() => ({ then: throws(new Error("then")) }), "Error", "then"],
  [() => ({ then: (_: unknown, reject: (err: unknown) => void) => reject(null) }), "non_error", "the handler has thrown null"],
  [() => itself(), "invalid_result", "result: value is nested too deep: at most 120"],
  [() => NaN, "invalid_result", "result: JSON has no NaN"],
  [() => ({ a: Infinity }), "invalid_result", "result: JSON has no Infinity"],
  [() => "\ud800", "invalid_result", "result: text is not valid Unicode"],
  [() => ({ "\ud800": 1 }), "invalid_result", "result: text is not valid Unicode"],
  [() => new Map(), "invalid_result", "result: Overhop does not carry a Map"],
  [() => Symbol("s"), "invalid_result", "result: Overhop does not carry a symbol"],
  [() => () => 1, "invalid_result", "result: Overhop does not carry a function"],
  [() => new Date(NaN), "invalid_result", "result: Overhop does not carry a Date"],
  [() => ({ get a() { throw undefined; } }), "invalid_result", "result: undefined"],
  [() => ({ get a() { throw new Error("no a"); } }), "invalid_result", "result: no a"],
  [() => [1, hostile(new Error("no item"))], "invalid_result", "result: no item"],
  [() => [1.5, new Uint8Array(1)], "invalid_result", "result: a value with fractions"],
  [() => "x".repeat(9 << 20), "invalid_result", "result: "],
];

async function subscribe(node: FakeNode): Promise<NodeConnection> {
  const connection = await node.accept();
  await connection.answer(T.SUBSCRIBE, { sid: SID });
  return connection;
}

test("whatever a handler does, its job fails with a message that says what was wrong, and the next one runs", async (t) => {
  const node = await FakeNode.start(t);
  const warn = () => { throw new Error("no log"); };
  const worker = new Worker({ nodes: [node.address], log: { warn, info: async () => warn() }, grace: 50 }, { goodbye: 50, cancel: 50 });
  worker.use((_, next) => next());
  worker.handle("q", (job: Job<number>) => (job.payload === 1000 ? "good" : CASES[job.payload]![0]()));
  const ended = worker.run();
  t.after(() => soon(worker.stop().then(() => ended), "the worker's end"));
  const connection = await subscribe(node);
  for (const [n, [, type, message]] of CASES.entries()) {
    connection.quest(n, BEAT);
    await connection.answer(T.ACK);
    const error = (await connection.answer(T.FAIL))["error"] as { type: string; message: string };
    assert.equal(error.type, type, `case ${n}: ${error.message.slice(0, 200)}`);
    assert.ok(error.message.includes(message), `case ${n}: ${error.message.slice(0, 200)}`);
    connection.quest(1000, BEAT);
    await connection.answer(T.ACK);
    assert.equal((await connection.answer(T.DONE))["result"], "good");
  }
});

test("an array that grows while it is read is sent as it began", async (t) => {
  const node = await FakeNode.start(t);
  const worker = new Worker({ nodes: [node.address], log: {}, grace: 50 }, { goodbye: 50, cancel: 50 });
  worker.handle("q", () => {
    const items: unknown[] = [1];
    Object.defineProperty(items, 0, { get: () => items.push(2) && 1, enumerable: true });
    return items;
  });
  const ended = worker.run();
  t.after(() => soon(worker.stop().then(() => ended), "the worker's end"));
  const connection = await subscribe(node);
  connection.quest(1, BEAT);
  await connection.answer(T.ACK);
  assert.deepEqual((await connection.answer(T.DONE))["result"], [1]);
});

test("a promise that never settles keeps its slot only, and the job goes back when the worker stops", async (t) => {
  const node = await FakeNode.start(t);
  const worker = new Worker({ nodes: [node.address], log: {}, grace: 10, concurrency: 2 }, { goodbye: 50, cancel: 10 });
  worker.handle("q", (job: Job<number>) => (job.payload === 1 ? new Promise(() => undefined) : job.payload));
  const ended = worker.run();
  const connection = await subscribe(node);
  connection.quest(1, BEAT);
  await connection.answer(T.ACK);
  connection.quest(2, BEAT);
  await connection.answer(T.ACK);
  assert.equal((await connection.answer(T.DONE))["result"], 2);
  const stopped = worker.stop();
  assert.equal((await connection.answer(T.GOODBYE))["drain"], true);
  assert.equal((await connection.answer(T.GOODBYE))["drain"], false);
  await soon(stopped, "the worker's end");
  await ended;
});

test("what is no function is no handler and no middleware", () => {
  const worker = new Worker({ nodes: ["127.0.0.1:1"] });
  assert.throws(() => worker.handle("q", undefined as unknown as () => void), /the handler of queue "q" is undefined, must be a function/);
  assert.throws(() => worker.use(5 as unknown as () => void), /the middleware is a number, must be a function/);
});

for (const [name, code, statement] of [
  ["process.exit()", 3, "process.exit(3)"],
  ["a promise that nobody awaits", 1, "void Promise.reject(new Error('lost')); return new Promise(() => undefined)"],
  ["an exception of a callback", 1, "setTimeout(() => { throw new Error('lost') }); return new Promise(() => undefined)"],
] as const) {
  test(`${name} ends the process, and the node sees it at once`, async (t) => {
    const node = await FakeNode.start(t);
    const program = `
      const { Worker } = await import(${JSON.stringify(import.meta.url.replace(/test\/[^/]*$/, "src/index.js"))});
      const worker = new Worker({ nodes: [${JSON.stringify(node.address)}] });
      worker.handle("q", async () => { ${statement} });
      await worker.run();`;
    const child = spawn(process.execPath, ["--input-type=module", "-e", program], { stdio: ["ignore", "ignore", "ignore"] });
    t.after(() => { child.kill("SIGKILL"); });
    const ended = new Promise<void>((resolve) => child.once("exit", () => resolve()));
    const connection = await subscribe(node);
    connection.quest(1, BEAT);
    await connection.answer(T.ACK);
    await soon(connection.closed, "the end of the connection", PATIENCE);
    await soon(ended, "the end of the process");
    assert.equal(child.exitCode, code);
  });
}
