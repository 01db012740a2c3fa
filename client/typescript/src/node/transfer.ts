/** Operations that copy files of any size into and out of the workspace. */

import { createHash, randomUUID } from "node:crypto";
import { type FileHandle, mkdtemp, open, rename, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { create } from "@bufbuild/protobuf";
import { Attempts, type Caller } from "../caller.js";
import { Operations } from "../client.js";
import { methodOf } from "../contract.js";
import { CallError } from "../errors.js";
import { UploadRequestSchema, UploadStartSchema } from "../gen/jig/v1/transfer_service_pb.js";
import type { DownloadResponse, UploadResponse, UploadStart } from "../gen/messages.js";
import { type CallOptions, splitOptions } from "../options.js";
import { encode, newId } from "../values.js";

// The daemon keeps whole chunks of an upload that is interrupted.
const CHUNK_BYTES = 128 << 10;
// A longer upload cannot be resumed.
const MAX_RESUMABLE_BYTES = 64 * 2 ** 30;

/** What an upload reads: the path of a local file, bytes, or chunks of bytes. */
export type UploadSource = string | Uint8Array | AsyncIterable<Uint8Array>;

/** Options of `upload`. */
export type UploadOptions = Partial<
  Pick<UploadStart, "mode" | "createDirectories" | "expectedSha256" | "fileMode">
> &
  CallOptions;

/** Copies files. A copy continues after a lost connection. */
export class TransferOperations extends Operations {
  /**
   * Writes a file of the workspace atomically, of any size.
   *
   * `source` is the path of a local file, bytes, or a stream, which is copied to a temporary file
   * first. The options are those of `writeFile`; `APPEND` is not possible.
   *
   * Throws `FileExists`, `StaleFile`, `NotAFile`, `PolicyDenied` or `NoSpace`.
   */
  async upload(
    source: UploadSource,
    path: string,
    options: UploadOptions = {},
  ): Promise<UploadResponse> {
    const [call, fields] = splitOptions(options);
    const content = await openSource(source);
    try {
      const { size, sha256 } = await measure(content);
      const uploadId = size <= MAX_RESUMABLE_BYTES ? newId() : undefined;
      const start = { path, ...fields, sizeBytes: size, sha256, uploadId };
      return await uploadContent(this.caller, content, start, call);
    } finally {
      await content.close();
    }
  }

  /**
   * Copies a file of the workspace to a local path, atomically.
   *
   * Returns the description of the file: `sizeBytes`, `mode`, `modifyTime`, `version`. Its `data`
   * is empty.
   *
   * Throws `FileNotFound`, `NotAFile`, or `StaleFile` if the file changed during the copy.
   */
  async download(
    path: string,
    destination: string,
    options: CallOptions = {},
  ): Promise<DownloadResponse> {
    const temporary = join(dirname(destination), `.jig-${randomUUID()}`);
    // A local file has the permissions of the umask, and the executable bits.
    let file: FileHandle | undefined;
    let last: DownloadResponse | undefined;
    try {
      for await (const message of this.downloadMessages(path, options)) {
        file ??= await open(temporary, "wx", 0o666 | (message.mode & 0o111));
        await file.writeFile(message.data);
        last = message;
      }
      await file?.close();
      await rename(temporary, destination);
    } catch (error) {
      await file?.close().catch(() => undefined);
      await rm(temporary, { force: true });
      throw error;
    }
    return { ...(last as DownloadResponse), data: new Uint8Array() };
  }
}

/** Sends a content, again after an interruption from where the daemon has it. */
async function uploadContent(
  caller: Caller,
  content: Content,
  start: Partial<Record<keyof UploadStart, unknown>>,
  call: CallOptions,
): Promise<UploadResponse> {
  const method = methodOf("Upload");
  const attempts = new Attempts(caller.options, call, method);
  let offset = 0;
  for (;;) {
    call.signal?.throwIfAborted();
    const reading = new Reading(content);
    try {
      const messages = uploadMessages(reading, start, offset);
      return (await caller.send("Upload", attempts, messages, call)) as UploadResponse;
    } catch (error) {
      if (reading.error !== undefined) {
        throw reading.error;
      }
      await attempts.beforeRetry(error, method);
    }
    const previous = offset;
    offset = await uploadOffset(caller, start.uploadId as string | undefined, call);
    if (offset > previous) {
      attempts.progress();
    }
  }
}

/** Returns the number of bytes that the daemon has of an upload. */
async function uploadOffset(
  caller: Caller,
  uploadId: string | undefined,
  call: CallOptions,
): Promise<number> {
  if (uploadId === undefined) {
    return 0;
  }
  try {
    return (await caller.call("GetUpload", { uploadId }, call)).offset;
  } catch (error) {
    if (error instanceof CallError && error.reason === "UPLOAD_NOT_FOUND") {
      return 0;
    }
    throw error;
  }
}

/** Bytes that can be read again from any position. */
export interface Content {
  read(offset: number): Promise<Uint8Array>;
  close(): Promise<void>;
}

/** The reads of one attempt. An error of the local file is not one of the call. */
export class Reading {
  error: unknown;
  readonly #content: Content;

  constructor(content: Content) {
    this.#content = content;
  }

  async read(offset: number): Promise<Uint8Array> {
    try {
      return await this.#content.read(offset);
    } catch (error) {
      this.error = error;
      throw error;
    }
  }
}

async function* uploadMessages(
  reading: Reading,
  start: object,
  first: number,
): AsyncGenerator<object> {
  const value = encode(UploadStartSchema, start);
  yield create(UploadRequestSchema, { part: { case: "start", value: value as never } });
  let offset = first;
  for (;;) {
    const data = await reading.read(offset);
    if (data.length === 0) {
      return;
    }
    const chunk = { offset: BigInt(offset), data };
    yield create(UploadRequestSchema, { part: { case: "chunk", value: chunk } });
    offset += data.length;
  }
}

async function measure(content: Content): Promise<{ size: number; sha256: string }> {
  const hash = createHash("sha256");
  let size = 0;
  for (;;) {
    const data = await content.read(size);
    if (data.length === 0) {
      return { size, sha256: hash.digest("hex") };
    }
    hash.update(data);
    size += data.length;
  }
}

export async function openSource(source: UploadSource): Promise<Content> {
  if (source instanceof Uint8Array) {
    return {
      read: async (offset) => source.subarray(offset, offset + CHUNK_BYTES),
      close: async () => {},
    };
  }
  if (typeof source === "string") {
    return fileContent(await open(source, "r"));
  }
  const directory = await mkdtemp(join(tmpdir(), "jig-"));
  try {
    const file = await open(join(directory, "upload"), "wx+", 0o600);
    // The open file has no name, and ends with its last descriptor.
    await rm(directory, { recursive: true });
    try {
      for await (const chunk of source) {
        await file.writeFile(chunk);
      }
      return fileContent(file);
    } catch (error) {
      await file.close();
      throw error;
    }
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
}

function fileContent(file: FileHandle): Content {
  return {
    read: async (offset) => {
      const buffer = Buffer.allocUnsafe(CHUNK_BYTES);
      const { bytesRead } = await file.read(buffer, 0, CHUNK_BYTES, offset);
      return buffer.subarray(0, bytesRead);
    },
    close: () => file.close(),
  };
}
