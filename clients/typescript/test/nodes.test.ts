import assert from "node:assert/strict";
import { test } from "node:test";
import { timeText } from "../src/checks.js";
import { startOf } from "../src/enqueue.js";
import { NodeRotation, parseAddress, parseNodes } from "../src/nodes.js";
import { timeOf } from "../src/protocol.js";
import { sleep, Wait, Window } from "../src/wait.js";

test("addresses", () => {
  const cases: Array<[string, string, number]> = [
    ["n1:1", "n1", 1], ["n1", "n1", 9876], ["[::1]:7", "::1", 7], ["[::1]", "::1", 9876], ["::1", "::1", 9876], [":5", "127.0.0.1", 5],
  ];
  for (const [text, host, port] of cases) {
    assert.deepEqual(parseAddress(text), { host, port });
  }
  assert.deepEqual(parseNodes("a:1, b:2,"), ["a:1", "b:2"]);
  assert.deepEqual(parseNodes(undefined), [process.env["OVERHOP_NODES"] ?? "127.0.0.1:9876"]);
  for (const bad of ["n1:0", "n1:99999", "n1:x", ",", "a:1:2"]) {
    assert.throws(() => parseNodes(bad), TypeError, bad);
  }
  for (const bad of ["::1:21282", "::1:9876"]) {
    assert.throws(() => parseNodes(bad), /an IPv6 address is in brackets, such as \[::1\]:\d+$/, bad);
  }
});

test("nodes are tried in turn, those that a draining node names first", () => {
  const nodes = new NodeRotation(["a:1", "b:1", "c:1"]);
  const turn = [nodes.next(), nodes.next(), nodes.next()];
  assert.deepEqual([...turn].sort(), ["a:1", "b:1", "c:1"]);
  assert.deepEqual([nodes.next(), nodes.next(), nodes.next()], turn);
  nodes.leave(turn[0]!, ["d:1", turn[0]!, "not an:address"]);
  assert.deepEqual([nodes.next(), nodes.next(), nodes.next(), nodes.next()], ["d:1", turn[1], turn[2], turn[0]]);
  const only = new NodeRotation("a:1");
  only.leave("a:1", []);
  assert.deepEqual([only.next(), only.next()], ["a:1", "a:1"]);
});

test("times", () => {
  assert.equal(timeOf("2026-02-23T10:18:33.123456789Z")?.getTime(), Date.UTC(2026, 1, 23, 10, 18, 33, 123));
  assert.equal(timeOf(null), undefined);
  assert.equal(timeOf("tomorrow"), undefined);
  assert.equal(timeText("runAt", "2026-02-23T10:18:33.5+02:00"), "2026-02-23T10:18:33.5+02:00");
  assert.throws(() => timeText("runAt", "2026-02-23"), /RFC 3339/);
  assert.throws(() => timeText("runAt", new Date(NaN)), RangeError);
  const start = timeOf(startOf({ delay: 60_000 }));
  assert(Math.abs(start!.getTime() - Date.now() - 60_000) < 5000);
});

test("a wait ends with its signal, its deadline or its promise", async () => {
  const never = new Promise<void>(() => undefined);
  await assert.rejects(new Wait({ deadline: new Date(Date.now() + 10) }, Infinity).race(never), { name: "DeadlineExceeded" });
  const controller = new AbortController();
  const waits = Array.from({ length: 50 }, () => new Wait({ signal: controller.signal }, Infinity).race(never));
  controller.abort("reason");
  assert.deepEqual(new Set((await Promise.allSettled(waits)).map((each) => each.status === "rejected" && each.reason)), new Set(["reason"]));
  assert.throws(() => new Wait({ signal: AbortSignal.abort("gone") }, 1), /gone/);
  assert.throws(() => new Wait({ deadline: new Date(NaN) }, 1), RangeError);
  assert.equal(await new Wait({}, 1e12).race(Promise.resolve(1)), 1);
});

test("a window has room for so many, in their order", async () => {
  const window = new Window(2, 100);
  const order: string[] = [];
  const take = (name: string, bytes: number, ms = 10_000) => window.acquire(bytes, new Wait({}, ms)).then(() => order.push(name));
  await take("huge", 500);
  const late = take("late", 1, 5);
  const second = take("second", 60);
  const third = take("third", 60);
  await assert.rejects(late, { name: "DeadlineExceeded" });
  assert.deepEqual(order, ["huge"]);
  window.release(500);
  await second;
  await sleep(1);
  assert.deepEqual(order, ["huge", "second"]); // both together are too many bytes
  window.release(60);
  await third;
  await take("fourth", 40);
  assert.deepEqual(order, ["huge", "second", "third", "fourth"]);
});
