/** TLS, and nodes that stop answering. */

import assert from "node:assert/strict";
import { rmSync } from "node:fs";
import * as net from "node:net";
import { after, test } from "node:test";
import { Client } from "../src/client.js";
import { Connection, DEFAULT_TIMING, Timing } from "../src/connection.js";
import { ConnectionLost, TLSError } from "../src/errors.js";
import { T } from "../src/protocol.js";
import { sleep } from "../src/wait.js";
import { Worker } from "../src/worker.js";
import { makeCertificate } from "./certificate.js";
import { FakeNode, Gate, PATIENCE, soon } from "./fakenode.js";
import { Proxy } from "./proxy.js";

const log = {};
const certificate = makeCertificate();
after(() => certificate && rmSync(certificate.directory, { recursive: true }));
const skip = certificate ? false : "openssl is needed to make a certificate";
const { cert, key } = certificate ?? { cert: "", key: "" };

test("large requests and answers over TLS", { skip }, async (t) => {
  const node = await FakeNode.start(t, { tls: { cert, key } });
  const client = new Client({ nodes: node.address, tls: { ca: cert }, timeout: PATIENCE, log });
  t.after(() => client.close());
  const texts = [0, 1, 2, 3].map((i) => "x".repeat(3 << 20) + i);
  const calls = texts.map((text) => client.get(text));
  const connection = await node.accept();
  for (const _ of texts) { // each answer is as large as its request, and is written while that for the next is read
    const message = await connection.expect(T.JOB);
    connection.ok(message, { jid: message.fields["jid"] });
  }
  assert.deepEqual((await soon(Promise.all(calls))).map((job) => job?.jid), texts);
});

test("a certificate is verified, and its name too", { skip }, async (t) => {
  const node = await FakeNode.start(t, { tls: { cert, key } });
  const refusal = async (tls: object | true) => {
    const err = await soon(new Client({ nodes: node.address, tls, log }).ping().catch((reason: unknown) => reason));
    assert(err instanceof TLSError);
    return err.message;
  };
  const [unknown, other] = await Promise.all([refusal(true), refusal({ ca: cert, servername: "other.example" })]);
  assert.match(unknown, /its certificate is not accepted: self-signed certificate; check `ca`/);
  assert.match(other, /not accepted: .*altnames/);
  const client = new Client({ nodes: node.address, tls: { ca: cert, servername: "node.example" }, timeout: PATIENCE, log });
  t.after(() => client.close());
  const status = client.status();
  await (await node.accept()).answer(T.STATUS);
  await soon(status);
});

/** Checks that clients and workers end at once, though they have time. */
async function rejectsAtOnce(address: string, tls: object | boolean, message: RegExp): Promise<void> {
  const began = performance.now();
  await assert.rejects(new Client({ nodes: address, tls, log }).ping(), (err: Error) => err instanceof TLSError && message.test(err.message));
  await assert.rejects(soon(new Worker({ nodes: address, tls, log }).handle("q", () => 1).run()), message);
  assert(performance.now() - began < PATIENCE);
}

test("an error says which side lacks TLS", { skip }, async (t) => {
  const secured = await FakeNode.start(t, { tls: { cert, key } });
  await rejectsAtOnce(secured.address, false, /its port requires TLS: set `tls`/);
  const plain = await FakeNode.start(t);
  await rejectsAtOnce(plain.address, true, /its port does not speak TLS: leave out `tls`/);
});

