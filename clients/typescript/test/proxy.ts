/** A TCP proxy that can behave like a network that has lost a host. */

import * as net from "node:net";
import type { TestContext } from "node:test";
import { parseAddress } from "../src/nodes.js";

export class Proxy {
  readonly #sockets = new Set<net.Socket>();
  #frozen = false;
  #connected: () => void = () => undefined;

  private constructor(readonly address: string, private target: string) {}

  static async start(t: TestContext, target: string): Promise<Proxy> {
    let proxy: Proxy;
    const server = net.createServer((socket) => proxy.#accept(socket));
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    proxy = new Proxy(`127.0.0.1:${server.address().port}`, target);
    t.after(() => {
      proxy.#sockets.forEach((socket) => socket.destroy());
      return new Promise<void>((resolve) => server.close(resolve));
    });
    return proxy;
  }

  /** Forwards nothing any more, and closes nothing. */
  freeze(): void {
    this.#frozen = true;
  }

  /** Forwards new connections, to another target if that is given. */
  thaw(target = this.target): void {
    this.#frozen = false;
    this.target = target;
  }

  onNextConnection(connected: () => void): void {
    this.#connected = connected;
  }

  #accept(from: net.Socket): void {
    this.#sockets.add(from.setNoDelay(true));
    from.on("error", () => undefined);
    this.#connected();
    if (this.#frozen) {
      return;
    }
    const to = net.connect(parseAddress(this.target)).setNoDelay(true);
    this.#sockets.add(to);
    to.on("error", () => undefined);
    for (const [source, sink] of [[from, to], [to, from]] as const) {
      source.on("data", (data) => this.#frozen || sink.write(data));
      source.on("close", () => this.#frozen || sink.destroy());
    }
  }
}
