/** Processes: commands with live output, standard input, signals and terminals. */

import type { Caller } from "./caller.js";
import { CallError, Unavailable } from "./errors.js";
import type { AttachRequest, ProcessExited, StartRequest, StartResponse } from "./gen/messages.js";
import type { CallOptions } from "./options.js";
import { newId, toBytes } from "./values.js";

const MAX_STDIN_WRITE_BYTES = 1 << 20;

/**
 * What a process reports. `kind` is `started`, `stdout`, `stderr`, `gap` (output that the daemon
 * has dropped) or, last, `exited`.
 */
export type ProcessEvent = StartResponse;

/** How much of the output of a process was received. */
class Position {
  processId = "";
  hasExited = false;
  #sequence = 0;
  readonly #offsets = { stdout: 0, stderr: 0 };

  constructor(request: AttachRequest) {
    this.processId = request.processId ?? "";
    this.#sequence = request.afterSequence ?? 0;
    this.#offsets.stdout = request.stdoutOffset ?? 0;
    this.#offsets.stderr = request.stderrOffset ?? 0;
  }

  advance(event: ProcessEvent): void {
    switch (event.kind) {
      case "started":
        this.processId = event.processId;
        break;
      case "stdout":
      case "stderr":
        this.#sequence = event.sequence;
        this.#offsets[event.kind] = event.offset + event.data.length;
        break;
      case "gap":
        this.#sequence = event.nextSequence - 1;
        this.#offsets.stdout = event.stdoutOffset;
        this.#offsets.stderr = event.stderrOffset;
        break;
      case "exited":
        this.hasExited = true;
    }
  }

  /** The request of `Attach` that continues here. */
  attachRequest(): AttachRequest {
    return {
      processId: this.processId,
      afterSequence: this.#sequence,
      stdoutOffset: this.#offsets.stdout,
      stderrOffset: this.#offsets.stderr,
    };
  }
}

/**
 * Streams the events of a process, over lost connections.
 *
 * With `start`, closing the stream kills the process unless it has `onDisconnect: "KEEP"`.
 */
export async function* processEvents(
  caller: Caller,
  request: { start: StartRequest } | { attach: AttachRequest },
  options: CallOptions,
): AsyncGenerator<ProcessEvent, void, undefined> {
  const position = new Position("attach" in request ? request.attach : {});
  const isOwner = "start" in request && request.start.onDisconnect !== "KEEP";
  let wasStarted = false;
  let hasFailed = false;

  const next = (): ["Start", StartRequest] | ["Attach", AttachRequest] => {
    // Before `started`, a repeated `Start` has the same request id, and so starts nothing new.
    if (position.processId || "attach" in request) {
      return ["Attach", position.attachRequest()];
    }
    return ["Start", request.start];
  };

  try {
    for await (const event of caller.stream<"Start" | "Attach">(next, options)) {
      position.advance(event);
      const isRepeated = event.kind === "started" && wasStarted;
      wasStarted ||= event.kind === "started";
      if (!isRepeated) {
        yield event;
      }
    }
    if (!position.hasExited) {
      throw new Unavailable("the stream of the process ended before the process", {
        code: "UNAVAILABLE",
      });
    }
  } catch (error) {
    hasFailed = !options.signal?.aborted;
    throw error;
  } finally {
    if (isOwner && position.processId && !position.hasExited && !hasFailed) {
      await kill(caller, position.processId);
    }
  }
}

/** Kills a process, which can have ended. */
async function kill(caller: Caller, processId: string): Promise<void> {
  try {
    // The request id of the caller is that of `Start`.
    await caller
      .with({ requestId: undefined })
      .call("SendSignal", { processId, signal: "SIGKILL" });
  } catch (error) {
    const ended = ["PROCESS_ENDED", "PROCESS_NOT_FOUND"];
    if (!(error instanceof CallError && ended.includes(error.reason))) {
      throw error;
    }
  }
}

/**
 * A process. Its events are in a `for await` loop over it, and end with `exited`.
 *
 * Closing it, or the end of its `await using` block, kills it unless it was started with
 * `onDisconnect: "KEEP"` or attached to.
 */