test("an error says what the port is, if it is not that of workers", async (t) => {
  for (const [says, message, asks] of [
    ["HTTP/1.1 400 Bad Request\r\n\r\n", /its port speaks HTTP.*: give the address of the worker port/, true],
    ["INFO {}\r\n", /its port speaks NATS/, false],
  ] as const) {
    const server = net.createServer((socket) => {
      socket.on("error", () => undefined);
      if (!asks) {
        socket.write(Buffer.from(says));
        return;
      }
      socket.on("data", (data) => Buffer.from(data).toString().includes("\r\n\r\n") && socket.write(Buffer.from(says)));
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    t.after(() => server.close(() => undefined));
    await rejectsAtOnce(`127.0.0.1:${server.address().port}`, false, message);
  }
});

test("an error says that the client's certificate is refused", { skip }, async (t) => {
  const strict = await FakeNode.start(t, { tls: { cert, key, ca: cert, requestCert: true, rejectUnauthorized: true } });
  await rejectsAtOnce(strict.address, { ca: cert }, /it refuses this client: tlsv13 alert certificate required; check `cert` and `key`/);
});

test("one good node is enough, and one that was reached is sought again", { skip }, async (t) => {
  const plain = await FakeNode.start(t);
  const secured = await FakeNode.start(t, { tls: { cert, key } });
  const client = new Client({ nodes: [plain.address, secured.address], tls: { ca: cert }, timeout: PATIENCE, log });
  t.after(() => client.close());
  for (const n of [1, 2]) { // the second time, the plain node may be tried first
    const status = client.status();
    const connection = await secured.accept();
    await connection.answer(T.STATUS, { n });
    assert.deepEqual(await soon(status), { n });
    connection.close();
  }
});

test("a refused token is an error that says what to check", async (t) => {
  const node = await FakeNode.start(t, { token: "secret" });
  await assert.rejects(new Client({ nodes: node.address, log }).ping(), /UNAUTHORIZED: .*requires a token, and this client has none: check `token`/);
  await assert.rejects(soon(new Worker({ nodes: node.address, token: "x", log }).handle("q", () => 1).run()), /refuses the token of this client/);
});

function patient(timing: Partial<Timing>): Timing {
  return { ...DEFAULT_TIMING, ...timing };
}

test("a node that has vanished from the network is left", async (t) => {
  const [node, other] = [await FakeNode.start(t), await FakeNode.start(t)];
  const proxy = await Proxy.start(t, node.address);
  const client = new Client({ nodes: proxy.address, timeout: PATIENCE, log }, patient({ connect: 300, probeAfter: 200, probe: 200, ping: 100 }));
  t.after(() => client.close());
  const first = client.status();
  const connection = await node.accept();
  await connection.answer(T.STATUS);
  await first;
  proxy.freeze();
  const status = client.status();
  await connection.socket.resume();
  await soon(new Promise<void>((resolve) => proxy.onNextConnection(resolve))); // the probe
  await sleep(300);
  proxy.thaw(other.address);
  const second = await other.accept();
  await second.answer(T.STATUS, { here: true });
  assert.deepEqual(await soon(status), { here: true });
});

test("an idle connection to a node that has vanished is closed", async (t) => {
  const node = await FakeNode.start(t);
  const proxy = await Proxy.start(t, node.address);
  const closed = new Gate<Error>();
  const settings = { name: "idle", timing: patient({ probeAfter: 100, probe: 100, ping: 100 }) };
  const connection = await Connection.connect(proxy.address, settings, { onPush: () => undefined, onClose: (_, error) => closed.open(error) });
  proxy.freeze();
  const error = await soon(closed.opened);
  assert(error instanceof ConnectionLost);
  assert.match(error.message, /has sent nothing for \d+ ms and does not answer/);
  assert.equal(connection.error, error);
});

test("a slow answer of a living node is awaited, but not for ever", async (t) => {
  const node = await FakeNode.start(t);
  const client = new Client({ nodes: node.address, timeout: PATIENCE, log }, patient({ probeAfter: 100, probe: 1000, silence: 1000 }));
  t.after(() => client.close());
  const status = client.status();
  const connection = await node.accept();
  const message = await connection.expect(T.STATUS);
  await sleep(500); // probes find it alive
  connection.send(T.PONG, "no request", {}); // is ignored
  connection.ok(message, { slow: true });
  assert.deepEqual(await soon(status), { slow: true });
  const again = client.status();
  await connection.expect(T.STATUS);
  await (await node.accept()).answer(T.STATUS, { another: true });
  assert.deepEqual(await soon(again), { another: true });
});

test("a blocked program does not take its node for dead", async (t) => {
  const node = await FakeNode.start(t);
  const settings = { name: "blocked", timing: patient({ probeAfter: 300, probe: 1000, silence: 900 }) };
  const connection = await Connection.connect(node.address, settings, { onPush: () => undefined, onClose: () => undefined });
  t.after(() => connection.close());
  const answer = connection.request(T.STATUS, {});
  const peer = await node.accept();
  const message = await peer.expect(T.STATUS);
  for (const end = Date.now() + 1200; Date.now() < end; ) {
    // a handler that computes
  }
  await sleep(1); // timers are first
  peer.ok(message, { ok: true });
  assert.deepEqual(await soon(answer), { ok: true });
});

test("an answer of the wrong type ends the connection", async (t) => {
  const node = await FakeNode.start(t);
  const connection = await Connection.connect(node.address, { name: "wrong", timing: DEFAULT_TIMING }, { onPush: () => undefined, onClose: () => undefined });
  const answer = connection.request(T.STATUS, {});
  const peer = await node.accept();
  peer.send(T.PONG, (await peer.expect(T.STATUS)).rid, {});
  await assert.rejects(answer, /answered t=105 to t=10/);
  await peer.closed;
  await assert.rejects(connection.request(T.STATUS, {}), ConnectionLost);
});
