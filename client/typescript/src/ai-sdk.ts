/**
 * Sandbox sessions of the Vercel AI SDK: files and commands of a workspace.
 *
 *     import { sandboxSession } from "jig-client/ai-sdk";
 *
 *     const result = await generateText({ …, experimental_sandbox: sandboxSession(client) });
 *
 * `Experimental_SandboxSession` is the interface of `@ai-sdk/provider-utils` 5.
 */

import type {
  Experimental_SandboxDirectoryEntry as SandboxEntry,
  Experimental_WritableSandboxProcess as SandboxProcess,
  Experimental_SandboxSession as SandboxSession,
  Experimental_SandboxSpawnOptions as SpawnOptions,
} from "@ai-sdk/provider-utils";
import type { StartOptions } from "./commands.js";
import { CallError } from "./errors.js";
import type { FileType, ProcessExited } from "./gen/messages.js";
import type { Client } from "./index.js";
import type { Process } from "./process.js";
import { concatenate } from "./values.js";

// Output of a stream that is not read. More makes the command wait.
const MAX_UNREAD_BYTES = 16 << 20;

/** Options of `sandboxSession`. */
export interface SandboxOptions {
  /** Text for the instructions of the agent. By default, it names the working directory. */
  description?: string;
  /** Directory in which commands start, and to which paths are relative. */
  workingDirectory?: string;
  /** Seconds after which a command is killed, rounded up. By default, none. */
  timeoutSec?: number;
}

/** Makes a sandbox session of a client: its workspace, and commands in sandboxes of their own. */
export function sandboxSession(client: Client, options: SandboxOptions = {}): SandboxSession {
  const { workingDirectory = "." } = options;
  const place = workingDirectory === "." ? "the root of the workspace" : `\`${workingDirectory}\``;
  const description =
    options.description ??
    `Each command runs in a Linux sandbox of its own with /bin/sh, and starts in ${place}. Files of the workspace stay.`;
  const resolve = (path: string) =>
    path.startsWith("/") || workingDirectory === "." ? path : `${workingDirectory}/${path}`;

  const spawn = async (request: SpawnOptions): Promise<SpawnedProcess> => {
    const { command, env, abortSignal } = request;
    abortSignal?.throwIfAborted();
    const start: StartOptions = {
      cwd: request.workingDirectory ? resolve(request.workingDirectory) : workingDirectory,
      env,
      stdinOpen: request.stdin === true,
      timeoutSec: options.timeoutSec && Math.ceil(options.timeoutSec),
      signal: abortSignal,
    };
    return new SpawnedProcess(await client.start(command, start), start);
  };

  const readBinaryFile: SandboxSession["readBinaryFile"] = async ({ path, abortSignal }) =>
    nullIfAbsent(client.readBytes(resolve(path), { signal: abortSignal }));

  const writeBinaryFile: SandboxSession["writeBinaryFile"] = async (request) => {
    await client.upload(request.content, resolve(request.path), { signal: request.abortSignal });
  };

  return {
    description,
    spawn,
    readBinaryFile,
    writeBinaryFile,

    async readFile({ path, abortSignal }) {
      const chunks = client.readChunks(resolve(path), { signal: abortSignal });
      // An absent file is known before the first chunk.
      const first = await nullIfAbsent(chunks.next());
      return first && toStream(first, chunks);
    },

    async readTextFile({ path, encoding = "utf-8", startLine = 1, endLine, abortSignal }) {
      const content = await readBinaryFile({ path, ...(abortSignal && { abortSignal }) });
      if (content === null) {
        return null;
      }
      const text = new TextDecoder(encoding).decode(content);
      return startLine === 1 && endLine === undefined ? text : linesOf(text, startLine, endLine);
    },

    async writeFile({ path, content, abortSignal }) {
      await client.upload(iterate(content), resolve(path), { signal: abortSignal });
    },

    async writeTextFile({ path, content, encoding = "utf-8", abortSignal }) {
      const bytes = Buffer.from(content, toBufferEncoding(encoding));
      await writeBinaryFile({ path, content: bytes, ...(abortSignal && { abortSignal }) });
    },

    async stat({ path, abortSignal }) {
      const found = await nullIfAbsent(client.stat(resolve(path), { signal: abortSignal }));
      if (found === null) {
        return null;
      }
      const type = toEntryType(found.type);
      if (type === "symlink") {
        throw new Error(`"${path}" is a symbolic link: give the path that it leads to`);
      }
      return { type, size: found.sizeBytes };
    },

    async listDirectory({ path, abortSignal }) {
      try {
        const { entries } = await client.listDir(resolve(path), { signal: abortSignal });
        return entries.map(({ name, type }) => ({ name, type: toEntryType(type) }));
      } catch (error) {
        if (error instanceof CallError && error.reason === "DIRECTORY_NOT_FOUND") {
          return null;
        }
        throw error;
      }
    },

    async deleteFile({ path, abortSignal }) {
      const options = { signal: abortSignal };
      const found = await nullIfAbsent(client.stat(resolve(path), options));
      if (found === null) {
        return false;
      }
      // An empty directory would be deleted too.
      if (found.type === "DIRECTORY") {
        throw new Error(`"${path}" is a directory, not a file`);
      }
      return (await nullIfAbsent(client.deletePath(resolve(path), options))) !== null;
    },

    async run(request) {
      const process = await spawn(request);
      const [stdout, stderr, { exitCode }] = await Promise.all([
        readText(process.stdout),
        readText(process.stderr),
        process.wait(),
      ]);
      return { exitCode, stdout, stderr };
    },
  };
}

