/** Operations that report changes of files. */

import type { WatchFilesRequest, WatchFilesResponse } from "./gen/messages.js";
import { type CallOptions, splitOptions } from "./options.js";
import { WorkspaceOperations } from "./workspaces.js";

export type WatchFilesOptions = WatchFilesRequest & CallOptions;

/** Watches files. */
export class WatchOperations extends WorkspaceOperations {
  /**
   * Streams the changes below the directory `path`, by default of the whole workspace.
   *
   * The first message is `ready`: all later changes are reported. List the directory after it. After a
   * lost connection, the watch starts again with another `ready`: changes may have been missed, so
   * list the directory again. The same holds for the directory of a change of kind `RESCAN`.
   *
   * Throws the errors of the reasons `DIRECTORY_NOT_FOUND`, `NOT_A_DIRECTORY`, `PATH_ESCAPE`,
   * `SYMLINK_BLOCKED`, `INVALID_GLOB` or `RESOURCE_EXHAUSTED`.
   */
  async *watchFiles(
    options: WatchFilesOptions = {},
  ): AsyncGenerator<WatchFilesResponse, void, undefined> {
    const [call, fields] = splitOptions(options);
    yield* this.caller.stream(() => ["WatchFiles", fields], call);
  }
}
