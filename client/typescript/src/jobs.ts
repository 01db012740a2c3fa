/** Operations on jobs. */

import type { JsonObject } from "@bufbuild/protobuf";
import type {
  Job,
  JobState,
  SubmitJobRequest,
  WatchJobRequest,
  WatchJobResponse,
} from "./gen/messages.js";
import { type CallOptions, PAGE_SIZE, splitOptions } from "./options.js";
import { ToolOperations } from "./tools.js";
import { present } from "./values.js";

export type SubmitJobOptions = Omit<SubmitJobRequest, "tool" | "params" | "paramsJson"> &
  CallOptions;
export type WatchJobOptions = Pick<WatchJobRequest, "stdoutOffset" | "stderrOffset"> & CallOptions;

/** Calls of tools in the background. */
export class JobOperations extends ToolOperations {
  /**
   * Queues a call of a tool. Returns when the job is stored. It survives a restart of the daemon.
   *
   * `params` are JSON values by name. A higher `priority` (0; -100 to 100) comes first in the
   * `queue` (`default`). A command without `timeoutSec` has no timeout.
   *
   * With `fleet`, any daemon of the fleet runs the job. If that daemon dies, the job is lost, or
   * with `retryIfLost` runs again on another one. With `storeArtifacts`, `readArtifact` with its
   * `jobId` reads its artifacts at every daemon.
   *
   * Throws `InvalidParams`, `UnknownTool`, `ToolDisabled`, `ResourceExhausted` (full queue) or
   * `FleetUnavailable`.
   */
  async submitJob(tool: string, params: JsonObject, options: SubmitJobOptions = {}): Promise<Job> {
    const [call, fields] = splitOptions(options);
    const request = { tool, paramsJson: JSON.stringify(params), ...fields };
    return jobOf(await this.caller.call("SubmitJob", request, call));
  }

  /** Returns a job, with its `result` once it has ended. Throws `JobNotFound`. */
  async getJob(jobId: string, options: CallOptions = {}): Promise<Job> {
    return jobOf(await this.caller.call("GetJob", { jobId }, options));
  }

  /** Lists the jobs of the workspace without their results, newest first. */
  async listJobs(
    options: { states?: readonly JobState[]; queue?: string } & CallOptions = {},
  ): Promise<Job[]> {
    const [call, fields] = splitOptions(options);
    return this.caller.pages(
      "ListJobs",
      { ...fields, pageSize: PAGE_SIZE },
      (page) => page.jobs,
      call,
    );
  }

  /**
   * Waits until a job has ended, and returns it. After `waitSec`, returns it as it is.
   *
   * Throws `JobNotFound`.
   */
  async waitJob(jobId: string, options: { waitSec?: number } & CallOptions = {}): Promise<Job> {
    const [call, { waitSec }] = splitOptions(options);
    const waitMs = waitSec === undefined ? undefined : Math.round(waitSec * 1000);
    return jobOf(await this.caller.call("WaitJob", { jobId, waitMs }, call));
  }

  /** Cancels a job, waits until it has ended, and returns it. Throws `JobNotFound`. */
  async cancelJob(jobId: string, options: CallOptions = {}): Promise<Job> {
    return jobOf(await this.caller.call("CancelJob", { jobId }, options));
  }

  /**
   * Streams a job after each change of its state, and the output of its command.
   *
   * `kind` is `job`, `stdout` or `stderr`. Output begins after the given numbers of bytes. The last
   * element is the ended job. The stream continues after a lost connection. Leaving the loop does
   * not cancel the job.
   *
   * Throws `JobNotFound`.
   */
  async *watchJob(
    jobId: string,
    options: WatchJobOptions = {},
  ): AsyncGenerator<WatchJobResponse, void, undefined> {
    const [call, { stdoutOffset = 0, stderrOffset = 0 }] = splitOptions(options);
    const offsets = { stdout: stdoutOffset, stderr: stderrOffset };
    const next = (): ["WatchJob", WatchJobRequest] => [
      "WatchJob",
      { jobId, stdoutOffset: offsets.stdout, stderrOffset: offsets.stderr },
    ];
    for await (const event of this.caller.stream(next, call)) {
      if (event.kind !== "job") {
        offsets[event.kind] = event.offset + event.data.length;
      }
      yield event;
    }
  }
}

/** The job of a response, which always has one. */
function jobOf(response: { readonly job?: Job }): Job {
  return present(response.job);
}
