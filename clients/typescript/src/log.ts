/** Where messages for people go. `console` is a Logger. */
export interface Logger {
  info?(message: string, facts?: Record<string, unknown>): void;
  warn?(message: string, facts?: Record<string, unknown>): void;
  error?(message: string, facts?: Record<string, unknown>): void;
}

const nothing = () => undefined;

/** Returns a logger with all levels; the default passes warnings and errors to the console. */
export function toLogger(logger: Logger | undefined): Required<Logger> {
  if (logger === undefined) {
    return { info: nothing, warn: (message, facts) => console.warn(message, facts), error: (message, facts) => console.error(message, facts) };
  }
  return {
    info: logger.info?.bind(logger) ?? nothing,
    warn: logger.warn?.bind(logger) ?? nothing,
    error: logger.error?.bind(logger) ?? nothing,
  };
}
