// Connections of the official TypeScript SDK, version 1, to a URL or a program with arguments.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";

export async function connect([target, ...args], onQuestion) {
  const capabilities = onQuestion === undefined ? {} : { elicitation: {} };
  const client = new Client({ name: "jig-test", version: "1" }, { capabilities });
  if (onQuestion !== undefined) client.setRequestHandler(ElicitRequestSchema, onQuestion);
  const transport = target.startsWith("http")
    ? new StreamableHTTPClientTransport(new URL(target))
    : new StdioClientTransport({ command: target, args, env: { ...process.env }, stderr: "inherit" });
  await client.connect(transport);
  return client;
}
