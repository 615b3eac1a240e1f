/** Checks of what callers give: each returns the value as it is sent, or throws a RangeError or TypeError with what is allowed. */

const MAX_COUNT = 2 ** 32 - 1;
const MAX_DURATION = 3650 * 24 * 3600 * 1000; // milliseconds
const MAX_NAME = 128; // bytes of the name of a queue, and of a key

const QUEUE_NAME = /^[A-Za-z0-9][A-Za-z0-9_-]*$/;

/** Returns a date as RFC 3339 text; text is checked and returned unchanged. */
export function timeText(name: string, time: Date | string): string {
  if (typeof time === "string") {
    if (!/^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)$/.test(time)) {
      throw new RangeError(`${name} is ${JSON.stringify(time)}, must be a date or RFC 3339 text with its zone`);
    }
    return time;
  }
  if (Number.isNaN(time.getTime())) {
    throw new RangeError(`${name} is not a valid date`);
  }
  return time.toISOString();
}

/** Checks an integer. */
export function integer<N extends number | null | undefined>(name: string, value: N, least: number, most = MAX_COUNT): N {
  if (value != null && !(Number.isInteger(value) && value >= least && value <= most)) {
    throw new RangeError(`${name} is ${value}, must be an integer from ${least} to ${most}`);
  }
  return value;
}

/** Checks a time in milliseconds and returns it as an integer. */
export function duration(name: string, value: number, least: number): number;
export function duration(name: string, value: number | undefined, least: number): number | undefined;
export function duration(name: string, value: number | undefined, least: number): number | undefined {
  if (value === undefined) {
    return undefined;
  }
  const rounded = Math.round(value);
  if (typeof value !== "number" || !(rounded >= least && rounded <= MAX_DURATION)) {
    throw new RangeError(`${name} is ${value}, must be ${least} to ${MAX_DURATION} milliseconds`);
  }
  return rounded;
}

/** Checks the name of a queue for jobs of users. */
export function queueName(name: string): string {
  if (typeof name !== "string" || !QUEUE_NAME.test(name) || name.length > MAX_NAME) {
    throw new RangeError(`queue name ${JSON.stringify(name)} must have 1 to ${MAX_NAME} letters, digits, "_" and "-", and begin with a letter or digit`);
  }
  return name;
}

/** Checks a text by its bytes. */
export function text(name: string, value: string | undefined, most: number, least = 1): string | undefined {
  if (value === undefined) {
    return undefined;
  }
  if (typeof value !== "string") {
    throw new TypeError(`${name} is ${JSON.stringify(value)}, must be a string`);
  }
  const size = Buffer.byteLength(value);
  if (size < least || size > most) {
    throw new RangeError(`${name} has ${size} bytes, must have ${least} to ${most}`);
  }
  return value;
}

/** Checks a key, which must not be blank. */
export function key(name: string, value: string | undefined): string | undefined {
  if (typeof value === "string" && value.trim() === "") {
    throw new RangeError(`${name} is ${JSON.stringify(value)}: leave it out, or give a text that is not blank`);
  }
  return text(name, value, MAX_NAME);
}

/** Checks the key under which a job uses a limit. */
export function limitKey(name: string, value: string | undefined): string | undefined {
  if (/\p{Cc}/u.test(text(name, value, MAX_NAME, 0) ?? "")) {
    throw new RangeError(`${name} is ${JSON.stringify(value)}, must have no control characters`);
  }
  return value;
}

/** Checks the keys of limits by their names. */
export function limits(value: Readonly<Record<string, string>> | undefined): Record<string, string> | undefined {
  const checked = texts("limits", value, { count: 8, name: 64, value: MAX_NAME });
  for (const [name, usedKey] of Object.entries(checked ?? {})) {
    if (!QUEUE_NAME.test(name)) {
      throw new RangeError(`limits has the name ${JSON.stringify(name)}, must be letters, digits, "_" and "-", and begin with a letter or digit`);
    }
    limitKey(`limits.${name}`, usedKey);
  }
  return checked;
}

/** Checks the tags of a job. */
export function tags(value: readonly string[] | undefined): string[] | undefined {
  if (value === undefined) {
    return undefined;
  }
  if (!Array.isArray(value) || value.length > 20) {
    throw new RangeError(`tags is ${JSON.stringify(value)}, must be an array of at most 20 strings`);
  }
  return value.map((tag, number) => text(`tags[${number}]`, tag ?? "", 64) as string);
}

/** Checks texts by their names: how many there are, and their bytes. */
export function texts(
  what: string, value: Readonly<Record<string, string>> | undefined, most: { count: number; name: number; value: number },
): Record<string, string> | undefined {
  if (value === undefined) {
    return undefined;
  }
  const entries = typeof value === "object" && value !== null ? Object.entries(value) : [];
  if (typeof value !== "object" || value === null || entries.length > most.count) {
    throw new RangeError(`${what} is ${JSON.stringify(value)}, must be an object with at most ${most.count} strings`);
  }
  for (const [name, content] of entries) {
    text(`a name in ${what}`, name, most.name);
    if (typeof content !== "string") {
      throw new TypeError(`${what}.${name} is ${String(content)}, must be a string`);
    }
    text(`${what}.${name}`, content, most.value, 0);
  }
  return { ...value };
}
