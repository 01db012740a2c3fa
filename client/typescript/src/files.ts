/**
 * Operations on files of the workspace.
 *
 * Paths are relative to the workspace, or absolute below its mount path (`/workspace`). Each method
 * can throw the errors of its RPC in `tool_service.proto`, such as `FileNotFound` and `PathEscape`.
 */

import { CommandOperations } from "./commands.js";
import { CallError } from "./errors.js";
import type {
  ApplyPatchRequest,
  ApplyPatchResponse,
  CreateDirectoryResponse,
  DeletePathRequest,
  DeletePathResponse,
  DownloadRequest,
  DownloadResponse,
  Edit,
  EditFileRequest,
  EditFileResponse,
  EditNotebookRequest,
  EditNotebookResponse,
  FetchUrlRequest,
  FetchUrlResponse,
  ListDirectoryResponse,
  ListFilesRequest,
  ListFilesResponse,
  MovePathRequest,
  MovePathResponse,
  ReadFileRequest,
  ReadFileResponse,
  ReadNotebookRequest,
  ReadNotebookResponse,
  SearchRequest,
  SearchResponse,
  StatPathResponse,
  WriteFileRequest,
  WriteFileResponse,
} from "./gen/messages.js";
import { ChecksumMismatch, StaleFile } from "./gen/reasons.js";
import { type CallOptions, splitOptions } from "./options.js";
import { concatenate } from "./values.js";

const MAX_PAGE_SIZE = 10_000;
// Bytes that become base64 at once: the number of arguments of a function is limited.
const BASE64_PART_BYTES = 3 << 12;

export type ReadFileOptions = Omit<ReadFileRequest, "path"> & CallOptions;
export type WriteFileOptions = Omit<WriteFileRequest, "path" | "content" | "encoding"> &
  CallOptions;
export type EditFileOptions = Omit<EditFileRequest, "path" | "edits"> & CallOptions;
export type ApplyPatchOptions = Omit<ApplyPatchRequest, "unifiedDiff"> & CallOptions;
export type ListFilesOptions = Omit<ListFilesRequest, "root" | "pageToken"> & CallOptions;
export type SearchOptions = Omit<SearchRequest, "query"> & CallOptions;
export type MovePathOptions = Omit<MovePathRequest, "source" | "destination"> & CallOptions;
export type DeletePathOptions = Omit<DeletePathRequest, "path"> & CallOptions;
export type ReadNotebookOptions = Omit<ReadNotebookRequest, "path"> & CallOptions;
export type EditNotebookOptions = Omit<EditNotebookRequest, "path"> & CallOptions;
export type FetchUrlOptions = Omit<FetchUrlRequest, "url"> & CallOptions;
/** Options of `readBytes` and `readChunks`: a range of bytes. */
export interface ReadBytesOptions extends CallOptions {
  /** Position of the first byte. By default, 0. */
  offset?: number | undefined;
  /** Maximum number of bytes. By default, all. */
  limit?: number | undefined;
}

/** Reads, changes and searches files. */
export class FileOperations extends CommandOperations {
  /**
   * Reads a text file, or its lines `startLine` to `endLine`, counted from 1.
   *
   * Without a range, a file of more than 10,000 lines returns its first and last 5,000. At most
   * `maxBytes` (3 MiB; 1 byte to 10 MiB) are returned. `readBytes` reads files of any size.
   *
   * Throws `FileNotFound`, `NotAFile`, `BinaryFile` (`encoding: "BASE64"` reads it),
   * `LineRangeInvalid` or `FileTooLarge` (over 256 MiB without a range).
   */
  async readFile(path: string, options: ReadFileOptions = {}): Promise<ReadFileResponse> {
    const [call, fields] = splitOptions(options);
    return this.caller.call("ReadFile", { path, ...fields }, call);
  }

  /**
   * Writes a file of up to 10 MiB atomically.
   *
   * `mode` is `OVERWRITE` (default), `CREATE_NEW` or `APPEND`. Missing directories are created
   * unless `createDirectories` is false. `fileMode` has permission bits, such as `0o755`.
   *
   * Throws `FileExists` (with `CREATE_NEW`), `StaleFile` (another SHA-256 than `expectedSha256`),
   * `NotAFile` or `PolicyDenied` (a protected path).
   */
  async writeFile(
    path: string,
    content: string | Uint8Array,
    options: WriteFileOptions = {},
  ): Promise<WriteFileResponse> {
    const [call, fields] = splitOptions(options);
    const text: WriteFileRequest =
      typeof content === "string"
        ? { content, encoding: "UTF8" }
        : { content: toBase64(content), encoding: "BASE64" };
    return this.caller.call("WriteFile", { path, ...text, ...fields }, call);
  }

