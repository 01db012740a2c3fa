/** Operations that create and delete workspaces while the daemon runs. */

import type {
  CreateWorkspaceRequest,
  UpdateWorkspaceRequest,
  WorkspaceDetails,
} from "./gen/messages.js";
import { type CallOptions, PAGE_SIZE, splitOptions } from "./options.js";
import { RecordOperations } from "./records.js";
import { present } from "./values.js";

export type CreateWorkspaceOptions = CreateWorkspaceRequest & CallOptions;
export type UpdateWorkspaceOptions = Pick<UpdateWorkspaceRequest, "ttlSec" | "idleTimeoutSec"> & {
  /** Labels in place of all former ones. */
  labels?: Readonly<Record<string, string>> | undefined;
} & CallOptions;

/**
 * Creates, lists and deletes workspaces. They belong to the caller that created them.
 *
 * `client.withOptions({ workspace: name })` uses one.
 */
export class WorkspaceOperations extends RecordOperations {
  /**
   * Creates a workspace: empty, or with a copy of the files of the workspace `cloneOf`.
   *
   * Without a `name`, the daemon chooses one. `maxBytes` and `maxFiles` bound its files.
   *
   * Throws the errors of the reasons `WORKSPACE_EXISTS`, `WORKSPACES_DISABLED`, `UNKNOWN_WORKSPACE`
   * (of `cloneOf`), `RESOURCE_EXHAUSTED` or `NO_SPACE`.
   */
  async createWorkspace(options: CreateWorkspaceOptions = {}): Promise<WorkspaceDetails> {
    const [call, fields] = splitOptions(options);
    return present((await this.caller.call("CreateWorkspace", fields, call)).workspace);
  }

  /** Returns a workspace, with the space that its files take. Throws `UnknownWorkspace`. */
  async getWorkspace(name: string, options: CallOptions = {}): Promise<WorkspaceDetails> {
    return present((await this.caller.call("GetWorkspace", { name }, options)).workspace);
  }

  /** Lists the workspaces of the caller that have all `labels`, in the order of their names. */
  async listWorkspaces(
    options: { labels?: Readonly<Record<string, string>> } & CallOptions = {},
  ): Promise<WorkspaceDetails[]> {
    const [call, fields] = splitOptions(options);
    const request = { ...fields, pageSize: PAGE_SIZE };
    return this.caller.pages("ListWorkspaces", request, (page) => page.workspaces, call);
  }

  /**
   * Changes when a created workspace expires, or its labels. 0 seconds are without end.
   *
   * Throws `UnknownWorkspace`, or `Forbidden` for a workspace of the configuration.
   */
  async updateWorkspace(
    name: string,
    options: UpdateWorkspaceOptions = {},
  ): Promise<WorkspaceDetails> {
    const [call, { labels, ...fields }] = splitOptions(options);
    const request = { name, ...fields, labels: labels && { labels } };
    return present((await this.caller.call("UpdateWorkspace", request, call)).workspace);
  }

  /**
   * Deletes a created workspace, with its files, sessions and jobs. Ends its commands first.
   *
   * Throws `UnknownWorkspace`, or `Forbidden` for a workspace of the configuration.
   */
  async deleteWorkspace(name: string, options: CallOptions = {}): Promise<void> {
    await this.caller.call("DeleteWorkspace", { name }, options);
  }
}