/** A command, with a stream for its input and each of its outputs. */
class SpawnedProcess implements SandboxProcess {
  readonly stdout: ReadableStream<Uint8Array>;
  readonly stderr: ReadableStream<Uint8Array>;
  // Absent unless it was requested.
  declare readonly stdin: WritableStream<Uint8Array>;
  readonly #process: Process;
  readonly #signal: AbortSignal | undefined;
  readonly #ended: Promise<{ exitCode: number }>;
  readonly #outlets = { stdout: new Outlet(), stderr: new Outlet() };

  constructor(process: Process, { signal, stdinOpen }: StartOptions) {
    this.#process = process;
    this.#signal = signal;
    this.stdout = this.#outlets.stdout.stream;
    this.stderr = this.#outlets.stderr.stream;
    if (stdinOpen) {
      const close = () => unlessEnded(process.closeStdin());
      this.stdin = new WritableStream({
        write: (data) => process.write(data),
        close,
        abort: close,
      });
    }
    this.#ended = this.#pump();
    // A caller that does not wait gets the error from the streams.
    this.#ended.catch(() => undefined);
  }

  async #pump(): Promise<{ exitCode: number }> {
    const outlets = this.#outlets;
    let exited: ProcessExited | undefined;
    try {
      for await (const event of this.#process) {
        if (event.kind === "stdout" || event.kind === "stderr") {
          await outlets[event.kind].write(event.data);
        } else if (event.kind === "exited") {
          exited = event;
        }
      }
      this.#signal?.throwIfAborted();
      outlets.stdout.close();
      outlets.stderr.close();
    } catch (error) {
      outlets.stdout.fail(error);
      outlets.stderr.fail(error);
      throw error;
    }
    // 125 says that the end of the command is unknown.
    return { exitCode: exited?.shellExitCode ?? 125 };
  }

  wait(): Promise<{ exitCode: number }> {
    return this.#ended;
  }

  async kill(): Promise<void> {
    // Output that is not read must not keep the end from being reported.
    this.#outlets.stdout.release();
    this.#outlets.stderr.release();
    await unlessEnded(this.#process.sendSignal("SIGKILL"));
  }
}

