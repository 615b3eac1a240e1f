/** Where messages for people go. `console` is a Logger. */
export interface Logger {
  info?(message: string, facts?: Record<string, unknown>): void;
  warn?(message: string, facts?: Record<string, unknown>): void;
}

const nothing = () => undefined;

/** Returns a logger with both levels; the default passes warnings to the console, one line each. */
export function toLogger(logger: Logger | undefined): Required<Logger> {
  if (logger === undefined) {
    return { info: nothing, warn: (message, facts) => console.warn(line(message, facts)) };
  }
  return { info: logger.info?.bind(logger) ?? nothing, warn: logger.warn?.bind(logger) ?? nothing };
}

function line(message: string, facts: Record<string, unknown> = {}): string {
  const pairs = Object.entries(facts).map(([name, value]) => `${name}=${value instanceof Error ? JSON.stringify(value.message) : String(value)}`);
  return ["yardmaster:", message, ...pairs].join(" ");
}
