// The official TypeScript SDK, version 1: `legacy.mjs WORKSPACE (URL | PROGRAM ARGUMENT...)`.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { checkClient, report, setOptionsPosition } from "./checks.mjs";

const [workspace, target, ...args] = process.argv.slice(2);
const transport = target.startsWith("http")
  ? new StreamableHTTPClientTransport(new URL(target))
  : new StdioClientTransport({ command: target, args, env: { ...process.env }, stderr: "inherit" });

setOptionsPosition(2);
const client = new Client({ name: "jig-test", version: "1" }, { capabilities: {} });
await client.connect(transport);
await checkClient(client, workspace);
await client.close();
report();
