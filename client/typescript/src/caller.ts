/** Calls of RPCs with headers, deadline, request id and retries: the base of all operations. */

import type {
  DescMessage,
  DescMethod,
  DescMethodStreaming,
  DescMethodUnary,
  Message,
} from "@bufbuild/protobuf";
import type { Transport } from "@connectrpc/connect";
import {
  type MethodName,
  methodOf,
  onlyReads,
  type RequestOf,
  type ResponseOf,
} from "./contract.js";
import { CallError } from "./errors.js";
import { toCallError } from "./failure.js";
import {
  type CallOptions,
  type ClientOptions,
  DEFAULT_RETRIES,
  requestHeaders,
} from "./options.js";
import { decode, decodeEvent, encode, newId } from "./values.js";

// Bounds of the delay before a retry without `RetryInfo`. Each delay is twice the one before.
const MIN_RETRY_DELAY_SEC = 0.1;
const MAX_RETRY_DELAY_SEC = 2;

/** Incremental SHA-256. Browsers have none. */
export interface Digest {
  update(data: Uint8Array): void;
  hex(): string;
}

/** What a client needs of its environment. A client shares it with its copies. */
export interface Connection {
  readonly address: string;
  readonly transport: Transport;
  readonly newDigest?: () => Digest;
  close(): Promise<void>;
}

/** The attempts of one call: its request id, its deadline and the delays between them. */
export class Attempts {
  readonly #options: ClientOptions;
  readonly #signal: AbortSignal | undefined;
  readonly #end: number | undefined;
  readonly #requestId: string | undefined;
  #count = 0;

  constructor(client: ClientOptions, call: CallOptions, method: DescMethod) {
    const deadlineSec = call.deadlineSec ?? client.deadlineSec;
    const requestId = call.requestId || client.requestId;
    this.#options = { ...client, deadlineSec };
    this.#signal = call.signal;
    this.#end = deadlineSec && performance.now() + deadlineSec * 1000;
    if (!onlyReads(method)) {
      this.#requestId = requestId || (this.#retries > 0 ? newId() : undefined);
    }
    this.headers();
  }

