// A worker of a queue that prints the jobs that it begins. YARD_TYPESCRIPT is the URL of the
// client's module.
const { Worker } = await import(process.env.YARD_TYPESCRIPT);

const worker = new Worker();
worker.handle(process.argv[2], (job) => console.log("begin", job.id));
await worker.stopOnSignals().run();
