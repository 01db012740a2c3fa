/** Operations on the daemon itself, and on the records of sessions: artifacts and events. */

import { ApprovalOperations } from "./approvals.js";
import type {
  ArtifactInfo,
  GetInfoResponse,
  ReadArtifactRequest,
  SessionInfo,
  WatchEventsRequest,
  WatchEventsResponse,
} from "./gen/messages.js";
import { type CallOptions, PAGE_SIZE, splitOptions } from "./options.js";
import { concatenate } from "./values.js";

export type WatchEventsOptions = WatchEventsRequest & CallOptions;
export type ReadArtifactOptions = Omit<ReadArtifactRequest, "path"> & CallOptions;

/** Describes the daemon, and reads artifacts and events. */
export class RecordOperations extends ApprovalOperations {
  /** Returns version, isolation, limits, workspaces and load of the daemon. */
  async getInfo(options: CallOptions = {}): Promise<GetInfoResponse> {
    return this.caller.call("GetInfo", {}, options);
  }

  /** Lists the sessions of the workspace. */
  async listSessions(options: CallOptions = {}): Promise<SessionInfo[]> {
    return this.caller.pages(
      "ListSessions",
      { pageSize: PAGE_SIZE },
      (page) => page.sessions,
      options,
    );
  }

  /**
   * Lists the artifacts of the session that are not empty, or those of one step. With `jobId`, lists
   * those that a fleet job has stored.
   */
  async listArtifacts(
    options: { step?: number; jobId?: string } & CallOptions = {},
  ): Promise<ArtifactInfo[]> {
    const [call, fields] = splitOptions(options);
    const request = { ...fields, pageSize: PAGE_SIZE };
    return this.caller.pages("ListArtifacts", request, (page) => page.artifacts, call);
  }

  /**
   * Returns the bytes of an artifact, such as `RunResponse.stdoutPath`, or a range of them. With
   * `jobId`, it is one that a fleet job has stored.
   *
   * Throws `ArtifactNotFound`, or with `jobId` `JobNotFound` or `FleetUnavailable`.
   */
  async readArtifact(path: string, options: ReadArtifactOptions = {}): Promise<Uint8Array> {
    const [call, { offset = 0, limit, jobId }] = splitOptions(options);
    const chunks: Uint8Array[] = [];
    let received = 0;
    const next = (): ["ReadArtifact", ReadArtifactRequest] => {
      const rest = limit === undefined ? undefined : limit - received;
      return ["ReadArtifact", { path, offset: offset + received, limit: rest, jobId }];
    };
    for await (const { data } of this.caller.stream(next, call)) {
      chunks.push(data);
      received += data.length;
    }
    return concatenate(chunks);
  }

  /**
   * Streams the records of the session: those that exist, then each new one.
   *
   * Begins after the record `afterSequence`, or with the last `tail` ones. With `follow: false`, it
   * ends after the last record. `gap` stands for records that were removed. The stream continues
   * after a lost connection.
   */
  async *watchEvents(
    options: WatchEventsOptions = {},
  ): AsyncGenerator<WatchEventsResponse, void, undefined> {
    const [call, { afterSequence, tail, ...fields }] = splitOptions(options);
    let last = afterSequence;
    const next = (): ["WatchEvents", WatchEventsRequest] => [
      "WatchEvents",
      { ...fields, afterSequence: last, tail: last === undefined ? tail : undefined },
    ];
    for await (const event of this.caller.stream(next, call)) {
      if (event.kind === "event") {
        last = event.sequence;
      }
      yield event;
    }
  }
}