  get #retries(): number {
    return this.#options.retries ?? DEFAULT_RETRIES;
  }

  /** The headers of an attempt. */
  headers(): Headers {
    return requestHeaders({ ...this.#options, requestId: this.#requestId });
  }

  /** Milliseconds until the deadline. Undefined without one. */
  remainingMs(): number | undefined {
    return this.#end && Math.max(Math.ceil(this.#end - performance.now()), 1);
  }

  /** Starts to count retries anew, after an attempt that had an effect. */
  progress(): void {
    this.#count = 0;
  }

  /** Waits before the next attempt of a method. Throws the error if there must be none. */
  async beforeRetry(cause: unknown, method: DescMethod): Promise<void> {
    this.#signal?.throwIfAborted();
    const error = cause instanceof CallError ? cause : toCallError(cause);
    const delaySec = retryDelaySec(error, this.#count);
    const isSafe = onlyReads(method) || this.#requestId !== undefined;
    if (delaySec === undefined || !isSafe || this.#count >= this.#retries) {
      throw error;
    }
    const remainingMs = this.remainingMs();
    if (remainingMs !== undefined && delaySec * 1000 >= remainingMs) {
      throw error;
    }
    this.#count += 1;
    await sleep(delaySec, this.#signal);
  }
}

/** Seconds to wait before a retry. Undefined if a retry does not help. */
export function retryDelaySec(error: CallError, attempt: number): number | undefined {
  if (error.retryDelaySec !== undefined) {
    // Clients that were rejected together do not come back together.
    return error.retryDelaySec * (1 + Math.random() * 0.2);
  }
  if (error.code === "UNAVAILABLE" && (error.reason === "" || error.reason === "DRAINING")) {
    const delay = Math.min(MIN_RETRY_DELAY_SEC * 2 ** attempt, MAX_RETRY_DELAY_SEC);
    return delay * (0.5 + Math.random() * 0.5);
  }
  return undefined;
}

/** Calls RPCs. Operations use it. */
export class Caller {
  readonly connection: Connection;
  readonly options: ClientOptions;

  constructor(connection: Connection, options: ClientOptions) {
    requestHeaders(options);
    this.connection = connection;
    this.options = options;
  }

  /** Returns a caller with other options and the same connection. */
  with(changes: ClientOptions): Caller {
    return new Caller(this.connection, { ...this.options, ...changes });
  }

  /** Calls an RPC, with retries. */
  async call<M extends MethodName>(
    name: M,
    request: RequestOf<M>,
    options: CallOptions = {},
  ): Promise<ResponseOf<M>> {
    const method = methodOf(name) as DescMethodUnary;
    const message = encode(method.input, request);
    const attempts = new Attempts(this.options, options, method);
    for (;;) {
      options.signal?.throwIfAborted();
      try {
        const response = await this.connection.transport.unary(
          method,
          options.signal,
          attempts.remainingMs(),
          attempts.headers(),
          message,
        );
        return decode(method.output, response.message) as ResponseOf<M>;
      } catch (error) {
        await attempts.beforeRetry(error, method);
      }
    }
  }

  /**
   * Streams the messages of an RPC, without those that keep it alive.
   *
   * If the stream is interrupted, it continues with the RPC and request that `position` then
   * returns.
   */
  async *stream<M extends MethodName>(
    position: () => [M, RequestOf<M>],
    options: CallOptions = {},
  ): AsyncGenerator<ResponseOf<M>, void, undefined> {
    let [name, request] = position();
    const attempts = new Attempts(this.options, options, methodOf(name));
    for (;;) {
      const method = methodOf(name) as DescMethodStreaming;
      const closing = new AbortController();
      const signals = [closing.signal, ...(options.signal ? [options.signal] : [])];
      try {
        options.signal?.throwIfAborted();
        const response = await this.connection.transport.stream(
          method,
          AbortSignal.any(signals),
          attempts.remainingMs(),
          attempts.headers(),
          only(encode(method.input, request)),
        );
        for await (const message of response.message) {
          attempts.progress();
          const event = decodeEvent(method.output, message);
          if (event !== undefined) {
            yield event as ResponseOf<M>;
          }
        }
        return;
      } catch (error) {
        await attempts.beforeRetry(error, method);
      } finally {
        closing.abort();
      }
      [name, request] = position();
    }
  }

  /** Sends a stream of messages. Returns the response, without retries. */
  async send(
    name: MethodName,
    attempts: Attempts,
    messages: AsyncIterable<object>,
    options: CallOptions,
  ): Promise<object> {
    const method = methodOf(name) as DescMethodStreaming<DescMessage, DescMessage>;
    const response = await this.connection.transport.stream(
      method,
      options.signal,
      attempts.remainingMs(),
      attempts.headers(),
      messages as AsyncIterable<never>,
    );
    let last: Message | undefined;
    for await (const message of response.message) {
      last = message;
    }
    return decode(method.output, last as Message);
  }

  /** Calls an RPC for each of its pages. Returns the elements of all pages. */
  async pages<M extends MethodName, T>(
    name: M,
    request: RequestOf<M>,
    items: (page: ResponseOf<M>) => readonly T[],
    options: CallOptions = {},
  ): Promise<T[]> {
    const elements: T[] = [];
    let pageToken = "";
    do {
      const page = await this.call(name, { ...request, pageToken }, options);
      elements.push(...items(page));
      pageToken = (page as { nextPageToken: string }).nextPageToken;
    } while (pageToken);
    return elements;
  }
}

async function* only<T>(message: T): AsyncGenerator<T> {
  yield message;
}

/** Waits. Throws the reason of the signal when it aborts. */
export async function sleep(seconds: number, signal?: AbortSignal): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    const onAbort = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", onAbort);
      resolve();
    }, seconds * 1000);
    signal?.addEventListener("abort", onAbort, { once: true });
  });
}
