/** Connections with and without TLS, and why they fail. */

import * as net from "node:net";
import * as tls from "node:tls";
import { OverhopError, TLSError } from "./errors.js";
import { parseAddress } from "./nodes.js";
import { frame, OtherPort, T } from "./protocol.js";

/** How to verify the nodes, and how to authenticate to them, with TLS: as for `tls.connect` of Node. */
export interface TLSOptions {
  /** Certificates of the authorities that may have signed those of the nodes, in PEM; default: those of Node. */
  ca?: string | Uint8Array | ReadonlyArray<string | Uint8Array>;
  /** The client's certificate in PEM, if the nodes require one. */
  cert?: string | Uint8Array;
  /** The private key of `cert` in PEM. */
  key?: string | Uint8Array;
  passphrase?: string;
  /** The name in the nodes' certificates, if it is not the host of their addresses. */
  servername?: string;
  /** false accepts any certificate, which protects from nothing but a passive reader. */
  rejectUnauthorized?: boolean;
}

/**
 * Opens a connection, with TLS if the settings have it.
 * @internal
 */
export function openSocket(node: string, settings: { readonly tls?: boolean | TLSOptions | undefined }): net.Socket {
  const { host, port } = parseAddress(node);
  const address = { host, port, autoSelectFamily: true, autoSelectFamilyAttemptTimeout: 1000 };
  if (!settings.tls) {
    return net.connect(address).setNoDelay(true);
  }
  const servername = net.isIP(host) === 0 ? { servername: host } : {};
  return tls.connect({ ...address, ...servername, ...(settings.tls === true ? {} : settings.tls) } as tls.ConnectionOptions).setNoDelay(true);
}

const PROBE_TIMEOUT = 3000; // milliseconds

/** Codes of OpenSSL and Node for a certificate that is not accepted. */
const CERTIFICATE_CODES = /CERT|SIGNATURE|ISSUER|CRL|HOSTNAME|ALTNAME|PATH_LENGTH|INVALID_PURPOSE/;

/**
 * Returns the error for a handshake that has failed with `error`, or undefined if TLS is not the
 * reason.
 *
 * A node that expects TLS, or does not, just closes the connection of a client that does the
 * opposite, as it also does when it stops. So it is tried the other way round.
 */
export async function tlsError(node: string, settings: { readonly tls?: boolean | TLSOptions | undefined }, error: Error): Promise<TLSError | undefined> {
  const root = rootOf(error);
  if (root instanceof OtherPort) {
    return new TLSError(node, root.message, { cause: error });
  }
  const { code, message } = detailsOf(root);
  if (error instanceof OverhopError || /^E(CONNREFUSED|HOSTUNREACH|NETUNREACH|NOTFOUND|AI_AGAIN|TIMEDOUT)$/.test(code)) {
    return undefined;
  }
  if (!settings.tls) {
    const requires = await probe(node, { tls: { rejectUnauthorized: false } }, () => true);
    return requires ? new TLSError(node, "its port requires TLS: set `tls`", { cause: error }) : undefined;
  }
  if (/ALERT/.test(code)) {
    const check = "check `cert` and `key` in `tls`: the node's server.tls.client_ca_file must have signed the certificate";
    return new TLSError(node, `it refuses this client: ${message}; ${check}`, { cause: error });
  }
  if (CERTIFICATE_CODES.test(code)) {
    const check = "check `ca` in `tls`, and that the certificate names the host in the node's address, or `servername`";
    return new TLSError(node, `its certificate is not accepted: ${message}; ${check}`, { cause: error });
  }
  const isPlain = await probe(node, {}, (data) => data?.[0] === 0); // the first byte of a frame's length
  return isPlain ? new TLSError(node, "its port does not speak TLS: leave out `tls`, or set server.tls of the node", { cause: error }) : undefined;
}

/** Returns the error, such as one of the socket, that has caused another one. */
function rootOf(error: Error): Error {
  let root = error;
  while (root.cause instanceof Error) {
    root = root.cause;
  }
  return root;
}

function detailsOf(root: Error): { code: string; message: string } {
  const { code, reason } = root as { code?: unknown; reason?: unknown };
  return { code: String(code ?? ""), message: typeof reason === "string" ? reason : root.message }; // OpenSSL's message has places in its source
}

/** Connects once more, and reports whether what the node does is expected: it completes TLS, or answers a HELLO with these bytes. */
function probe(node: string, settings: { readonly tls?: TLSOptions }, isExpected: (data?: Uint8Array) => boolean): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = openSocket(node, settings);
    const end = (result: boolean) => {
      clearTimeout(timer);
      socket.destroy();
      resolve(result);
    };
    const timer = setTimeout(() => end(false), PROBE_TIMEOUT);
    if (settings.tls) {
      socket.once("secureConnect", () => end(isExpected()));
    } else {
      socket.once("connect", () => socket.write(frame(T.HELLO, "1", {})));
      socket.once("data", (data) => end(isExpected(data)));
    }
    socket.on("error", () => end(false));
    socket.once("close", () => end(false));
  });
}
