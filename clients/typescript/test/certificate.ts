/** A certificate for tests, made by openssl. */

import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

export interface Certificate {
  readonly directory: string;
  readonly certFile: string;
  readonly keyFile: string;
  readonly cert: string;
  readonly key: string;
}

/** Makes a certificate for 127.0.0.1 and node.example in a directory that the caller removes; undefined without openssl. */
export function makeCertificate(): Certificate | undefined {
  const directory = mkdtempSync(join(tmpdir(), "yardmaster-"));
  const [certFile, keyFile] = [join(directory, "cert.pem"), join(directory, "key.pem")];
  const { status } = spawnSync("openssl", [
    "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=node",
    "-addext", "subjectAltName=IP:127.0.0.1,DNS:node.example", "-keyout", keyFile, "-out", certFile,
  ]);
  return status === 0 ? { directory, certFile, keyFile, cert: readFileSync(certFile, "utf8"), key: readFileSync(keyFile, "utf8") } : undefined;
}