export class Process implements AsyncIterable<ProcessEvent>, AsyncDisposable {
  /** Id of the process for `attach`. Empty if it was killed before its start. */
  readonly processId: string;
  readonly #caller: Caller;
  readonly #closing: AbortController;
  readonly #events: AsyncGenerator<ProcessEvent, void, undefined>;
  #first: ProcessEvent | undefined;
  #exited: ProcessExited | undefined;

  private constructor(
    caller: Caller,
    events: AsyncGenerator<ProcessEvent, void, undefined>,
    closing: AbortController,
    first: ProcessEvent | undefined,
  ) {
    this.#caller = caller.with({ requestId: undefined });
    this.#events = events;
    this.#closing = closing;
    this.processId = first?.kind === "started" ? first.processId : "";
    this.#first = first?.kind === "started" ? undefined : first;
  }

  /** Waits until a command was executed, or killed before. */
  static async open(
    caller: Caller,
    request: { start: StartRequest } | { attach: AttachRequest },
    options: CallOptions,
  ): Promise<Process> {
    const closing = new AbortController();
    const signals = [closing.signal, ...(options.signal ? [options.signal] : [])];
    const signal = AbortSignal.any(signals);
    const events = processEvents(caller, request, { ...options, signal });
    const first = await events.next();
    return new Process(caller, events, closing, first.value ?? undefined);
  }

  /** How the process ended. Undefined before the end of the loop over it. */
  get exited(): ProcessExited | undefined {
    return this.#exited;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<ProcessEvent, void, undefined> {
    for (let event = await this.#next(); event; event = await this.#next()) {
      yield event;
    }
  }

  async #next(): Promise<ProcessEvent | undefined> {
    let event = this.#first;
    this.#first = undefined;
    try {
      event ??= (await this.#events.next()).value ?? undefined;
    } catch (error) {
      // Another task has closed the process.
      if (!this.#closing.signal.aborted) {
        throw error;
      }
    }
    if (event?.kind === "exited") {
      this.#exited = event;
    }
    return event;
  }

  /** Reads the rest of the output, drops it, and returns how the process ended. */
  async wait(): Promise<ProcessExited> {
    for await (const _ of this) {
      // The loop stores the last event.
    }
    if (this.#exited === undefined) {
      throw new Unavailable("the process was closed before its end", { code: "UNAVAILABLE" });
    }
    return this.#exited;
  }

  /**
   * Writes to the standard input. Waits while 1 MiB of it is unread.
   *
   * Throws `StdinClosed` or `ProcessEnded`.
   */
  async write(data: string | Uint8Array, options: CallOptions = {}): Promise<void> {
    const content = toBytes(data);
    for (let start = 0; start < content.length; start += MAX_STDIN_WRITE_BYTES) {
      const part = content.subarray(start, start + MAX_STDIN_WRITE_BYTES);
      const request = { processId: this.processId, data: part, writeId: newId() };
      await this.#caller.call("WriteStdin", request, options);
    }
  }

  /** Closes the standard input. A terminal gets its end-of-file character, Ctrl-D. */
  async closeStdin(options: CallOptions = {}): Promise<void> {
    const request = { processId: this.processId, eof: true, writeId: newId() };
    await this.#caller.call("WriteStdin", request, options);
  }

  /**
   * Sets the size of the terminal, in characters (1 to 65,535).
   *
   * Throws `InvalidParams` (a process without a terminal) or `ProcessEnded`.
   */
  async resize(cols: number, rows: number, options: CallOptions = {}): Promise<void> {
    const request = { processId: this.processId, cols, rows };
    await this.#caller.call("ResizeTerminal", request, options);
  }

  /** Sends a signal, such as `SIGTERM`, to the process group. Throws `ProcessEnded`. */
  async sendSignal(signal: string, options: CallOptions = {}): Promise<void> {
    await this.#caller.call("SendSignal", { processId: this.processId, signal }, options);
  }

  /** Ends the stream of events. A loop in another task then reaches its end. */
  async close(): Promise<void> {
    this.#closing.abort();
    await this.#events.return();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