  /**
   * Replaces strings in a text file: all edits, one after the other, or none.
   *
   * `{ oldString, newString }` replaces the only occurrence. With `occurrence`, it replaces the
   * `FIRST` or `ALL`. `dryRun` returns the diff without a change.
   *
   * Throws `StringNotFound`, `StringNotUnique`, `StaleFile`, `BinaryFile` or `FileNotFound`.
   */
  async editFile(
    path: string,
    edits: readonly Edit[],
    options: EditFileOptions = {},
  ): Promise<EditFileResponse> {
    const [call, fields] = splitOptions(options);
    return this.caller.call("EditFile", { path, edits, ...fields }, call);
  }

  /**
   * Applies a unified diff of up to 10 MiB: all of its files, or none.
   *
   * `strip` leading components of names are removed (1; 0 to 255), as by `patch -p`. Up to
   * `maxFuzz` context lines at each end of a hunk can differ (2; 0 to 10).
   *
   * Throws `PatchParseError`, `PatchHunkFail`, `FileNotFound` or `FileExists`.
   */
  async applyPatch(
    unifiedDiff: string,
    options: ApplyPatchOptions = {},
  ): Promise<ApplyPatchResponse> {
    const [call, fields] = splitOptions(options);
    return this.caller.call("ApplyPatch", { unifiedDiff, ...fields }, call);
  }

  /**
   * Describes a path: type, size in bytes, mode, time and SHA-256. Follows no link.
   *
   * Throws `FileNotFound`.
   */
  async stat(path: string, options: CallOptions = {}): Promise<StatPathResponse> {
    return this.caller.call("StatPath", { path }, options);
  }

  /** Returns whether a file, directory or link is at a path. */
  async exists(path: string, options: CallOptions = {}): Promise<boolean> {
    try {
      await this.stat(path, options);
      return true;
    } catch (error) {
      // A component of the path that is a file has nothing below it.
      const absent = ["FILE_NOT_FOUND", "NOT_A_DIRECTORY"];
      if (error instanceof CallError && absent.includes(error.reason)) {
        return false;
      }
      throw error;
    }
  }

  /**
   * Lists the files below a directory, sorted, relative to it. By default, all of them.
   *
   * A `glob` without a slash matches at any depth. `respectIgnore` omits files that ignore files
   * name, and `hidden: false` those with a dot. `maxDepth` is 1 for the directory itself.
   *
   * Throws `DirectoryNotFound`, `NotADirectory` or `InvalidGlob`.
   */
  async listFiles(root?: string, options: ListFilesOptions = {}): Promise<ListFilesResponse> {
    const [call, { maxResults, ...fields }] = splitOptions(options);
    const pageSize = Math.min(maxResults ?? MAX_PAGE_SIZE, MAX_PAGE_SIZE);
    const request: ListFilesRequest = { root, ...fields, maxResults: pageSize };
    const files: string[] = [];
    let skippedNames = 0;
    let truncatedIgnoreFiles = 0;
    for (;;) {
      const page = await this.caller.call("ListFiles", request, call);
      files.push(...page.files);
      skippedNames += page.skippedNames;
      truncatedIgnoreFiles += page.truncatedIgnoreFiles;
      request.pageToken = page.nextPageToken;
      if (!page.nextPageToken || files.length >= (maxResults ?? Number.POSITIVE_INFINITY)) {
        const first = files.slice(0, maxResults);
        const truncated = page.truncated || files.length > first.length;
        return { ...page, files: first, truncated, skippedNames, truncatedIgnoreFiles };
      }
    }
  }

  /** Lists the entries of a directory. Throws `DirectoryNotFound` or `NotADirectory`. */
  async listDir(path?: string, options: CallOptions = {}): Promise<ListDirectoryResponse> {
    const request = { path, pageSize: MAX_PAGE_SIZE };
    let page = await this.caller.call("ListDirectory", request, options);
    const entries = [...page.entries];
    while (page.nextPageToken) {
      const next = { ...request, pageToken: page.nextPageToken };
      page = await this.caller.call("ListDirectory", next, options);
      entries.push(...page.entries);
    }
    return { ...page, entries };
  }

  /**
   * Searches text files line by line, as ripgrep does.
   *
   * Returns the first `maxResults` matches (50; 1 to 10,000) with `contextLines` around each (2; 0
   * to 10). `timedOut` says that the search did not reach all files.
   *
   * Throws `InvalidRegex`, `InvalidGlob` or `FileNotFound`.
   */
  async search(query: string, options: SearchOptions = {}): Promise<SearchResponse> {
    const [call, fields] = splitOptions(options);
    return this.caller.call("Search", { query, ...fields }, call);
  }

  /**
   * Creates a directory and its missing parents. An existing one is no error.
   *
   * Throws `FileExists` (it is no directory) or `NotADirectory`.
   */
  async createDirectory(path: string, options: CallOptions = {}): Promise<CreateDirectoryResponse> {
    return this.caller.call("CreateDirectory", { path }, options);
  }