/** A stream of bytes that makes its writer wait for its reader. A cancelled one drops bytes. */
class Outlet {
  readonly stream: ReadableStream<Uint8Array>;
  #controller!: ReadableStreamDefaultController<Uint8Array>;
  #wake: (() => void) | undefined;
  #isCancelled = false;
  #isReleased = false;

  constructor() {
    this.stream = new ReadableStream<Uint8Array>(
      {
        start: (controller) => {
          this.#controller = controller;
        },
        pull: () => this.#wake?.(),
        cancel: () => {
          this.#isCancelled = true;
          this.release();
        },
      },
      new ByteLengthQueuingStrategy({ highWaterMark: MAX_UNREAD_BYTES }),
    );
  }

  async write(data: Uint8Array): Promise<void> {
    if (!this.#isCancelled) {
      this.#controller.enqueue(data);
    }
    while (!this.#isReleased && (this.#controller.desiredSize ?? 1) <= 0) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }

  /** Lets the writer continue, whether the bytes are read or not. */
  release(): void {
    this.#isReleased = true;
    this.#wake?.();
  }

  close(): void {
    if (!this.#isCancelled) {
      this.#controller.close();
    }
  }

  fail(error: unknown): void {
    if (!this.#isCancelled) {
      this.#controller.error(error);
    }
  }
}

/** Waits for a request to a process, which may have ended before it. */
async function unlessEnded(request: Promise<void>): Promise<void> {
  try {
    await request;
  } catch (error) {
    const ended = ["PROCESS_ENDED", "PROCESS_NOT_FOUND", "STDIN_CLOSED"];
    if (!(error instanceof CallError && ended.includes(error.reason))) {
      throw error;
    }
  }
}

async function nullIfAbsent<T>(result: Promise<T>): Promise<T | null> {
  try {
    return await result;
  } catch (error) {
    const absent = ["FILE_NOT_FOUND", "NOT_A_DIRECTORY"];
    if (error instanceof CallError && absent.includes(error.reason)) {
      return null;
    }
    throw error;
  }
}

function toEntryType(type: FileType | undefined): SandboxEntry["type"] {
  switch (type) {
    case "FILE":
      return "file";
    case "DIRECTORY":
      return "directory";
    case "SYMLINK":
      return "symlink";
    default:
      return "other";
  }
}

function toStream(
  first: IteratorResult<Uint8Array, void>,
  rest: AsyncGenerator<Uint8Array, void>,
): ReadableStream<Uint8Array> {
  let next: IteratorResult<Uint8Array, void> | undefined = first;
  return new ReadableStream<Uint8Array>({
    async pull(controller) {
      const item = next ?? (await rest.next());
      next = undefined;
      if (item.done) {
        controller.close();
      } else {
        controller.enqueue(item.value);
      }
    },
    async cancel() {
      await rest.return();
    },
  });
}

async function* iterate(stream: ReadableStream<Uint8Array>): AsyncGenerator<Uint8Array> {
  const reader = stream.getReader();
  try {
    for (let item = await reader.read(); !item.done; item = await reader.read()) {
      yield item.value;
    }
  } finally {
    await reader.cancel();
  }
}

async function readText(stream: ReadableStream<Uint8Array>): Promise<string> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of iterate(stream)) {
    chunks.push(chunk);
  }
  return new TextDecoder().decode(concatenate(chunks));
}

/** Lines of a text, counted from 1, with their ends. */
function linesOf(text: string, startLine: number, endLine?: number): string {
  const lines = text.split(/(?<=\n)/);
  return lines.slice(Math.max(startLine, 1) - 1, endLine).join("");
}

function toBufferEncoding(encoding: string): BufferEncoding {
  const name = encoding.toLowerCase();
  if (!Buffer.isEncoding(name)) {
    throw new TypeError(`the encoding ${encoding} is unknown`);
  }
  return name;
}
