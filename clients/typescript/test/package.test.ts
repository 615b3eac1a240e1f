/** What is published, and the examples of the documents, which use it. */

import assert from "node:assert/strict";
import { ChildProcess, spawn, spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { PATIENCE, soon } from "./fakenode.js";
import { skip, Yard } from "./yard.js";

const root = join(fileURLToPath(import.meta.url), "..", "..", "..");
const documents = join(root, "..", "..", "docs");

function works(command: string): boolean {
  return spawnSync(command, ["--version"]).status === 0;
}

test("npm pack has the modules, their types and the README", { skip: works("npm") ? false : "npm is not installed" }, () => {
  const packed = spawnSync("npm", ["pack", "--dry-run", "--json", "--ignore-scripts", "--offline"], { cwd: root, encoding: "utf8" });
  assert.equal(packed.status, 0, packed.stderr);
  const [{ files }] = JSON.parse(packed.stdout) as [{ files: Array<{ path: string }> }];
  const modules = readdirSync(join(root, "src")).map((name) => name.replace(/\.ts$/, ""));
  const expected = ["README.md", "package.json", ...modules.flatMap((name) => [`build/src/${name}.d.ts`, `build/src/${name}.js`])];
  assert.deepEqual(files.map(({ path }) => path).filter((path) => path !== "LICENSE").sort(), expected.sort()); // prepack adds that
});

test("the package is described", () => {
  const description = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
  assert.equal(description.dependencies, undefined);
  assert(existsSync(join(root, description.types)));
  assert(existsSync(join(root, description.exports["."].default)));
  for (const name of ["client", "worker", "job", "queues"]) {
    const types = readFileSync(join(root, "build", "src", `${name}.d.ts`), "utf8");
    assert.equal(/timing|@internal/.test(types), false, name);
  }
});

/** Returns the programs in TypeScript of a page, which may be written by a shell command. */
function programs(page: string): string[] {
  return [...readFileSync(page, "utf8").matchAll(/(?:```ts\n|\.ts <<'EOF'\n)([^]*?)(?:```|EOF)/g)].map(([, program]) => program!);
}

/** Returns the files that the examples are compiled to, by page, in a directory that is their project. */
function compileExamples(directory: string): string[] {
  mkdirSync(join(directory, "node_modules"));
  symlinkSync(root, join(directory, "node_modules", "yardmaster"));
  writeFileSync(join(directory, "package.json"), '{"type":"module"}');
  const pages = { readme: join(root, "README.md"), guide: join(documents, "guides", "workers.md"), quickstart: join(documents, "quickstart.md") };
  const names: string[] = [];
  for (const [name, page] of Object.entries(pages)) {
    programs(page).forEach((program, i) => {
      names.push(`${name}${i + 1}`);
      writeFileSync(join(directory, `${name}${i + 1}.ts`), program);
    });
  }
  const compiled = spawnSync("tsc", [
    "--strict", "--target", "es2022", "--module", "node16", "--moduleResolution", "node16", ...names.map((name) => join(directory, `${name}.ts`)),
  ], { encoding: "utf8" });
  assert.equal(compiled.status, 0, compiled.stdout);
  return names;
}

/** A program that runs an example. */
class Example {
  readonly #process: ChildProcess;
  readonly ended: Promise<number | null>;
  output = "";

  constructor(file: string, nodes: readonly string[]) {
    this.#process = spawn(process.execPath, [file], { env: { ...process.env, OVERHOP_NODES: nodes.join(",") }, stdio: ["ignore", "pipe", "inherit"] });
    this.#process.stdout.on("data", (data) => (this.output += data.toString()));
    this.ended = new Promise((resolve) => this.#process.once("exit", resolve));
  }

  kill(signal: string): void {
    this.#process.kill(signal);
  }
}

test("the examples of the documents compile, and those of the README run", { skip: works("tsc") ? skip : "tsc is not installed", timeout: 4 * PATIENCE }, async (t) => {
  const directory = mkdtempSync(join(tmpdir(), "yardmaster-"));
  t.after(() => rmSync(directory, { recursive: true }));
  const names = compileExamples(directory);
  assert.deepEqual(names, ["readme1", "readme2", "readme3", "guide1", "quickstart1"]);
  const yard = await Yard.start(1);
  t.after(() => yard.stop());
  const [worker, producer] = ["readme1", "readme2"].map((name) => new Example(join(directory, `${name}.js`), yard.addresses)) as [Example, Example];
  t.after(() => [worker, producer].forEach((each) => each.kill("SIGKILL")));
  assert.equal(await soon(producer.ended), 0);
  assert.equal(producer.output, "sent to ann\nagain { attempt: 1, sent: 'bob' }\nfailed 0\nno address\n");
  worker.kill("SIGTERM");
  assert.equal(await soon(worker.ended), 0);
});
