/** Where messages for people go. `console` is a Logger. */
export interface Logger {
  info?(message: string, facts?: Record<string, unknown>): void;
  warn?(message: string, facts?: Record<string, unknown>): void;
}

const nothing = () => undefined;

type Write = (message: string, facts?: Record<string, unknown>) => unknown;

/**
 * Returns a logger with both levels; the default passes warnings to the console, one line each.
 * Exceptions and rejections of the given logger are ignored.
 */
export function toLogger(logger: Logger | undefined): Required<Logger> {
  if (logger === undefined) {
    return { info: nothing, warn: quiet((message, facts) => console.warn(line(message, facts))) };
  }
  return { info: quiet(logger.info?.bind(logger)), warn: quiet(logger.warn?.bind(logger)) };
}

function quiet(write: Write | undefined): (message: string, facts?: Record<string, unknown>) => void {
  return (message, facts) => {
    try {
      const written = write?.(message, facts);
      if (written instanceof Promise) {
        written.catch(nothing);
      }
    } catch { // a job's outcome does not depend on its log
    }
  };
}

function line(message: string, facts: Record<string, unknown> = {}): string {
  const pairs = Object.entries(facts).map(([name, value]) => `${name}=${value instanceof Error ? JSON.stringify(value.message) : String(value)}`);
  return ["yardmaster:", message, ...pairs].join(" ");
}
