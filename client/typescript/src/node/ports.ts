/** Connections to ports of processes. */

import { Duplex } from "node:stream";
import { create, type DescMessage, type DescMethodStreaming } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { Attempts } from "../caller.js";
import { methodOf } from "../contract.js";
import { Unavailable } from "../errors.js";
import { toCallError } from "../failure.js";
import {
  type ForwardPortRequest,
  ForwardPortRequestSchema,
  type ForwardPortResponse,
  ForwardPortStartSchema,
} from "../gen/jig/v1/process_service_pb.js";
import { type CallOptions, splitOptions } from "../options.js";
import { encode } from "../values.js";
import { TreeOperations } from "./trees.js";

const MAX_DATA_BYTES = 1 << 20;

/** Connects to servers in sandboxes. */
export class PortOperations extends TreeOperations {
  /**
   * Connects to a TCP port of a process, in the network of its run.
   *
   * The stream is like a socket. It ends when the server ends its output, `end` ends that of this
   * side, and `destroy` resets the connection. A failure, such as `ConnectionReset` or
   * `ProcessEnded`, destroys it with an error. If the daemon is lost, or the client closed, after
   * both directions have ended, there is an error only for those who listen for it.
   *
   * `deadlineSec` bounds the attempt. `signal` also ends an open connection.
   *
   * Throws `PortRefused` if nothing listens, `ProcessNotFound`, `ProcessEnded` or
   * `ForwardingUnavailable`.
   */
  async connectPort(
    processId: string,
    port: number,
    options: CallOptions = {},
  ): Promise<PortStream> {
    const [call] = splitOptions(options);
    const method = methodOf("ForwardPort") as DescMethodStreaming<DescMessage, DescMessage>;
    const start = encode(ForwardPortStartSchema, { processId, port });
    const attempts = new Attempts(this.caller.options, call, method);
    for (;;) {
      call.signal?.throwIfAborted();
      const stream = new PortStream(call.signal);
      try {
        await stream.open(attempts.remainingMs(), (signal) =>
          this.caller.connection.transport.stream(
            method,
            signal,
            undefined,
            attempts.headers(),
            stream.requests(start as never) as AsyncIterable<never>,
          ),
        );
        return stream;
      } catch (error) {
        stream.destroy();
        await attempts.beforeRetry(error, method);
      }
    }
  }
}

interface Call {
  readonly message: AsyncIterable<object>;
}

/** Bytes to send, or the end of all. `done` says that the call has taken them. */
interface Output {
  readonly data?: Uint8Array;
  readonly done: () => void;
}

/** A connection to a port of a process. */
export class PortStream extends Duplex {
  readonly #closing = new AbortController();
  readonly #signal: AbortSignal | undefined;
  #output = Promise.withResolvers<Output>();
  #received: Promise<void> = Promise.resolve();
  #isComplete = false;
  #isEndSent = false;
  #isUnbounded = false;
  #resume: () => void = () => {};

  /** @internal */
  constructor(signal: AbortSignal | undefined) {
    super();
    this.#signal = signal;
  }

  /** @internal */
  async open(timeoutMs: number | undefined, call: (signal: AbortSignal) => Promise<Call>) {
    const timeout = new ConnectError("the deadline has passed", Code.DeadlineExceeded);
    const timer = timeoutMs && setTimeout(() => this.#closing.abort(timeout), timeoutMs);
    const signals = [this.#closing.signal, ...(this.#signal ? [this.#signal] : [])];
    try {
      const { message } = await call(AbortSignal.any(signals));
      const responses = message[Symbol.asyncIterator]() as AsyncIterator<ForwardPortResponse>;
      // The first message says that the connection exists.
      await responses.next();
      this.#received = this.#receive(responses);
      this.#received.catch((error) => this.#fail(error));
    } catch (error) {
      throw this.#closing.signal.aborted ? timeout : error;
    } finally {
      clearTimeout(timer);
    }
  }

  /** @internal */
  async *requests(start: never): AsyncGenerator<ForwardPortRequest> {
    let isCut = true;
    try {
      yield create(ForwardPortRequestSchema, { part: { case: "start", value: start } });
      for (;;) {
        const { data, done } = await this.#output.promise;
        this.#output = Promise.withResolvers();
        if (data === undefined) {
          this.#isEndSent = true;
          yield create(ForwardPortRequestSchema, { part: { case: "endOfData", value: {} } });
          isCut = false;
          done();
          return;
        }
        for (let offset = 0; offset < data.length; offset += MAX_DATA_BYTES) {
          const value = data.subarray(offset, offset + MAX_DATA_BYTES) as never;
          yield create(ForwardPortRequestSchema, { part: { case: "data", value } });
        }
        done();
      }
    } finally {
      // The call has ended. Its error comes after the last data.
      if (isCut) {
        this.#isUnbounded = true;
        this.#resume();
      }
    }
  }

  override _read(): void {
    this.#resume();
  }

  override _write(data: Uint8Array, _encoding: string, done: () => void): void {
    this.#output.resolve({ data, done });
  }

  override _final(done: () => void): void {
    // When both directions have ended, the call ends.
    const end = () => {
      if (this.readableEnded) {
        this.#received.then(done, () => {});
      } else {
        done();
      }
    };
    this.#output.resolve({ done: end });
  }

  override _destroy(error: Error | null, done: (error: Error | null) => void): void {
    if (!this.readableEnded || !this.writableFinished) {
      this.#closing.abort();
    }
    this.#resume();
    done(error);
  }

  async #receive(responses: AsyncIterator<ForwardPortResponse>): Promise<void> {
    for (;;) {
      const { done, value } = await responses.next();
      if (done) {
        if (!this.#isComplete) {
          throw new ConnectError("the call ended before the data", Code.Unavailable);
        }
        return;
      }
      if (value.part.case === "endOfData") {
        this.#isComplete = true;
        this.push(null);
      } else if (value.part.case === "data" && !this.push(value.part.value) && !this.#isUnbounded) {
        await new Promise<void>((resume) => {
          this.#resume = resume;
        });
      }
    }
  }

  #fail(cause: unknown): void {
    const error = this.#signal?.aborted ? this.#signal.reason : toCallError(cause);
    if (this.#isComplete && !this.readableEnded) {
      // The data can still be read.
      this.once("end", () => this.#fail(cause));
    } else {
      const isLate = this.#isComplete && this.#isEndSent && error instanceof Unavailable;
      const isUnheard = isLate && this.listenerCount("error") === 0;
      this.destroy(isUnheard ? undefined : error);
    }
  }
}
