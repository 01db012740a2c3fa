/** Options of clients and calls. */

import { ConfigurationError } from "./errors.js";

export const DEFAULT_RETRIES = 5;
/** Elements of a page, of methods that return all pages. */
export const PAGE_SIZE = 1000;

/** Options of a client, in every environment. */
export interface ClientOptions {
  /** API key. */
  key?: string | undefined;
  /** Name of a workspace of the daemon. By default, its first one. */
  workspace?: string | undefined;
  /** Conversation that the calls belong to. By default, `default`. */
  session?: string | undefined;
  /** Maximum duration of a call with its retries, above 0. By default, none. */
  deadlineSec?: number | undefined;
  /**
   * Maximum number of retries of a call. By default, 5.
   *
   * With 0, calls have no request id unless `requestId` is set. A call that is aborted then ends
   * its command at once. With a request id, the command continues for 30 seconds by default.
   */
  retries?: number | undefined;
  /** Idempotency key of the next call that changes something. By default, a new one for each. */
  requestId?: string | undefined;
  /** W3C trace context of the calls. */
  traceparent?: string | undefined;
}

/** Options of one call. They take precedence over those of the client. */
export interface CallOptions {
  /** Aborts the call, which then throws the reason of the signal. */
  signal?: AbortSignal | undefined;
  /** Maximum duration of the call with its retries, above 0. */
  deadlineSec?: number | undefined;
  /** Idempotency key of the call. */
  requestId?: string | undefined;
}

/** Headers that each call carries. Throws `ConfigurationError` for invalid values. */
export function requestHeaders(options: ClientOptions): Headers {
  const { key, deadlineSec } = options;
  if (deadlineSec !== undefined && !(deadlineSec > 0)) {
    throw new ConfigurationError(`the deadline is ${deadlineSec} s; it must be above 0`);
  }
  const values = {
    authorization: key && `Bearer ${key}`,
    "jig-workspace": options.workspace,
    "jig-session": options.session,
    "jig-request-id": options.requestId,
    traceparent: options.traceparent,
  };
  const headers = new Headers();
  for (const [name, value] of Object.entries(values)) {
    if (value && !/^[ -~]*$/.test(value)) {
      throw new ConfigurationError(`the value of ${name} must be printable ASCII`);
    }
    if (value) {
      headers.set(name, value);
    }
  }
  return headers;
}

/** Separates the options of a call from the fields of its request. */
export function splitOptions<T extends CallOptions>(
  options: T,
): [CallOptions, Omit<T, keyof CallOptions>] {
  const { signal, deadlineSec, requestId, ...fields } = options;
  return [{ signal, deadlineSec, requestId }, fields];
}