  /**
   * Moves or renames a file or directory atomically.
   *
   * Throws `FileNotFound`, `FileExists` (without `overwrite`), `DirectoryNotEmpty` or
   * `DirectoryNotFound` (the parent of `destination`).
   */
  async movePath(
    source: string,
    destination: string,
    options: MovePathOptions = {},
  ): Promise<MovePathResponse> {
    const [call, fields] = splitOptions(options);
    return this.caller.call("MovePath", { source, destination, ...fields }, call);
  }

  /**
   * Deletes a file, a link or a directory.
   *
   * Throws `FileNotFound` or `DirectoryNotEmpty` (without `recursive`).
   */
  async deletePath(path: string, options: DeletePathOptions = {}): Promise<DeletePathResponse> {
    const [call, fields] = splitOptions(options);
    return this.caller.call("DeletePath", { path, ...fields }, call);
  }

  /**
   * Reads the cells of a Jupyter notebook, or one of them. Cells are counted from 0.
   *
   * Throws `FileNotFound`, `CellNotFound` or `InvalidParams` (it is no notebook).
   */
  async readNotebook(
    path: string,
    options: ReadNotebookOptions = {},
  ): Promise<ReadNotebookResponse> {
    const [call, fields] = splitOptions(options);
    return this.caller.call("ReadNotebook", { path, ...fields }, call);
  }

  /**
   * Replaces (default), inserts or deletes one cell of a Jupyter notebook.
   *
   * Throws `FileNotFound`, `CellNotFound` or `InvalidParams`.
   */
  async editNotebook(
    path: string,
    options: EditNotebookOptions = {},
  ): Promise<EditNotebookResponse> {
    const [call, fields] = splitOptions(options);
    return this.caller.call("EditNotebook", { path, ...fields }, call);
  }

  /**
   * Fetches a page or file from a host that the operator allows.
   *
   * Takes at most `timeoutSec` (10; 1 to 60) and `maxBytes` (1 MiB; up to 4 MiB).
   *
   * Throws `EgressDenied` or `FetchError`.
   */
  async fetchUrl(url: string, options: FetchUrlOptions = {}): Promise<FetchUrlResponse> {
    const [call, fields] = splitOptions(options);
    return this.caller.call("FetchUrl", { url, ...fields }, call);
  }

  /**
   * Returns the bytes of a file of any size, or a range of them.
   *
   * Throws `FileNotFound`, `NotAFile` or `StaleFile` (it changed during the copy).
   */
  async readBytes(path: string, options: ReadBytesOptions = {}): Promise<Uint8Array> {
    const chunks: Uint8Array[] = [];
    for await (const chunk of this.readChunks(path, options)) {
      chunks.push(chunk);
    }
    return concatenate(chunks);
  }

  /**
   * Streams the bytes of a file, or a range of them, in chunks of up to 256 KiB.
   *
   * Throws the errors of `readBytes`. After `StaleFile`, the received chunks are not valid.
   */
  async *readChunks(
    path: string,
    options: ReadBytesOptions = {},
  ): AsyncGenerator<Uint8Array, void, undefined> {
    for await (const message of this.downloadMessages(path, options)) {
      if (message.data.length > 0) {
        yield message.data;
      }
    }
  }

  /** Streams the messages of a download, and checks that they belong to one state. */
  protected async *downloadMessages(
    path: string,
    options: ReadBytesOptions,
  ): AsyncGenerator<DownloadResponse, void, undefined> {
    const [call, { offset = 0, limit }] = splitOptions(options);
    const { newDigest } = this.caller.connection;
    let digest = newDigest?.();
    let received = 0;
    let version: string | undefined;

    const next = (): ["Download", DownloadRequest] => {
      digest = newDigest?.();
      const rest = limit === undefined ? undefined : limit - received;
      return [
        "Download",
        { path, offset: offset + received, limit: rest, expectedVersion: version },
      ];
    };

    for await (const message of this.caller.stream(next, call)) {
      received += message.data.length;
      digest?.update(message.data);
      if (version !== undefined && version !== message.version) {
        throw new StaleFile(`${path} changed during the download: start again`, {
          reason: "STALE_FILE",
        });
      }
      version = message.version;
      if (message.sha256 !== undefined && digest && message.sha256 !== digest.hex()) {
        throw new ChecksumMismatch(`${path} arrived damaged: start again`, {
          reason: "CHECKSUM_MISMATCH",
        });
      }
      yield message;
    }
  }
}

function toBase64(content: Uint8Array): string {
  let text = "";
  for (let start = 0; start < content.length; start += BASE64_PART_BYTES) {
    text += btoa(String.fromCharCode(...content.subarray(start, start + BASE64_PART_BYTES)));
  }
  return text;
}
