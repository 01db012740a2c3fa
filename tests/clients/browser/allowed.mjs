// Calls tools by each protocol that a page can use, and watches the calls.
//
// Parameters: `daemon`, an address, and `key`.

import { createFileRegistry, fromBinary } from "@bufbuild/protobuf";
import { FileDescriptorSetSchema } from "@bufbuild/protobuf/wkt";
import { Code, createClient } from "@connectrpc/connect";
import { createConnectTransport, createGrpcWebTransport } from "@connectrpc/connect-web";
import { assertEqual, call, openEvents, opensOrCloses, parameters, runChecks } from "./page.mjs";

const { daemon, key } = parameters;
const headersOf = (session) => ({ authorization: `Bearer ${key}`, "jig-session": session });

const descriptors = new Uint8Array(await (await fetch("contract.binpb")).arrayBuffer());
const registry = createFileRegistry(fromBinary(FileDescriptorSetSchema, descriptors));
const service = (name) => registry.getService(`jig.v1.${name}`);

// Makes one call in a new session, and waits until the WebSocket has reported its begin and its end.
async function watch(session, command, makeCall) {
  const socket = openEvents(daemon, session, key);
  assertEqual(await opensOrCloses(socket), "open");
  assertEqual(socket.protocol, "jig.events");

  const events = [];
  const finished = new Promise((resolve, reject) => {
    socket.onmessage = ({ data }) => {
      events.push(JSON.parse(data));
      if (events.at(-1).type === "tool_call_finished") resolve();
    };
    socket.onclose = ({ code }) => reject(new Error(`closed with ${code} after ${JSON.stringify(events)}`));
  });
  assertEqual(await makeCall(command, headersOf(session)), "hello\n");
  await finished;
  const uses = events.filter(({ type }) => type === "agent:tool_use");
  assertEqual(uses.map(({ payload }) => payload.input.command), [command]);
  socket.onclose = null;
  socket.close();
}

async function runByFetch(command, headers) {
  const response = await call(daemon, "ToolService/Run", { command }, headers);
  assertEqual(response.status, 200);
  return (await response.json()).stdout;
}

async function tryTransport(session, createTransport) {
  const headers = headersOf(session);
  const transport = createTransport({ baseUrl: `http://${daemon}` });
  const tools = createClient(service("ToolService"), transport);
  await watch(session, "echo hello", async (command) => (await tools.run({ command }, { headers })).stdout);

  const error = await tools.readFile({ path: "missing" }, { headers }).catch((error) => error);
  assertEqual([error.code, error.details.length > 0], [Code.NotFound, true]);

  let output = "";
  for await (const { event } of createClient(service("ProcessService"), transport).start({ command: "echo a; echo b" }, { headers })) {
    if (event.case === "stdout") output += new TextDecoder().decode(event.value.data);
  }
  assertEqual(output, "a\nb\n");
}

async function tryWithoutKey() {
  const response = await call(daemon, "ToolService/Run", { command: "touch without-key" });
  assertEqual([response.status, (await response.json()).code], [401, "unauthenticated"]);
  assertEqual(await opensOrCloses(openEvents(daemon, "browser")), "close");
}

await runChecks({
  fetch: () => watch("browser", "touch by-allowed-page && echo hello", runByFetch),
  Connect: () => tryTransport("browser-connect", createConnectTransport),
  "gRPC-Web": () => tryTransport("browser-grpc-web", createGrpcWebTransport),
  "without a key": tryWithoutKey,
});
