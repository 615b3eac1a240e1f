import assert from "node:assert/strict";
import { test } from "node:test";
import { toLogger } from "../src/log.js";

test("warnings are one line each on the console, unless there is a logger", (t) => {
  const { warn } = console;
  t.after(() => Object.assign(console, { warn }));
  const lines: unknown[] = [];
  console.warn = (...values) => lines.push(...values);
  const log = toLogger(undefined);
  log.info("not shown");
  log.warn("lost the lease of a job", { job: "q:1", code: "LEASE_LOST" });
  log.warn("failed", { err: new Error("no reason") });
  assert.deepEqual(lines, ["yardmaster: lost the lease of a job job=q:1 code=LEASE_LOST", 'yardmaster: failed err="no reason"']);
  const own: string[] = [];
  toLogger({ warn: (message) => own.push(message) }).warn("mine");
  toLogger({}).warn("nowhere");
  assert.deepEqual(own, ["mine"]);
});
