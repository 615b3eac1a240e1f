// What the tests of peers ask for, on RRQ's TypeScript runtime.
const { Registry, RunnerRuntime } = await import(process.env.YARD_RRQ_TS);
const registry = new Registry();

const outcome = (request, rest) => ({ job_id: request.job_id, request_id: request.request_id, ...rest });

registry.register("echo", (request) => request.params);
registry.register("sleep", async (request, signal) => {
  await new Promise((done, stop) => {
    const timer = setTimeout(done, request.params.ms);
    signal.addEventListener("abort", () => { clearTimeout(timer); stop(signal.reason); });
  });
  return request.params;
});
registry.register("fail", (request) => { throw new Error(request.params.message); });
registry.register("retry", (request) =>
  request.context.attempt <= request.params.times
    ? outcome(request, { status: "retry", error: { message: "again" }, retry_after_seconds: request.params.after })
    : { attempt: request.context.attempt });
registry.register("crash", (request) => process.exit(request.params.code));
registry.register("hang", () => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)); // the whole event loop
registry.register("big", (request) => "x".repeat(request.params.bytes));
registry.register("context", (request) => request.context);
registry.register("unsendable", () => ({ n: 1n }));
registry.register("detailed", (request) =>
  outcome(request, { status: "error", error: { message: "m", type: "t", code: "c", details: { n: 1 } } }));

await new RunnerRuntime(registry).runFromArgs();
