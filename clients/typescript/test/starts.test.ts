/** When a worker starts a handler: once a node has answered the ACK, and while the lease lasts. */

import assert from "node:assert/strict";
import { test, TestContext } from "node:test";
import { T } from "../src/protocol.js";
import { Worker } from "../src/worker.js";
import { FakeNode, NodeConnection, SID, soon } from "./fakenode.js";

const BEAT = { beat_ms: 60_000 };
const LEASE = { lease_ms: 6000 };

interface Running {
  worker: Worker;
  node: FakeNode;
  connection: NodeConnection;
  /** The payloads of the jobs whose handlers have been called. */
  ran: unknown[];
}

/** Runs a worker of queue q, which is subscribed. */
async function start(t: TestContext): Promise<Running> {
  const node = await FakeNode.start(t);
  const ran: unknown[] = [];
  const worker = new Worker({ nodes: [node.address], grace: 50, log: {} }, { goodbye: 50, cancel: 50 });
  worker.handle("q", (job) => void ran.push(job.payload));
  const ended = worker.run().catch(() => undefined);
  t.after(async () => {
    const stopped = worker.stop();
    void node.close();
    await soon(Promise.all([stopped, ended]), "the worker's end");
  });
  const connection = await node.accept();
  await connection.answer(T.SUBSCRIBE, { sid: SID });
  return { worker, node, connection, ran };
}

test("a handler starts when the node has answered the ACK", async (t) => {
  const { connection, ran } = await start(t);
  connection.quest(1, BEAT);
  const { rid } = await connection.expect(T.ACK);
  connection.quest(1, BEAT); // the answer to it comes after whatever the worker does with the first
  await connection.expect(T.ACK);
  assert.deepEqual(ran, []);
  connection.send(T.OK, rid, LEASE);
  await connection.answer(T.DONE);
  assert.deepEqual(ran, [1]);
});

test("a job that the node has given up is not started or reported, and its credit is used for another", async (t) => {
  for (const code of ["ACK_TIMEOUT", "LEASE_LOST", "JOB_NOT_ACTIVE", "OF_A_LATER_RELEASE"]) {
    const { connection, ran } = await start(t);
    connection.quest(1, BEAT);
    connection.refuse((await connection.expect(T.ACK)).rid, code);
    assert.equal((await connection.answer(T.CREDIT))["credits"], 1);
    connection.quest(2, BEAT);
    await connection.answer(T.ACK);
    await connection.answer(T.DONE);
    assert.deepEqual(ran, [2]);
  }
});

test("a worker that was stopped past the ACK time gets all of its credits back", async (t) => {
  const { connection, ran } = await start(t);
  connection.quest(1, BEAT);
  connection.push(T.CREDITS, { sid: SID, credits: 0, reason: "STALLED" });
  connection.refuse((await connection.expect(T.ACK)).rid, "ACK_TIMEOUT");
  assert.equal((await connection.answer(T.CREDIT))["credits"], 1);
  assert.deepEqual(ran, []);
});

test("a job that was recalled before its ACK was answered is not started", async (t) => {
  const { connection, ran } = await start(t);
  connection.quest(1, BEAT);
  const { rid, fields } = await connection.expect(T.ACK);
  connection.push(T.RECALL, { jid: fields["jid"], tok: fields["tok"], reason: "CANCELLED", grace_ms: 5000 });
  connection.send(T.OK, rid, LEASE);
  await connection.answer(T.FAIL);
  assert.deepEqual(ran, []);
});

test("if the connection is lost before the ACK is answered, the next node decides", async (t) => {
  for (const isRefused of [false, true]) {
    const { connection: lost, node, ran } = await start(t);
    lost.quest(1, BEAT);
    await lost.expect(T.ACK);
    lost.close();
    const connection = await node.accept();
    const { rid } = await connection.expect(T.ACK);
    assert.deepEqual(ran, []);
    if (isRefused) {
      connection.refuse(rid, "LEASE_LOST");
      assert.equal((await connection.answer(T.SUBSCRIBE, { sid: SID }))["credits"], 0);
      assert.equal((await connection.answer(T.CREDIT))["credits"], 1);
      assert.deepEqual(ran, []);
    } else {
      connection.send(T.OK, rid, LEASE);
      await connection.answer(T.SUBSCRIBE, { sid: SID });
      await connection.answer(T.DONE);
      assert.deepEqual(ran, [1]);
    }
  }
});

test("a process that was stopped after the answer, past the end of the lease, asks again", async (t) => {
  const { connection, ran } = await start(t);
  connection.quest(1, BEAT);
  await connection.answer(T.ACK, { lease_ms: 0 });
  const { rid } = await connection.expect(T.ACK);
  assert.deepEqual(ran, []);
  connection.send(T.OK, rid, LEASE);
  await connection.answer(T.DONE);
  assert.deepEqual(ran, [1]);

  connection.quest(2, BEAT);
  await connection.answer(T.ACK, { lease_ms: 0 });
  connection.refuse((await connection.expect(T.ACK)).rid, "LEASE_LOST");
  assert.equal((await connection.answer(T.CREDIT))["credits"], 1);
  assert.deepEqual(ran, [1]);
});

test("a job whose ACK is not answered within the grace is given back", async (t) => {
  const { worker, connection, ran } = await start(t);
  connection.quest(1, BEAT);
  await connection.expect(T.ACK);
  await soon(worker.stop(), "the worker's end");
  assert.deepEqual(ran, []);
});
