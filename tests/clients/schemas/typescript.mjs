// Prints a TypeScript program that gives the rendered tools to the types that the vendors' packages have for them: the compiler refuses what they do
// not have.
import { rendered } from "./rendered.mjs";

const TYPES = {
  "openai-chat": "ChatCompletionFunctionTool[]",
  "openai-responses": "FunctionTool[]",
  anthropic: "AnthropicTool[]",
  gemini: "Plain<GeminiTool[]>",
  mcp: 'ListToolsResult["tools"]',
};

console.log(`import type { Tool as AnthropicTool } from "@anthropic-ai/sdk/resources/messages";
import type { Tool as GeminiTool } from "@google/genai";
import type { ListToolsResult } from "@modelcontextprotocol/sdk/types.js";
import type { ChatCompletionFunctionTool } from "openai/resources/chat/completions";
import type { FunctionTool } from "openai/resources/responses/responses";

// What stands for a value in JSON: the text of an enum, not its name in the program, in either case.
type Plain<T> = T extends string ? \`\${T}\` | Lowercase<T> : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;

export const all = [`);
for (const [format, type] of Object.entries(TYPES)) {
  for (const { dialect, tools } of rendered(format)) {
    console.log(`  // ${dialect}\n  ${JSON.stringify(tools, null, 2)} satisfies ${type},`);
  }
}
console.log("];");
