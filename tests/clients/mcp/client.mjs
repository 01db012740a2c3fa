// The official TypeScript SDK, version 2: `client.mjs WORKSPACE (URL | PROGRAM ARGUMENT...)`.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { check, checkClient, expect, report } from "./checks.mjs";

const [workspace, target, ...args] = process.argv.slice(2);
const transport = () =>
  target.startsWith("http")
    ? new StreamableHTTPClientTransport(new URL(target))
    : new StdioClientTransport({ command: target, args, env: { ...process.env }, stderr: "inherit" });

async function connect(capabilities, versionNegotiation) {
  const client = new Client({ name: "jig-test", version: "1" }, { capabilities, versionNegotiation });
  await client.connect(transport());
  return client;
}

for (const mode of [{ pin: "2026-07-28" }, "legacy"]) {
  const client = await connect({}, { mode });
  await check(`${JSON.stringify(mode)} is negotiated`, () => {
    const version = client.getNegotiatedProtocolVersion();
    expect((version === "2026-07-28") === (mode !== "legacy"), version);
  });
  await checkClient(client, workspace);
  await client.close();
}
report();
