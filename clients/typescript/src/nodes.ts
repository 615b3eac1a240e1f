/** Addresses of nodes, and the order in which they are tried. */

import { isIP } from "node:net";
import { TLSError } from "./errors.js";

const DEFAULT_PORT = 9876;

/** What a client may name its nodes by: "host:port", several with commas, or an array. */
export type Nodes = string | readonly string[];

export interface Address {
  readonly host: string;
  readonly port: number;
}

/**
 * Returns node addresses as an array; undefined means the environment variable OVERHOP_NODES,
 * or 127.0.0.1:9876 without it. Throws a TypeError if there are none, or one is invalid.
 */
export function parseNodes(nodes: Nodes | undefined): string[] {
  const given = nodes ?? (process.env["OVERHOP_NODES"] || `127.0.0.1:${DEFAULT_PORT}`);
  const addresses = (typeof given === "string" ? given.split(",") : given).map((node) => node.trim()).filter((node) => node !== "");
  if (addresses.length === 0) {
    throw new TypeError('no node is named: give nodes: ["host:port", …]');
  }
  addresses.forEach(parseAddress);
  return addresses;
}

/** Parses "host:port"; the defaults are 127.0.0.1 and 9876. An IPv6 address with a port is in brackets. */
export function parseAddress(node: string): Address {
  const [, start, end] = /^([^[]*:[^[]*):([^:[]*)$/.exec(node) ?? [];
  if (end !== undefined && (isIP(node) !== 6 || /^\d{4,}$/.test(end))) { // such as ::1:9876, which may be meant either way
    throw new TypeError(`invalid node address ${JSON.stringify(node)}: an IPv6 address is in brackets, such as [${start}]:${end}`);
  }
  const [, host, port] = /^(\[[^\]]*\]|[^:]*):(\d+)$/.exec(node) ?? ["", node, String(DEFAULT_PORT)];
  const number = Number(port);
  const name = (host as string).replace(/^\[|\]$/g, "");
  if (!(number > 0 && number < 65536) || name.includes(":") && isIP(name) !== 6) {
    throw new TypeError(`invalid node address ${JSON.stringify(node)}: must be host:port, with a port from 1 to 65535`);
  }
  return { host: name || "127.0.0.1", port: number };
}

const MAX_PREFERRED = 16;

/** Selects the node for the next connection. */
export class NodeRotation {
  #nodes: string[];
  #preferred: string[] = [];
  #avoided: string | undefined;
  readonly #refusing = new Set<string>(); // with which TLS has failed

  /** A node was reached. */
  reached = false;

  constructor(nodes: Nodes | undefined) {
    this.#nodes = shuffled(parseNodes(nodes));
  }

  next(): string {
    const preferred = this.#preferred.shift();
    if (preferred !== undefined) {
      return preferred;
    }
    this.#advance();
    if (this.#nodes[0] === this.#avoided) { // once only: it may have restarted by the next time
      this.#avoided = undefined;
      this.#advance();
    }
    return this.#nodes[0] as string;
  }

  /** Reports whether TLS has failed with every node, and none was reached before; counts an error of one. */
  allRefuse(error: Error): boolean {
    if (!(error instanceof TLSError)) {
      return false;
    }
    this.#refusing.add(error.node);
    return !this.reached && this.#nodes.every((node) => this.#refusing.has(node));
  }

  #advance(): void {
    this.#nodes.push(this.#nodes.shift() as string);
  }

  /** Has the nodes that a draining one has named tried first, and that one not next. */
  leave(node: string, alternatives: readonly string[]): void {
    this.#avoided = node;
    this.#preferred = shuffled(alternatives.filter((other) => other !== node && isAddress(other))).slice(0, MAX_PREFERRED);
  }
}

function isAddress(text: string): boolean {
  try {
    parseAddress(text);
    return true;
  } catch {
    return false;
  }
}

function shuffled(items: readonly string[]): string[] {
  const copy = [...items];
  for (let i = copy.length - 1; i > 0; i--) {
    const j = Math.floor(Math.random() * (i + 1));
    [copy[i], copy[j]] = [copy[j] as string, copy[i] as string];
  }
  return copy;
}

/** Returns the milliseconds to wait before attempt n: exponential up to 2 s, with jitter. */
export function backoff(n: number): number {
  return Math.min(2000, 50 * 2 ** Math.min(n, 10)) * (0.5 + Math.random() / 2);
}
