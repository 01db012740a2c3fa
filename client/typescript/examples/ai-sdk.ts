// An agent of the Vercel AI SDK whose tools work in a sandbox of jig. A script replaces the model.
//
// Usage: JIG_ADDRESS=127.0.0.1:50051 node ai-sdk.ts

import { generateText, isStepCount, jsonSchema, tool } from "ai";
import { MockLanguageModelV4 } from "ai/test";
import { Client } from "jig-client";
import { sandboxSession } from "jig-client/ai-sdk";

type Reply = Awaited<ReturnType<MockLanguageModelV4["doGenerate"]>>;

const MAX_STEPS = 20;

function reply(content: Reply["content"][number], reason: "tool-calls" | "stop"): Reply {
  return {
    content: [content],
    finishReason: { unified: reason, raw: reason },
    usage: {
      inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
      outputTokens: { total: 1, text: 1, reasoning: 0 },
    },
    warnings: [],
  };
}

function callTool(toolName: string, input: object): Reply {
  const content = { type: "tool-call", toolCallId: toolName, toolName } as const;
  return reply({ ...content, input: JSON.stringify(input) }, "tool-calls");
}

const model = new MockLanguageModelV4({
  doGenerate: [
    callTool("write_file", { path: "greet.sh", content: "echo hello from the sandbox\n" }),
    callTool("shell", { command: "sh greet.sh" }),
    reply({ type: "text", text: "Done." }, "stop"),
  ],
});

const write_file = tool({
  description: "Writes a file of the sandbox.",
  inputSchema: jsonSchema<{ path: string; content: string }>({
    type: "object",
    properties: { path: { type: "string" }, content: { type: "string" } },
    required: ["path", "content"],
  }),
  async execute(input, { experimental_sandbox: sandbox }) {
    await sandbox?.writeTextFile(input);
    return `wrote ${input.path}`;
  },
});

const shell = tool({
  description: "Runs a command in the sandbox.",
  inputSchema: jsonSchema<{ command: string }>({
    type: "object",
    properties: { command: { type: "string" } },
    required: ["command"],
  }),
  async execute({ command }, { experimental_sandbox: sandbox, abortSignal }) {
    return sandbox?.run({ command, ...(abortSignal && { abortSignal }) });
  },
});

const client = new Client();
const workspace = await client.createWorkspace();
try {
  const inside = client.withOptions({ workspace: workspace.name });
  const sandbox = sandboxSession(inside, { timeoutSec: 60 });
  const result = await generateText({
    model,
    instructions: sandbox.description,
    prompt: "Write a script that prints a greeting, and run it.",
    tools: { write_file, shell },
    stopWhen: isStepCount(MAX_STEPS),
    experimental_sandbox: sandbox,
  });
  for (const { toolName, output } of result.steps.flatMap((step) => step.toolResults)) {
    console.log(`${toolName}: ${JSON.stringify(output)}`);
  }
  console.log(result.text);
} finally {
  await client.deleteWorkspace(workspace.name);
  await client.close();
}
