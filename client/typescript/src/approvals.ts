/** Operations of administrators on approvals and rules. */

import type {
  Action,
  Approval,
  CreateRuleRequest,
  DecideApprovalRequest,
  DecideApprovalResponse,
  Decision,
  Rule,
  UpdateRuleRequest,
} from "./gen/messages.js";
import { JobOperations } from "./jobs.js";
import { type CallOptions, splitOptions } from "./options.js";
import { present } from "./values.js";

export type DecideOptions = Omit<DecideApprovalRequest, "approvalId" | "decision"> & CallOptions;
export type CreateRuleOptions = Omit<CreateRuleRequest, "tool" | "action"> & CallOptions;
export type UpdateRuleOptions = Omit<UpdateRuleRequest, "ruleId"> & CallOptions;

/**
 * Decides about calls that need approval. Without keys, each caller is an administrator.
 *
 * Each method can throw `Forbidden`, for callers that are not.
 */
export class ApprovalOperations extends JobOperations {
  /** Lists pending calls, oldest first. With `decided`, decided ones too, newest first. */
  async listApprovals(options: { decided?: boolean } & CallOptions = {}): Promise<Approval[]> {
    const [call, fields] = splitOptions(options);
    return this.caller.pages("ListApprovals", fields, (page) => page.approvals, call);
  }

  /** Returns an approval, with all parameters if it is pending. Throws `ApprovalNotFound`. */
  async getApproval(approvalId: string, options: CallOptions = {}): Promise<Approval> {
    const { approval } = await this.caller.call("GetApproval", { approvalId }, options);
    return present(approval);
  }

  /**
   * Streams pending calls, oldest first, then each new one and each end of one.
   *
   * After a lost connection, pending calls come again.
   */
  async *watchApprovals(options: CallOptions = {}): AsyncGenerator<Approval, void, undefined> {
    for await (const event of this.caller.stream(() => ["WatchApprovals", {}], options)) {
      if (event.kind === "approval") {
        yield event;
      }
    }
  }

  /**
   * Allows or denies a pending call. `ALWAYS` allows it and similar ones, by a new rule.
   *
   * The rule has `pattern`, by default `Approval.suggestedPattern`, and lasts `ruleLifetimeSec` (30
   * days; up to ten years). The caller of a denied call gets `comment`.
   *
   * Throws `ApprovalNotFound`, `ApprovalDecided`, `InvalidRegex` or `InvalidParams`.
   */
  async decideApproval(
    approvalId: string,
    decision: Decision,
    options: DecideOptions = {},
  ): Promise<DecideApprovalResponse> {
    const [call, fields] = splitOptions(options);
    return this.caller.call("DecideApproval", { approvalId, decision, ...fields }, call);
  }

  /** Lists rules: those of this service, newest first, then those of the configuration. */
  async listRules(options: CallOptions = {}): Promise<Rule[]> {
    return this.caller.pages("ListRules", {}, (page) => page.rules, options);
  }

  /**
   * Creates a rule for calls of a tool whose parameters match `pattern` (default: all).
   *
   * Throws `InvalidRegex`, `InvalidParams` or `ResourceExhausted` (1,024 rules).
   */
  async createRule(tool: string, action: Action, options: CreateRuleOptions = {}): Promise<Rule> {
    const [call, fields] = splitOptions(options);
    return present((await this.caller.call("CreateRule", { tool, action, ...fields }, call)).rule);
  }

  /**
   * Enables or disables a rule, or changes its lifetime (0: unlimited).
   *
   * Throws `RuleNotFound` or `InvalidParams` (a rule of the configuration).
   */
  async updateRule(ruleId: string, options: UpdateRuleOptions = {}): Promise<Rule> {
    const [call, fields] = splitOptions(options);
    return present((await this.caller.call("UpdateRule", { ruleId, ...fields }, call)).rule);
  }

  /** Deletes a rule. Throws `RuleNotFound` or `InvalidParams` (one of the configuration). */
  async deleteRule(ruleId: string, options: CallOptions = {}): Promise<void> {
    await this.caller.call("DeleteRule", { ruleId }, options);
  }
}
