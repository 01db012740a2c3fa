/** Tool calls in the replies of models, in the form of each vendor. */

import type { JsonObject } from "@bufbuild/protobuf";
import { UnknownReply } from "./errors.js";

/** A vendor whose replies and results `handle` knows. */
export type Vendor = "anthropic" | "openai-responses" | "openai-chat" | "gemini" | "mcp";
/** A form of tools that `tools` returns. */
export type ToolFormatName = Vendor | "json-schema" | "function";

/** A tool call of a model. */
export interface ToolCall {
  readonly vendor: Vendor;
  /** Id that the model gave the call. Empty if it gave none. */
  readonly callId: string;
  readonly name: string;
  readonly argumentsJson: string;
}

// Where the parts of a reply are, in the reply itself or in one of its messages.
const PARTS: readonly (readonly (string | number)[])[] = [
  ["choices", 0, "message", "tool_calls"],
  ["tool_calls"],
  ["candidates", 0, "content", "parts"],
  ["parts"],
  ["output"],
  ["content"],
];

/**
 * Returns the tool calls of a reply. Other parts, such as texts, are ignored.
 *
 * A reply is the response of a vendor's package, its message, or a list of its parts.
 */
export function parseReply(reply: unknown): ToolCall[] {
  const calls = partsOf(reply).flatMap((part) => parsePart(part) ?? []);
  if (new Set(calls.map((call) => call.vendor)).size > 1) {
    throw new UnknownReply("the tool calls have the forms of several vendors");
  }
  return calls;
}

function partsOf(reply: unknown): readonly unknown[] {
  if (Array.isArray(reply)) {
    return reply;
  }
  for (const path of PARTS) {
    const parts = path.reduce(get, reply);
    if (Array.isArray(parts)) {
      return parts;
    }
  }
  return [reply];
}

function parsePart(part: unknown): ToolCall | undefined {
  const kind = get(part, "type");
  if (kind === "tool_use") {
    return toCall("anthropic", get(part, "id"), part, "input");
  }
  if (kind === "function_call") {
    return toCall("openai-responses", get(part, "call_id"), part, "arguments");
  }
  const named = get(part, "function");
  if (named !== undefined) {
    return toCall("openai-chat", get(part, "id"), named, "arguments");
  }
  const called = get(part, "functionCall") ?? get(part, "function_call");
  if (called !== undefined) {
    return toCall("gemini", get(called, "id"), called, "args");
  }
  if (get(part, "args") !== undefined) {
    return toCall("gemini", get(part, "id"), part, "args");
  }
  if (kind === undefined && get(part, "name") !== undefined) {
    return toCall("mcp", undefined, part, "arguments");
  }
  return undefined;
}

function toCall(vendor: Vendor, id: unknown, called: unknown, name: string): ToolCall {
  const values = get(called, name);
  const argumentsJson = typeof values === "string" ? values : JSON.stringify(values ?? {});
  return {
    vendor,
    callId: String(id ?? ""),
    name: String(get(called, "name")),
    argumentsJson: argumentsJson || "{}",
  };
}

/** The property of an object. Undefined if it is absent or null. */
function get(value: unknown, name: string | number): unknown {
  const isObject = typeof value === "object" && value !== null;
  return isObject ? ((value as Record<string, unknown>)[name] ?? undefined) : undefined;
}

/** The messages with which the conversation continues. */
export function toMessages(
  vendor: Vendor,
  calls: readonly ToolCall[],
  results: readonly JsonObject[],
): JsonObject[] {
  if (vendor === "anthropic") {
    return [{ role: "user", content: [...results] }];
  }
  if (vendor === "gemini") {
    const parts = results.map((result, index) => {
      const response = result["functionResponse"] as JsonObject;
      const { id: _, ...anonymous } = response;
      return { functionResponse: calls[index]?.callId ? response : anonymous };
    });
    return [{ role: "user", parts }];
  }
  return [...results];
}
