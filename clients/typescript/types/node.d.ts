/**
 * The parts of Node's API that this package uses: only Debian's package of Node has its types.
 * Programs that use this package do not see this file, and the sources compile with Node's own
 * types, too.
 */

interface AbortSignal {
  readonly aborted: boolean;
  readonly reason: any;
  throwIfAborted(): void;
  addEventListener(type: "abort", listener: () => void, options?: { once?: boolean }): void;
  removeEventListener(type: "abort", listener: () => void): void;
}

declare var AbortSignal: {
  abort(reason?: unknown): AbortSignal;
  timeout(milliseconds: number): AbortSignal;
};

declare class AbortController {
  readonly signal: AbortSignal;
  abort(reason?: unknown): void;
}

interface NodeTimer {
  ref(): this;
  unref(): this;
}

declare function setTimeout(callback: () => void, milliseconds?: number): NodeTimer;
declare function clearTimeout(timer: NodeTimer | undefined): void;
declare function setInterval(callback: () => void, milliseconds?: number): NodeTimer;
declare function clearInterval(timer: NodeTimer | undefined): void;
declare function setImmediate(callback: () => unknown): unknown;
declare function queueMicrotask(callback: () => void): void;

declare const performance: { now(): number };

declare const console: {
  log(...values: unknown[]): void;
  info(...values: unknown[]): void;
  warn(...values: unknown[]): void;
  error(...values: unknown[]): void;
};

declare class TextDecoder {
  constructor(encoding?: string, options?: { fatal?: boolean; ignoreBOM?: boolean });
  decode(bytes: Uint8Array): string;
}

declare class Buffer extends Uint8Array {
  static allocUnsafe(size: number): Buffer;
  static byteLength(text: string): number;
  static compare(a: Uint8Array, b: Uint8Array): number;
  static concat(parts: readonly Uint8Array[]): Buffer;
  static from(text: string, encoding?: "utf8" | "hex"): Buffer;
  static from(bytes: ArrayBufferLike, offset?: number, length?: number): Buffer;
  static from(bytes: Uint8Array): Buffer;
  copy(target: Uint8Array, targetStart?: number, start?: number, end?: number): number;
  equals(other: Uint8Array): boolean;
  subarray(start?: number, end?: number): Buffer;
  toString(encoding?: "utf8" | "hex"): string;
  write(text: string, offset: number, length: number, encoding: "utf8"): number;
  readInt8(offset: number): number;
  readInt16BE(offset: number): number;
  readInt32BE(offset: number): number;
  readUInt8(offset: number): number;
  readUInt32BE(offset: number): number;
  readUIntBE(offset: number, size: number): number;
  readBigInt64BE(offset: number): bigint;
  readBigUInt64BE(offset: number): bigint;
  writeIntBE(value: number, offset: number, size: number): number;
  writeUIntBE(value: number, offset: number, size: number): number;
  writeUInt32BE(value: number, offset: number): number;
  writeBigInt64BE(value: bigint, offset: number): number;
}

declare const process: {
  readonly env: Record<string, string | undefined>;
  readonly pid: number;
  readonly execPath: string;
  readonly argv: string[];
  cwd(): string;
  exit(code?: number): never;
  kill(pid: number, signal: string): void;
  nextTick(callback: () => void): void;
  on(event: string, listener: (...values: any[]) => void): unknown;
  once(event: string, listener: (...values: any[]) => void): unknown;
  off(event: string, listener: (...values: any[]) => void): unknown;
};

declare module "node:net" {
  export interface Socket {
    readonly destroyed: boolean;
    on(event: "data", listener: (data: Buffer) => void): this;
    on(event: "error", listener: (error: Error) => void): this;
    on(event: "connect" | "secureConnect" | "end" | "close", listener: () => void): this;
    once(event: "data", listener: (data: Buffer) => void): this;
    once(event: "error", listener: (error: Error) => void): this;
    once(event: "connect" | "secureConnect" | "end" | "close", listener: () => void): this;
    setNoDelay(on?: boolean): this;
    write(data: Uint8Array): boolean;
    cork(): void;
    uncork(): void;
    pause(): this;
    resume(): this;
    end(): this;
    destroy(error?: Error): this;
  }
  export interface Server {
    listen(port: number, host: string, listening: () => void): this;
    address(): { port: number };
    close(closed?: () => void): this;
    on(event: "error", listener: (error: Error) => void): this;
  }
  export function connect(options: { host: string; port: number; autoSelectFamily?: boolean; autoSelectFamilyAttemptTimeout?: number }): Socket;
  export function createServer(connected: (socket: Socket) => void): Server;
  export function isIP(host: string): number;
}

