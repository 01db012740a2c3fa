// Prints a TypeScript program that assigns the rendered tools to the types of the vendors' packages. The compiler rejects tools that do not fit.
import { rendered, results } from "./rendered.mjs";

const TYPES = {
  "openai-chat": "ChatCompletionFunctionTool[]",
  "openai-responses": "FunctionTool[]",
  anthropic: "AnthropicTool[]",
  gemini: "Plain<GeminiTool[]>",
  mcp: 'ListToolsResult["tools"]',
};

// Results of calls.
const RESULTS = {
  "openai-chat": "ChatCompletionToolMessageParam[]",
  "openai-responses": "ResponseInputItem.FunctionCallOutput[]",
  anthropic: "ToolResultBlockParam[]",
  gemini: "Part[]",
  mcp: "CallToolResult[]",
};

console.log(`import type { Tool as AnthropicTool, ToolResultBlockParam } from "@anthropic-ai/sdk/resources/messages";
import type { Part, Tool as GeminiTool } from "@google/genai";
import type { CallToolResult, ListToolsResult } from "@modelcontextprotocol/sdk/types.js";
import type { ChatCompletionFunctionTool, ChatCompletionToolMessageParam } from "openai/resources/chat/completions";
import type { FunctionTool, ResponseInputItem } from "openai/resources/responses/responses";

// The JSON form of a value: the text of an enum, in either case, not its name in the program.
type Plain<T> = T extends string ? \`\${T}\` | Lowercase<T> : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;

export const all = [`);
for (const [format, type] of Object.entries(TYPES)) {
  for (const { dialect, tools } of rendered(format)) {
    console.log(`  // ${dialect}\n  ${JSON.stringify(tools, null, 2)} satisfies ${type},`);
  }
}
for (const [format, type] of Object.entries(RESULTS)) {
  console.log(`  ${JSON.stringify(results(format), null, 2)} satisfies ${type},`);
}
console.log("];");
