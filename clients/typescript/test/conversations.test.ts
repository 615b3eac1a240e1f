/**
 * The conversations of edge/testdata, as far as they concern a client: what it sends arrives
 * at a node as written, and what the node sends arrives at the client, answers at their
 * requests and pushes in order. Left out is what no client of this package sends: raw bytes,
 * messages that violate the protocol, and messages before REGISTER.
 */

import assert from "node:assert/strict";
import { test, TestContext } from "node:test";
import { Connection, ConnectionListener, DEFAULT_TIMING } from "../src/connection.js";
import { CodecError, OverhopError } from "../src/errors.js";
import { Fields, Message, T } from "../src/protocol.js";
import { FakeNode, Gate, Inbox, NodeConnection, soon } from "./fakenode.js";
import { loadScripts, NotSendable, Script, Step, Variables } from "./wirescript.js";

const types = new Map<string, number>(Object.entries(T));

interface Exchange {
  readonly message: Message;
  readonly answer: Promise<Fields>;
}

/** One client of a conversation. */
class Actor {
  readonly #pushes = new Inbox<[number, Fields]>();
  readonly #closed = new Gate<Error>();
  readonly #open: Exchange[] = [];
  #skipped = 0; // requests that cannot be sent
  /** Lines that were played. */
  played = 0;
  #unread = 0;

  private constructor(readonly connection: Connection, readonly node: NodeConnection) {}

  static async register(t: TestContext, node: FakeNode): Promise<Actor> {
    let actor: Actor;
    const listener: ConnectionListener = {
      onPush: (_, type, fields) => {
        actor.#unread++;
        actor.#pushes.put([type, fields]);
      },
      onClose: (_, error) => actor.#closed.open(error),
    };
    const connection = await Connection.connect(node.address, { name: "actor", timing: DEFAULT_TIMING }, listener);
    t.after(() => connection.close());
    actor = new Actor(connection, await node.accept());
    return actor;
  }

  /** Plays one line. */
  async play(step: Step, variables: Variables): Promise<void> {
    const [, name = "", rest = ""] = /^(\S+)\s*(.*)$/s.exec(step.args.replace(/^(\S+) @\S+/, "$1")) ?? [];
    switch (step.verb) {
      case "->":
      case "?>":
        return this.#send(name, rest, variables);
      case "<-":
        return this.#receive(name, rest, variables);
      case "quiet":
        assert.equal(this.#unread, 0);
        return;
      case "closed":
        this.node.close();
        await soon(this.#closed.opened, "the end of the connection");
        return;
      case "leaves":
        this.connection.close();
        return this.node.closed;
    }
    this.#skipped++; // bytes, gathers, sends
  }

  async #send(name: string, rest: string, variables: Variables): Promise<void> {
    const type = types.get(name);
    let fields: Fields;
    try {
      assert(type !== undefined && type !== T.HELLO && type !== T.REGISTER && type < 100);
      fields = variables.fields(rest);
      const answer = this.connection.request(type, fields);
      answer.catch(() => undefined);
      const message = await Promise.race([this.node.read(), answer.then(() => undefined as never)]);
      assert.deepEqual([message.type, message.fields], [type, fields]);
      this.#open.push({ message, answer });
      this.played++;
    } catch (err) {
      if (!(err instanceof NotSendable || err instanceof CodecError || (type ?? 0) < 3 || (type ?? 100) > 99)) {
        throw err;
      }
      this.#skipped++;
    }
  }

  async #receive(name: string, rest: string, variables: Variables): Promise<void> {
    const type = types.get(name)!;
    if (type >= T.QUEST) {
      const fields = variables.fields(rest);
      this.node.push(type, fields);
      const received = await this.#pushes.take(name);
      this.#unread--;
      assert.deepEqual(received, [type, fields]);
      this.played++;
      return;
    }
    const exchange = this.#open.shift();
    if (exchange === undefined) { // the request was left out
      assert(this.#skipped-- > 0);
      return;
    }
    const { message, answer } = exchange;
    if (type !== T.ERR) {
      const fields = variables.fields(rest);
      this.node.send(type, message.rid, fields);
      assert.deepEqual(await soon(answer), fields);
    } else {
      const [, code = "", details = ""] = /^(\S+)\s*(.*)$/s.exec(rest) ?? [];
      const expected = details === "" ? {} : variables.fields(details);
      this.node.refuse(message.rid, code, expected);
      const error = await soon(answer.then(() => undefined, (err: unknown) => err));
      assert(error instanceof OverhopError);
      assert.deepEqual([error.code, error.details], [code, expected]);
    }
    this.played++;
  }
}

/** Plays a conversation and returns the number of messages. */
async function play(t: TestContext, script: Script): Promise<number> {
  const variables = new Variables();
  const actors = new Map<string, Actor>();
  const unregistered = new Map<string, string[] | undefined>(); // clients that say HELLO themselves, and their capabilities
  const node = await FakeNode.start(t);
  const all: Actor[] = [];
  const register = async (name: string, at: FakeNode) => {
    const actor = await Actor.register(t, at);
    all.push(actor);
    actors.set(name, actor);
    unregistered.delete(name);
  };
  for (const step of script.steps) {
    const where = `${script.name}.txt:${step.line}`;
    try {
      if (step.client === "") {
        const [name] = step.args.split(" ");
        if (step.verb === "queue" || step.verb === "name") {
          variables.set(name!, `${name}-x`);
        }
      } else if (step.verb === "registers") {
        await register(step.client, node);
      } else if (step.verb === "connects" || step.verb === "hello") {
        actors.delete(step.client);
        unregistered.set(step.client, undefined);
      } else if (unregistered.has(step.client)) {
        const caps = /^HI .*caps: (\[[^\]]*\])/.exec(step.args)?.[1];
        unregistered.set(step.client, caps === undefined ? unregistered.get(step.client) : JSON.parse(caps));
        if (step.verb === "<-" && /^OK \{wid: /.test(step.args)) {
          await register(step.client, await FakeNode.start(t, { caps: unregistered.get(step.client) ?? [] }));
        }
      } else {
        await actors.get(step.client)!.play(step, variables);
        if (step.verb === "closed" || step.verb === "leaves") {
          actors.delete(step.client);
        }
      }
    } catch (err) {
      throw new Error(`${where}: ${(err as Error).message}`, { cause: err });
    }
  }
  return all.reduce((sum, actor) => sum + actor.played, 0);
}

const scripts = loadScripts().filter(({ name }) => name !== "framing"); // raw bytes only
let played = 0;
for (const script of scripts) {
  test(`conversation ${script.name}`, async (t) => {
    const count = await play(t, script);
    played += count;
    t.diagnostic(`${count} messages`);
  });
}

test("the conversations are played", () => {
  assert(scripts.length > 40);
  assert(played > 1000, `${played} messages were played`);
});
