/** Operations that call tools by name, as models do. */

import type { JsonObject } from "@bufbuild/protobuf";
import type { Caller } from "./caller.js";
import { FileOperations } from "./files.js";
import type {
  Approval,
  BatchCall,
  BatchError,
  Decision,
  InvokeResponse,
  InvokeStreamResponse,
  ToolFormat,
} from "./gen/messages.js";
import { type CallOptions, splitOptions } from "./options.js";
import {
  parseReply,
  type ToolCall,
  type ToolFormatName,
  toMessages,
  type Vendor,
} from "./vendors.js";

const MAX_BATCH_CALLS = 20;
const MAX_TOOL_NAME_BYTES = 64;
const DEFAULT_WAIT_SEC = 15;
// Bounds of `InvokeBatchRequest.waitMs`, in seconds.
const MIN_WAIT_SEC = 0.1;
const MAX_WAIT_SEC = 60;
// Interval of checks whether pending calls need approval.
const APPROVAL_CHECK_SEC = 1;

/** What became of a tool call. */
export interface CallOutcome {
  /** Id that the model gave the call, or one made up. */
  readonly callId: string;
  readonly name: string;
  /** Whether the tool succeeded. A command that ran is a success, whatever its exit code. */
  readonly ok: boolean;
  /** Whether the call continues as a job. */
  readonly pending: boolean;
  /** Job of a pending call. Empty otherwise. */
  readonly jobId: string;
  /** Approval that a pending call waits for. Empty without one. */
  readonly approvalId: string;
  /** Result of the tool, if it is an object. */
  readonly output: JsonObject | undefined;
  /** Why the tool failed. */
  readonly error: BatchError | undefined;
}

/** Results of the tool calls of a reply. */
export interface ToolResults {
  /** Messages to append to the conversation. Empty if the reply has no tool call. */
  readonly messages: JsonObject[];
  /** What became of each call, in the order of the calls. */
  readonly outcomes: CallOutcome[];
}

/** Decides about a call that waits for approval. Undefined leaves the decision to others. */
export type Approve = (approval: Approval) => Decision | undefined | Promise<Decision | undefined>;

export interface ToolsOptions extends CallOptions {
  /** Names of the tools to return. By default, all that the caller may use. */
  names?: readonly string[];
  /** Other names and parameters of the tools, such as `claude`. */
  dialect?: string;
}

export interface HandleOptions extends CallOptions {
  /** Dialect of the tools that the model has. */
  dialect?: string;
  /** Seconds to wait for the calls, at least 0.1. By default, 15. */
  waitSec?: number;
  /** Queue of the jobs of calls that take longer. */
  queue?: string;
  /** Decides about calls that wait for approval. The caller must be an administrator. */
  approve?: Approve;
}

export interface InvokeOptions extends CallOptions {
  /** Dialect of the tool's name and parameters. */
  dialect?: string;
  /** Id that the records of the call repeat. */
  callId?: string;
}

/** Lists tools in the form of a vendor, and calls them. */
export class ToolOperations extends FileOperations {
  /**
   * Returns the tools that the caller may use, for `tools` of a request to the vendor.
   *
   * Throws `InvalidParams`: an unknown dialect or name.
   */
  async tools(vendor: ToolFormatName, options: ToolsOptions = {}): Promise<JsonObject[]> {
    const [call, fields] = splitOptions(options);
    const format = toolFormat(vendor);
    const response = await this.caller.call("ListTools", { format, ...fields }, call);
    return JSON.parse(response.toolsJson);
  }

