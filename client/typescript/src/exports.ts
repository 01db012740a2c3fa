/** What the entry points of all environments export. */

export type { JsonObject } from "@bufbuild/protobuf";
export type {
  AttachOptions,
  Command,
  RunOptions,
  StartOptions,
  StreamOptions,
} from "./commands.js";
export {
  CallError,
  type CallErrorDetails,
  ConfigurationError,
  DaemonStartError,
  type FieldViolation,
  JigError,
  Unavailable,
  UnknownReply,
} from "./errors.js";
export type * from "./gen/messages.js";
export * as reasons from "./gen/reasons.js";
export type { CallOptions } from "./options.js";
export { Process, type ProcessEvent } from "./process.js";
export { CommandFailed, CommandResult, ToolResult } from "./results.js";
export type {
  Approve,
  CallOutcome,
  HandleOptions,
  InvokeOptions,
  ToolResults,
  ToolsOptions,
} from "./tools.js";
export { parseReply, type ToolCall, type ToolFormatName, type Vendor } from "./vendors.js";