declare module "node:tls" {
  import type { Server, Socket } from "node:net";
  export type ConnectionOptions = object;
  export function connect(options: ConnectionOptions): Socket;
  export function createServer(options: object, connected: (socket: Socket) => void): Server;
}

declare module "node:os" {
  export function hostname(): string;
  export function tmpdir(): string;
}

declare module "node:crypto" {
  export function randomBytes(size: number): Buffer;
  export function randomUUID(): string;
}

declare module "node:fs" {
  export function existsSync(path: string): boolean;
  export function mkdtempSync(prefix: string): string;
  export function readdirSync(path: string): string[];
  export function readFileSync(path: string, encoding: "utf8"): string;
  export function readFileSync(path: string): Buffer;
  export function rmSync(path: string, options?: { recursive?: boolean; force?: boolean }): void;
  export function writeFileSync(path: string, text: string): void;
  export function openSync(path: string, flags: string): number;
  export function mkdirSync(path: string, options?: { recursive?: boolean }): void;
  export function symlinkSync(target: string, path: string): void;
}

declare module "node:path" {
  export function join(...parts: string[]): string;
  export function dirname(path: string): string;
}

declare module "node:url" {
  export function fileURLToPath(url: string): string;
}

interface ImportMeta {
  readonly url: string;
}

declare module "node:child_process" {
  export interface ChildProcess {
    readonly pid?: number;
    readonly exitCode: number | null;
    readonly signalCode: string | null;
    kill(signal?: string): boolean;
    once(event: "exit", listener: (code: number | null, signal: string | null) => void): this;
    once(event: "error", listener: (error: Error) => void): this;
    readonly stdout: { on(event: "data", listener: (data: Buffer) => void): unknown };
  }
  export function spawn(command: string, args: readonly string[], options?: object): ChildProcess;
  export function spawnSync(command: string, args: readonly string[], options?: object): {
    readonly status: number | null;
    readonly stdout: string;
    readonly stderr: string;
    readonly error?: Error;
  };
}

declare module "node:test" {
  export interface TestContext {
    after(cleanUp: () => unknown): void;
    test(name: string, run: (t: TestContext) => unknown): Promise<void>;
    diagnostic(message: string): void;
  }
  interface TestOptions {
    skip?: boolean | string;
    timeout?: number;
    concurrency?: boolean | number;
  }
  export function test(name: string, run: (t: TestContext) => unknown): Promise<void>;
  export function test(name: string, options: TestOptions, run: (t: TestContext) => unknown): Promise<void>;
  export function after(cleanUp: () => unknown): void;
  export function before(prepare: () => unknown): void;
}

declare module "node:assert/strict" {
  interface Assert {
    (value: unknown, message?: string): asserts value;
    ok(value: unknown, message?: string): asserts value;
    equal<E>(actual: unknown, expected: E, message?: string): asserts actual is E;
    notEqual(actual: unknown, unexpected: unknown, message?: string): void;
    deepEqual<E>(actual: unknown, expected: E, message?: string): asserts actual is E;
    match(text: string, pattern: RegExp, message?: string): void;
    throws(call: () => unknown, expected?: unknown, message?: string): void;
    rejects(call: Promise<unknown> | (() => Promise<unknown>), expected?: unknown, message?: string): Promise<void>;
    fail(message?: string): never;
  }
  const assert: Assert;
  export default assert;
}

declare function fetch(url: string): Promise<{ readonly ok: boolean; readonly status: number; text(): Promise<string> }>;
