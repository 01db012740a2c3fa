// Connections of the official TypeScript SDK, version 2, to a URL or a program with arguments.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";

export async function connect([target, ...args], capabilities, versionNegotiation, onQuestion) {
  const client = new Client({ name: "jig-test", version: "1" }, { capabilities, versionNegotiation });
  if (onQuestion !== undefined) client.setRequestHandler("elicitation/create", onQuestion);
  const transport = target.startsWith("http")
    ? new StreamableHTTPClientTransport(new URL(target))
    : new StdioClientTransport({ command: target, args, env: { ...process.env }, stderr: "inherit" });
  await client.connect(transport);
  return client;
}
