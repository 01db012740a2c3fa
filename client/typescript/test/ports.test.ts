import { once } from "node:events";
import { Agent, get, type IncomingMessage } from "node:http";
import { createServer as createHttp2Server } from "node:http2";
import type { AddressInfo } from "node:net";
import { buffer } from "node:stream/consumers";
import { create, toBinary } from "@bufbuild/protobuf";
import { Client, type Process, reasons, Unavailable } from "jig-client";
import { expect, inject, onTestFinished, test } from "vitest";
import { ForwardPortResponseSchema } from "../src/gen/jig/v1/process_service_pb.js";
import { connect, readUntil, waitFor } from "./support.js";

/** Starts a Python server, and waits until it listens on port 8000. */
async function serve(client: Client, body: string): Promise<Process> {
  const script = `import socket, threading, time
listener = socket.create_server(("127.0.0.1", 8000))
print("ready", flush=True)
${body}`;
  const process = await client.start(["python3", "-c", script]);
  onTestFinished(() => process.close());
  await readUntil(process, "ready");
  return process;
}

const ECHO = `
def echo(stream):
    while data := stream.recv(65536): stream.sendall(data)
    stream.close()
while True: threading.Thread(target=echo, args=[listener.accept()[0]]).start()
`;

test("bytes pass in both directions at once", async () => {
  const client = connect();
  const { processId } = await serve(client, ECHO);
  const sent = Buffer.alloc(5_000_000, "0123456789abcde\n");
  for (let round = 0; round < 3; round += 1) {
    const stream = await client.connectPort(processId, 8000);
    stream.end(sent);
    expect((await buffer(stream)).equals(sent)).toBe(true);
  }
});

test("each direction ends by itself", async () => {
  const client = connect();
  const process = await serve(
    client,
    `
stream = listener.accept()[0]
stream.sendall(b"first")
stream.shutdown(socket.SHUT_WR)
received = b""
while data := stream.recv(65536): received += data
print("received", received.decode(), flush=True)
stream.close()
time.sleep(60)
`,
  );
  const stream = await client.connectPort(process.processId, 8000);
  expect((await buffer(stream)).toString()).toBe("first");
  stream.end("later");
  await readUntil(process, "received later");
});

test("an HTTP server is reached by an agent", async () => {
  const client = connect();
  const { processId } = await serve(
    client,
    `
while True:
    stream = listener.accept()[0]
    path = stream.recv(65536).split()[1]
    stream.sendall(b"HTTP/1.1 200 OK\\r\\nConnection: close\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(path) + path)
    stream.close()
`,
  );
  const agent = new Agent();
  agent.createConnection = (_, onConnected) => {
    void client.connectPort(processId, 8000).then((socket) => onConnected?.(null, socket));
    return undefined;
  };
  const request = get({ agent, path: "/page" });
  const [response] = (await once(request, "response")) as [IncomingMessage];
  expect((await buffer(response)).toString()).toBe("/page");
});

test("failures have their reasons", async () => {
  const client = connect();
  const process = await serve(
    client,
    "held = [listener.accept()[0]]\nprint('accepted', flush=True)\ntime.sleep(60)",
  );
  await expect(client.connectPort(process.processId, 8001)).rejects.toThrow(reasons.PortRefused);
  await expect(client.connectPort("none", 8000)).rejects.toThrow(reasons.ProcessNotFound);
  const stream = await client.connectPort(process.processId, 8000);
  stream.resume();
  // The kernel resets a connection that no process has accepted.
  await readUntil(process, "accepted");
  await process.sendSignal("KILL");
  const [error] = await once(stream, "error");
  expect(error).toBeInstanceOf(reasons.ProcessEnded);
  await expect(client.connectPort(process.processId, 8000)).rejects.toThrow(reasons.ProcessEnded);
});

test("data before the end of the process can be read", async () => {
  const client = connect();
  const process = await serve(
    client,
    `
stream = listener.accept()[0]
stream.sendall(b"x" * 2_000_000)
stream.shutdown(socket.SHUT_WR)
stream.recv(1)
`,
  );
  const stream = await client.connectPort(process.processId, 8000);
  stream.write("x");
  const received: number[] = [];
  const failure = once(stream, "error");
  stream.on("data", (data: Buffer) => received.push(data.length));
  // Listening for "error" does not delay the data.
  await once(stream, "end");
  expect(received.reduce((sum, length) => sum + length)).toBe(2_000_000);
  await expect(failure).resolves.toEqual([expect.any(reasons.ProcessEnded)]);
});

