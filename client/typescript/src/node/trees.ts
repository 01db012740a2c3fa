/** Operations that copy directories into and out of the workspace, as tar archives. */

import { createHash, randomUUID } from "node:crypto";
import { type FileHandle, open, rename, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { create } from "@bufbuild/protobuf";
import { Attempts, type Caller } from "../caller.js";
import { methodOf } from "../contract.js";
import { CallError } from "../errors.js";
import {
  UploadTreeRequestSchema,
  UploadTreeStartSchema,
} from "../gen/jig/v1/transfer_service_pb.js";
import type {
  DownloadTreeRequest,
  DownloadTreeSummary,
  UploadTreeResponse,
  UploadTreeStart,
} from "../gen/messages.js";
import { ChecksumMismatch } from "../gen/reasons.js";
import { type CallOptions, splitOptions } from "../options.js";
import { encode } from "../values.js";
import { openSource, Reading, TransferOperations, type UploadSource } from "./transfer.js";

/** Options of `uploadTree`. */
export type UploadTreeOptions = Omit<UploadTreeStart, "path"> & CallOptions;
/** Options of `downloadTree`. */
export type DownloadTreeOptions = Omit<DownloadTreeRequest, "path"> & CallOptions;

/** Copies directories. After a lost connection, a copy starts again. */
export class TreeOperations extends TransferOperations {
  /**
   * Extracts a tar archive into a directory of the workspace, which is created if it is missing.
   *
   * `source` is the path of an archive, its bytes, or a stream, which is copied to a temporary file
   * first. `mode` is `OVERWRITE` (default) or `CREATE_NEW`.
   *
   * After an error, the members before the rejected one are in place. The metadata `member` names
   * it.
   *
   * Throws `InvalidArchive`, `ArchiveTooLarge`, `PathEscape` (also of a link), `FileExists`,
   * `NotAFile`, `SymlinkBlocked`, `PolicyDenied` or `NoSpace`.
   */
  async uploadTree(
    source: UploadSource,
    path: string,
    options: UploadTreeOptions = {},
  ): Promise<UploadTreeResponse> {
    const [call, fields] = splitOptions(options);
    const method = methodOf("UploadTree");
    const attempts = new Attempts(this.caller.options, call, method);
    const content = await openSource(source);
    try {
      for (;;) {
        call.signal?.throwIfAborted();
        const reading = new Reading(content);
        try {
          const messages = treeMessages(reading, { path, ...fields });
          const response = await this.caller.send("UploadTree", attempts, messages, call);
          return response as UploadTreeResponse;
        } catch (error) {
          if (reading.error !== undefined) {
            throw reading.error;
          }
          await attempts.beforeRetry(error, method);
        }
      }
    } finally {
      await content.close();
    }
  }

  /**
   * Copies a directory of the workspace into a local tar archive, atomically.
   *
   * `exclude` has globs of paths to leave out, and larger files than `maxFileBytes` are left out.
   * The returned `problems` name entries that are not in the archive, and files that changed while
   * they were read. Commands and models may have written any of the archive: extract it with a
   * program that rejects links and names that lead out of the directory.
   *
   * Throws `DirectoryNotFound`, `NotADirectory`, `InvalidGlob` or `ChecksumMismatch`.
   */
  async downloadTree(
    path: string,
    destination: string,
    options: DownloadTreeOptions = {},
  ): Promise<DownloadTreeSummary> {
    const [call, fields] = splitOptions(options);
    const method = methodOf("DownloadTree");
    const attempts = new Attempts(this.caller.options, call, method);
    const temporary = join(dirname(destination), `.jig-${randomUUID()}`);
    try {
      for (;;) {
        try {
          const remainingMs = attempts.remainingMs();
          const deadlineSec = remainingMs === undefined ? undefined : remainingMs / 1000;
          const attempt = { ...call, deadlineSec };
          const request = { path, ...fields };
          const summary = await receiveArchive(this.caller, request, temporary, attempt);
          await rename(temporary, destination);
          return summary;
        } catch (error) {
          if (!(error instanceof CallError)) {
            throw error;
          }
          await attempts.beforeRetry(error, method);
        }
      }
    } finally {
      await rm(temporary, { force: true });
    }
  }
}

async function* treeMessages(reading: Reading, start: object): AsyncGenerator<object> {
  const value = encode(UploadTreeStartSchema, start);
  yield create(UploadTreeRequestSchema, { part: { case: "start", value: value as never } });
  let offset = 0;
  for (;;) {
    const data = await reading.read(offset);
    if (data.length === 0) {
      return;
    }
    yield create(UploadTreeRequestSchema, { part: { case: "data", value: data as never } });
    offset += data.length;
  }
}

/** Receives an archive from its start into a file, and checks that it is whole. */
async function receiveArchive(
  caller: Caller,
  request: DownloadTreeRequest,
  path: string,
  call: CallOptions,
): Promise<DownloadTreeSummary> {
  const hash = createHash("sha256");
  let file: FileHandle | undefined;
  let summary: DownloadTreeSummary | undefined;
  try {
    const once = caller.with({ retries: 0 });
    for await (const message of once.stream(() => ["DownloadTree", request], call)) {
      file ??= await open(path, "w");
      await file.writeFile(message.data);
      hash.update(message.data);
      summary = message.summary;
    }
  } finally {
    await file?.close();
  }
  if (summary === undefined || summary.sha256 !== hash.digest("hex")) {
    throw new ChecksumMismatch("the archive arrived damaged: start again", {
      reason: "CHECKSUM_MISMATCH",
    });
  }
  return summary;
}