  /**
   * Runs the tool calls of a model's reply. Returns the messages for the next request.
   *
   * `reply` is the response of the vendor's package, its message, or a list of tool calls. Its form
   * identifies the vendor. The calls run concurrently.
   *
   * A call that is not done within `waitSec` is pending, and continues as a job. Its message tells
   * the model to call `wait_job`. Without `approve`, `outcomes` have the ids of approvals.
   *
   * With a `requestId`, the same reply can be repeated with the same `waitSec`.
   *
   * Failures of tools are part of the messages. Throws `InvalidParams` (an unknown dialect),
   * `ResourceExhausted` or `Unavailable`.
   */
  async handle(reply: unknown, options: HandleOptions = {}): Promise<ToolResults> {
    const calls = parseReply(reply);
    const [first] = calls;
    if (first === undefined) {
      return { messages: [], outcomes: [] };
    }
    // The request id is that of the first batch. Those of others follow from it.
    const requestId = options.requestId ?? this.caller.options.requestId;
    const batch = new Batch(this.caller, first.vendor, { ...options, requestId });
    const results: JsonObject[] = [];
    const outcomes: CallOutcome[] = [];
    for (let start = 0; start < calls.length; start += MAX_BATCH_CALLS) {
      const part = await batch.run(calls.slice(start, start + MAX_BATCH_CALLS), start);
      results.push(...part.results);
      outcomes.push(...part.outcomes);
    }
    return { messages: toMessages(first.vendor, calls, results), outcomes };
  }

  /**
   * Calls a tool by its name, such as a custom tool of the operator.
   *
   * `params` are JSON values by name. A failure of the tool is part of the result: see `ok`,
   * `error` and `check()`.
   *
   * Throws `InvalidParams`: an unknown dialect.
   */
  async invoke(
    tool: string,
    params: JsonObject,
    options: InvokeOptions = {},
  ): Promise<InvokeResponse> {
    return this.caller.call("Invoke", invokeRequest(tool, params, options), callOptions(options));
  }

  /**
   * Calls a tool as `invoke` does, and streams its progress before its result.
   *
   * `kind` is `pendingApproval` (the call waits for approval), `stdout`, `stderr` or, last,
   * `result`. After a lost connection, the result comes without further output.
   */
  invokeStream(
    tool: string,
    params: JsonObject,
    options: InvokeOptions = {},
  ): AsyncGenerator<InvokeStreamResponse, void, undefined> {
    const request = invokeRequest(tool, params, options);
    return this.caller.stream(() => ["InvokeStream", request], callOptions(options));
  }
}

function toolFormat(name: ToolFormatName): ToolFormat {
  return name.toUpperCase().replace("-", "_") as ToolFormat;
}

function callOptions(options: CallOptions): CallOptions {
  return splitOptions(options)[0];
}

function invokeRequest(tool: string, params: JsonObject, { dialect, callId }: InvokeOptions) {
  return { tool, paramsJson: JSON.stringify(params), dialect, requestId: callId };
}

interface BatchResults {
  results: JsonObject[];
  outcomes: CallOutcome[];
}

/** Runs tool calls as batches. */
class Batch {
  readonly #caller: Caller;
  readonly #vendor: Vendor;
  readonly #options: HandleOptions;

  constructor(caller: Caller, vendor: Vendor, options: HandleOptions) {
    this.#caller = caller.with({ requestId: undefined });
    this.#vendor = vendor;
    this.#options = options;
  }

  /** Returns the results as the vendor wants them, and the outcomes. */
  async run(calls: readonly ToolCall[], firstIndex: number): Promise<BatchResults> {
    const { requestId, waitSec = DEFAULT_WAIT_SEC } = this.#options;
    const end = performance.now() + waitSec * 1000;
    const id = requestId && firstIndex ? `${requestId}.${firstIndex}` : requestId;
    const batch = await this.#invoke(
      calls.map((call, index) => ({
        callId: call.callId || `call_${firstIndex + index}`,
        name: toToolName(call.name),
        argumentsJson: call.argumentsJson,
      })),
      this.#sliceSec(waitSec),
      id,
    );
    const decided = new Set<string>();
    while (batch.outcomes.some((outcome) => outcome.pending)) {
      await this.#findApprovals(batch.outcomes, decided);
      const remainingSec = (end - performance.now()) / 1000;
      const isDone = remainingSec < MIN_WAIT_SEC;
      if (isDone || !(await this.#wait(batch, this.#sliceSec(remainingSec)))) {
        break;
      }
    }
    return batch;
  }