test("a paused stream holds the server back", async () => {
  const client = connect();
  const process = await serve(
    client,
    `
SIZE = 1000 * 16384
stream = listener.accept()[0]
stream.settimeout(2)
sent = 0
try:
    while sent < SIZE: sent += stream.send(bytes(16384))
except TimeoutError: print("held back", flush=True)
stream.settimeout(None)
stream.sendall(bytes(SIZE - sent))
stream.close()
time.sleep(60)
`,
  );
  const stream = await client.connectPort(process.processId, 8000);
  // Also after the end of its own data.
  stream.end();
  await readUntil(process, "held back");
  expect((await buffer(stream)).length).toBe(1000 * 16384);
});

test("a writer notices a lost connection, without reading", async () => {
  const client = connect();
  const process = await serve(
    connect(),
    "stream = listener.accept()[0]\nstream.sendall(bytes(64_000_000))",
  );
  const stream = await client.connectPort(process.processId, 8000);
  await waitFor(async () => stream.readableLength >= stream.readableHighWaterMark);
  await client.close();
  stream.write("lost");
  const [error] = await once(stream, "error");
  expect(error).toBeInstanceOf(Unavailable);
});

test("a loss after both ends of the data is an error only for listeners", async () => {
  const encode = (part: "connected" | "endOfData") => {
    const message = create(ForwardPortResponseSchema, { part: { case: part, value: {} } });
    const data = toBinary(ForwardPortResponseSchema, message);
    const header = Buffer.alloc(5);
    header.writeUInt32BE(data.length, 1);
    return Buffer.concat([header, data]);
  };
  // Sends the end of its data, and never that of the call.
  const server = createHttp2Server((request, response) => {
    request.resume();
    response.writeHead(200, { "content-type": "application/connect+proto" });
    response.write(Buffer.concat([encode("connected"), encode("endOfData")]));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  onTestFinished(() => void server.close());
  const client = new Client(`127.0.0.1:${(server.address() as AddressInfo).port}`);

  const unheard = await client.connectPort("process", 8000);
  const heard = await client.connectPort("process", 8000);
  const failure = once(heard, "error");
  for (const stream of [unheard, heard]) {
    stream.resume();
    await waitFor(async () => stream.readableEnded);
    stream.end("later");
    await waitFor(async () => stream.writableLength === 0);
  }
  await client.close();
  await expect(failure).resolves.toEqual([expect.any(Unavailable)]);
  await waitFor(async () => unheard.closed);
  expect(unheard.writableFinished).toBe(false);
});

test("a signal ends the connection, and a deadline only the attempt", async () => {
  const client = connect({ deadlineSec: 3 });
  const { processId } = await serve(client.withOptions({ deadlineSec: 45 }), ECHO);
  const closing = new AbortController();
  const stream = await client.connectPort(processId, 8000, { signal: closing.signal });
  const end = performance.now() + 3000;
  await waitFor(async () => performance.now() > end);
  stream.write("still open");
  const [echoed] = await once(stream, "data");
  expect(String(echoed)).toBe("still open");
  const failure = once(stream, "error");
  closing.abort(new Error("enough"));
  await expect(failure).resolves.toEqual([new Error("enough")]);
  const late = client.connectPort(processId, 8000, { signal: closing.signal });
  await expect(late).rejects.toThrow("enough");
});

test("HTTP/1.1 carries connections too", async () => {
  const { processId } = await serve(connect(), ECHO);
  const client = connect({ httpVersion: "1.1" }, inject("port"));
  const stream = await client.connectPort(processId, 8000);
  stream.write("first");
  const [echoed] = await once(stream, "data");
  expect(String(echoed)).toBe("first");
  stream.end("second");
  expect((await buffer(stream)).toString()).toBe("second");
});

test("a destroyed stream resets its connection", async () => {
  const client = connect();
  const process = await serve(
    client,
    `
stream = listener.accept()[0]
try: print("ended", stream.recv(1))
except ConnectionResetError: print("reset")
`,
  );
  const stream = await client.connectPort(process.processId, 8000);
  stream.destroy();
  expect(await readUntil(process, "\n")).toContain("reset");
});
