// Tasks by the official client of the extension: `tasks.mjs WORKSPACE (URL | PROGRAM ARGUMENT...)`. Calls of dangerous tools need approval.
import { createTaskSessionFromClient, resultFromTaskOutcome } from "@modelcontextprotocol/ext-tasks/client";
import { existsSync, rmSync } from "node:fs";
import { join } from "node:path";
import { check, expect, report, waitUntilGone } from "./checks.mjs";
import { connect } from "./connect.mjs";

const [workspace, ...target] = process.argv.slice(2);
const clientInfo = { name: "jig-test", version: "1" };
const clientCapabilities = { elicitation: {} };
const client = await connect(target, clientCapabilities, { mode: { pin: "2026-07-28" } });

// The extension's client sends messages that the SDK's client does not know, over the same connection.
let lastId = 0;
const waiting = new Map();
const { transport } = client;
const { onmessage } = transport;
transport.onmessage = (message, extra) => {
  const resolve = waiting.get(message.id);
  if (resolve === undefined || message.method !== undefined) return onmessage.call(transport, message, extra);
  waiting.delete(message.id);
  resolve(message.error === undefined ? { kind: "result", result: message.result } : { kind: "error", error: message.error });
};
async function rawDispatch(request) {
  const id = `task-${(lastId += 1)}`;
  const response = new Promise((resolve) => waiting.set(id, resolve));
  await transport.send({ ...request, jsonrpc: "2.0", id });
  return await response;
}

let action = "accept";
const questions = [];
const session = createTaskSessionFromClient(client, {
  endpointId: "jig",
  rawDispatch,
  v2RequestFraming: { protocolVersion: "2026-07-28", clientInfo, clientCapabilities },
  onInputRequest: (request) => {
    questions.push(request.params.message);
    return { action, content: {} };
  },
});

await check("a long call is a task with a result", async () => {
  const execution = await session.callTool("slow_compute", { seconds: 1 });
  const states = [];
  const { outcome } = await execution.settle({ onEvent: (event) => states.push(event.task?.status) });
  const result = resultFromTaskOutcome(outcome);
  expect(states.includes("working") && result.structuredContent.stdout === "computed\n", { states, result });
});

await check("a cancelled task leaves no process", async () => {
  const execution = await session.callTool("slow_compute", { seconds: 987652 });
  for await (const event of execution.updates()) {
    if (event.type === "task") break;
  }
  await execution.cancel();
  const { outcome } = await execution.settle();
  expect(outcome.status === "cancelled", outcome);
  await waitUntilGone("sleep 987652");
});

for (action of ["decline", "accept"]) {
  await check(`the user answers the question of a task: ${action}`, async () => {
    const execution = await session.callTool("run", { command: "touch task-approved" });
    const { outcome } = await execution.settle();
    const file = join(workspace, "task-approved");
    const isAccepted = action === "accept";
    const result = resultFromTaskOutcome(outcome);
    expect(!result.isError === isAccepted && existsSync(file) === isAccepted, result);
    rmSync(file, { force: true });
    expect(questions.at(-1).includes("task-approved"), questions);
  });
}

await session.close();
await client.close();
report();