  /** The duration of one wait. It is short if approvals must be found. */
  #sliceSec(waitSec: number): number {
    const longest = this.#options.approve ? APPROVAL_CHECK_SEC : MAX_WAIT_SEC;
    return Math.max(MIN_WAIT_SEC, Math.min(waitSec, longest));
  }

  async #invoke(
    calls: Pick<BatchCall, "callId" | "name" | "argumentsJson">[],
    waitSec: number,
    requestId?: string,
  ): Promise<BatchResults> {
    const { queue, dialect } = this.#options;
    const request = {
      calls: calls as BatchCall[],
      waitMs: Math.round(waitSec * 1000),
      queue,
      dialect,
      resultFormat: toolFormat(this.#vendor),
    };
    const options = { ...callOptions(this.#options), requestId };
    const response = await this.#caller.call("InvokeBatch", request, options);
    const outcomes = response.results.map((result) => ({
      callId: result.callId,
      name: result.name,
      ok: result.ok,
      pending: result.pending,
      jobId: result.jobId,
      approvalId: "",
      output: result.output,
      error: result.error,
    }));
    return { results: JSON.parse(response.messagesJson), outcomes };
  }

  /**
   * Waits for pending calls. Replaces the results of those that end.
   *
   * Returns whether another wait makes sense. A key can be limited to tools without `wait_job`.
   */
  async #wait({ results, outcomes }: BatchResults, waitSec: number): Promise<boolean> {
    const pending = [...outcomes.entries()].filter(([, outcome]) => outcome.pending);
    // The tool `wait_job` writes the result for the model. It returns before the batch does.
    const waitMs = Math.round(Math.max(waitSec - MIN_WAIT_SEC, 0) * 1000);
    const waits = pending.map(([, { callId, jobId }]) => ({
      callId,
      name: "wait_job",
      argumentsJson: JSON.stringify({ job_id: jobId, wait_ms: waitMs }),
    }));
    const answers = await this.#invoke(waits, waitSec + MIN_WAIT_SEC);
    for (const [position, [index, outcome]] of pending.entries()) {
      const answer = answers.outcomes[position];
      const output = answer?.output;
      if (!answer?.ok || answer.pending || !output || output["pending"]) {
        continue;
      }
      results[index] = answers.results[position] as JsonObject;
      outcomes[index] = {
        ...outcome,
        ok: Boolean(output["ok"]),
        pending: false,
        jobId: "",
        approvalId: "",
        output: output["output"] as JsonObject | undefined,
        error: output["ok"] ? undefined : failureOf(output),
      };
    }
    return answers.outcomes.every((answer) => answer.ok);
  }

  /** Sets the approvals of pending calls, and has them decided once. */
  async #findApprovals(outcomes: CallOutcome[], decided: Set<string>): Promise<void> {
    const { approve } = this.#options;
    const options = { ...callOptions(this.#options), requestId: undefined };
    for (const [index, outcome] of outcomes.entries()) {
      if (!outcome.pending) {
        continue;
      }
      const { job } = await this.#caller.call("GetJob", { jobId: outcome.jobId }, options);
      const approvalId = job?.approvalId ?? "";
      outcomes[index] = { ...outcome, approvalId };
      if (!approve || !approvalId || decided.has(approvalId)) {
        continue;
      }
      decided.add(approvalId);
      const { approval } = await this.#caller.call("GetApproval", { approvalId }, options);
      const decision = approval && (await approve(approval));
      if (decision !== undefined) {
        await this.#caller.call("DecideApproval", { approvalId, decision }, options);
      }
    }
  }
}

function failureOf(output: JsonObject): BatchError {
  const code = String(output["error_type"] ?? "").toUpperCase();
  return { code, message: String(output["text"] ?? "") };
}

/** Makes a name that a model invented short enough to be reported to it as unknown. */
function toToolName(name: string): string {
  const bytes = new TextEncoder().encode(name).subarray(0, MAX_TOOL_NAME_BYTES);
  // The last character can be incomplete.
  return new TextDecoder().decode(bytes).replace(/\ufffd+$/, "") || "unnamed";
}
