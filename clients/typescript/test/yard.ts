/** A yard of real nodes for tests: processes of the program that YARD_BIN names. */

import { ChildProcess, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import * as net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { sleep } from "../src/wait.js";

/** The node program; undefined: tests with real nodes are skipped. */
export const program = process.env["YARD_BIN"];

/** Why tests with real nodes are skipped, or false. */
export const skip = program ? false : "YARD_BIN names no node program: make build, then YARD_BIN=bin/yardmaster";

const START_TIMEOUT = 30_000;

/** Returns free ports of 127.0.0.1. */
async function freePorts(count: number): Promise<number[]> {
  const servers = await Promise.all(Array.from({ length: count }, () => new Promise<net.Server>((resolve) => {
    const server = net.createServer((socket) => socket.destroy());
    server.listen(0, "127.0.0.1", () => resolve(server));
  })));
  const ports = servers.map((server) => server.address().port);
  await Promise.all(servers.map((server) => new Promise<void>((resolve) => server.close(resolve))));
  return ports;
}

export class YardNode {
  process: ChildProcess | undefined;

  constructor(readonly name: string, readonly address: string, readonly http: string, private readonly directory: string) {}

  start(): void {
    const log = openSync(join(this.directory, `${this.name}.log`), "a");
    this.process = spawn(program!, ["node", "--config", join(this.directory, `${this.name}.toml`)], { stdio: ["ignore", log, log] });
  }

  /** Ends the process by SIGKILL. */
  async kill(): Promise<void> {
    const { process } = this;
    if (process !== undefined && process.exitCode === null && process.signalCode === null) {
      const ended = new Promise<void>((resolve) => process.once("exit", () => resolve()));
      process.kill("SIGKILL");
      await ended;
    }
  }

  get log(): string {
    return readFileSync(join(this.directory, `${this.name}.log`), "utf8");
  }

  /** Waits until the node says that the yard is ready. */
  async ready(): Promise<void> {
    for (const end = Date.now() + START_TIMEOUT; Date.now() < end; await sleep(50)) {
      const isReady = await fetch(`http://${this.http}/readyz`).then((response) => response.ok, () => false);
      if (isReady) {
        return;
      }
      if (this.process?.exitCode != null) {
        break;
      }
    }
    throw new Error(`node ${this.name} is not ready:\n${this.log.slice(-3000)}`);
  }
}

export class Yard {
  private constructor(readonly nodes: readonly YardNode[], private readonly directory: string) {}

  /** Starts nodes, with more TOML in their configuration, and waits until they are ready. */
  static async start(count: number, config = ""): Promise<Yard> {
    const directory = mkdtempSync(join(tmpdir(), "yardmaster-"));
    const ports = await freePorts(5 * count);
    const names = Array.from({ length: count }, (_, i) => `n${i + 1}`);
    const port = (i: number, kind: number) => `127.0.0.1:${ports[5 * i + kind]}`;
    const members = names.map((name, i) => `  { name = "${name}", route = "${port(i, 3)}", raft = "${port(i, 4)}" },`).join("\n");
    const nodes = names.map((name, i) => {
      mkdirSync(join(directory, name));
      writeFileSync(join(directory, `${name}.toml`), [
        `[node]\nname = "${name}"\ndata_dir = "${join(directory, name)}"`,
        `[nats]\nlisten = "${port(i, 0)}"`, `[http]\nlisten = "${port(i, 1)}"`, `[server]\nhost = "127.0.0.1"\nport = ${ports[5 * i + 2]}`,
        config, count > 1 ? `[cluster]\nmembers = [\n${members}\n]` : "",
      ].join("\n\n"));
      return new YardNode(name, port(i, 2), port(i, 1), directory);
    });
    const yard = new Yard(nodes, directory);
    nodes.forEach((node) => node.start());
    try {
      await Promise.all(nodes.map((node) => node.ready()));
    } catch (err) {
      await yard.stop();
      throw err;
    }
    return yard;
  }

  get addresses(): string[] {
    return this.nodes.map(({ address }) => address);
  }

  async stop(): Promise<void> {
    await Promise.all(this.nodes.map((node) => node.kill()));
    rmSync(this.directory, { recursive: true, force: true });
  }
}
