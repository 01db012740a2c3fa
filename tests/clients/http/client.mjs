// Calls the daemon with Connect's clients, by each protocol, and watches the calls with `ws`.
//
// Arguments: the daemon's address, and a file with the descriptors of the contract.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createFileRegistry, fromBinary } from "@bufbuild/protobuf";
import { FileDescriptorSetSchema } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import * as node from "@connectrpc/connect-node";
import * as web from "@connectrpc/connect-web";
import { WebSocket } from "ws";

const [address, descriptors] = process.argv.slice(2);
const registry = createFileRegistry(fromBinary(FileDescriptorSetSchema, readFileSync(descriptors)));
const service = (name) => registry.getService(`jig.v1.${name}`);
const baseUrl = `http://${address}`;

const transports = {
  "Connect over HTTP/1.1": node.createConnectTransport({ baseUrl, httpVersion: "1.1" }),
  "Connect over HTTP/2": node.createConnectTransport({ baseUrl, httpVersion: "2" }),
  "Connect with protobuf": node.createConnectTransport({ baseUrl, httpVersion: "2", useBinaryFormat: true }),
  "Connect with GET": node.createConnectTransport({ baseUrl, httpVersion: "1.1", useHttpGet: true }),
  "Connect of browsers": web.createConnectTransport({ baseUrl }),
  "gRPC-Web": node.createGrpcWebTransport({ baseUrl, httpVersion: "1.1" }),
  "gRPC-Web of browsers": web.createGrpcWebTransport({ baseUrl }),
  gRPC: node.createGrpcTransport({ baseUrl }),
};

async function tryTransport(transport) {
  const tools = createClient(service("ToolService"), transport);
  const result = await tools.run({ command: "echo hello" });
  assert.equal(result.stdout, "hello\n");

  const info = await createClient(service("DaemonService"), transport).getInfo({});
  assert.ok(info.version);

  await assert.rejects(tools.readFile({ path: "missing" }), (error) => {
    assert.ok(error instanceof ConnectError);
    assert.equal(error.code, Code.NotFound);
    assert.equal(error.details.length > 0, true);
    return true;
  });
  await assert.rejects(tools.run({ command: "sleep 60" }, { timeoutMs: 300 }), (error) => {
    assert.equal(error.code, Code.DeadlineExceeded);
    return true;
  });

  let output = "";
  for await (const { event } of createClient(service("ProcessService"), transport).start({ command: "echo a; echo b" })) {
    if (event.case === "stdout") output += new TextDecoder().decode(event.value.data);
  }
  assert.equal(output, "a\nb\n");
}

async function watchByWebSocket() {
  const socket = new WebSocket(`ws://${address}/v1/sessions/of-ws/events`);
  const messages = [];
  const result = new Promise((resolve) => {
    socket.on("message", (data) => {
      messages.push(JSON.parse(data));
      if (messages.at(-1).type === "agent:tool_result") resolve();
    });
  });
  await new Promise((resolve, reject) => socket.on("open", resolve).on("error", reject));

  const response = await fetch(`${baseUrl}/jig.v1.InvokeService/Invoke`, {
    method: "POST",
    headers: { "content-type": "application/json", "jig-session": "of-ws" },
    body: JSON.stringify({ dialect: "claude", tool: "Bash", requestId: "tool_use_123", params: { command: "echo hi" } }),
  });
  assert.equal(response.status, 200, await response.text());
  await result;
  const payloads = Object.fromEntries(messages.map((message) => [message.type, message.payload]));
  assert.deepEqual(payloads["agent:tool_use"], { id: "tool_use_123", name: "Bash", input: { command: "echo hi" } });
  assert.equal(payloads["agent:tool_result"].tool_use_id, "tool_use_123");
  assert.equal(payloads["agent:tool_result"].is_error, false);

  const closed = new Promise((resolve) => socket.on("close", resolve));
  socket.close();
  assert.equal(await closed, 1005);
}

let [passed, failed] = [0, 0];
const checks = Object.entries(transports).map(([name, transport]) => [name, () => tryTransport(transport)]);
for (const [name, check] of [...checks, ["WebSocket", watchByWebSocket]]) {
  try {
    await check();
    passed += 1;
  } catch (error) {
    failed += 1;
    console.log(`${name}: ${error.stack}`);
  }
}
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed === 0 ? 0 : 1);
