// A worker of the queue "mixed", beside workers in other languages. YARD_TYPESCRIPT is the URL
// of the client's module.
import { setTimeout as sleep } from "node:timers/promises";

const { Worker } = await import(process.env.YARD_TYPESCRIPT);

const worker = new Worker();
worker.handle("mixed", async (job) => {
  await sleep(50);
  return { by: "typescript", n: job.payload.n };
}, { concurrency: 4 });
await worker.stopOnSignals().run();
