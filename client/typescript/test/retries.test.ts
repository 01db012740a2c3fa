import { execFileSync } from "node:child_process";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer as createHttp2Server } from "node:http2";
import { type AddressInfo, connect as connectSocket, createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create, toBinary } from "@bufbuild/protobuf";
import { CallError, Client, Daemon, type ProcessEvent, reasons, Unavailable } from "jig-client";
import { expect, inject, onTestFinished, test } from "vitest";
import { ErrorInfoSchema, RetryInfoSchema } from "../src/gen/google/rpc/error_details_pb.js";
import { collect, connect } from "./support.js";

/** Status, code, reason and delay of a response. */
type Failure = readonly [number, string, string, number?];

const EXHAUSTED: Failure = [429, "resource_exhausted", "RESOURCE_EXHAUSTED", 0.001];

/** Answers calls with the given failures, one after the other, and then with success. */
async function failingServer(failures: Failure[], retries?: number) {
  const requestIds: unknown[] = [];
  const server = createHttp2Server((request, response) => {
    requestIds.push(request.headers["jig-request-id"]);
    const failure = failures.shift();
    request.resume();
    if (failure === undefined) {
      response.writeHead(200, { "content-type": "application/proto" }).end();
      return;
    }
    const [status, code, reason, delaySec] = failure;
    const details = [];
    if (reason) {
      const info = create(ErrorInfoSchema, { reason, domain: "jig.v1" });
      details.push(detail("ErrorInfo", toBinary(ErrorInfoSchema, info)));
    }
    if (delaySec !== undefined) {
      const retryDelay = { seconds: BigInt(Math.floor(delaySec)), nanos: (delaySec % 1) * 1e9 };
      const retry = create(RetryInfoSchema, { retryDelay });
      details.push(detail("RetryInfo", toBinary(RetryInfoSchema, retry)));
    }
    response.writeHead(status, { "content-type": "application/json", "jig-call-id": "call" });
    response.end(JSON.stringify({ code, message: `failed: ${reason}`, details }));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const client = new Client(`127.0.0.1:${(server.address() as AddressInfo).port}`, { retries });
  onTestFinished(async () => {
    await client.close();
    server.close();
  });
  return { client, requestIds };
}

function detail(name: string, value: Uint8Array) {
  return { type: `google.rpc.${name}`, value: Buffer.from(value).toString("base64") };
}

test("retries wait and keep the request id", async () => {
  const { client, requestIds } = await failingServer([
    [429, "resource_exhausted", "RESOURCE_EXHAUSTED", 0.2],
    [503, "unavailable", "DRAINING"],
    [503, "unavailable", ""],
  ]);
  const begin = performance.now();
  await client.run("true");
  expect(performance.now() - begin).toBeGreaterThan(200);
  expect(requestIds[0]).toMatch(/^[0-9a-f]{32}$/);
  expect(requestIds).toEqual(Array(4).fill(requestIds[0]));
  await client.run("true");
  expect(requestIds[4]).not.toBe(requestIds[0]);
  await client.withOptions({ requestId: "own" }).run("true");
  await client.run("true", { requestId: "of-call" });
  expect(requestIds.slice(5)).toEqual(["own", "of-call"]);
});

test("calls that only read have no request id", async () => {
  const { client, requestIds } = await failingServer([[503, "unavailable", ""]]);
  await client.withOptions({ requestId: "own" }).getInfo();
  expect(requestIds).toEqual([undefined, undefined]);
});

test("retries are bounded", async () => {
  const { client, requestIds } = await failingServer(Array(9).fill(EXHAUSTED));
  const error = await client.run("true").catch((error) => error);
  expect(error).toBeInstanceOf(reasons.ResourceExhausted);
  expect(error).toMatchObject({ retryDelaySec: 0.001, code: "RESOURCE_EXHAUSTED", callId: "call" });
  expect(requestIds.length).toBe(6);
  const once = client.withOptions({ retries: 0 }).run("true");
  await expect(once).rejects.toThrow(reasons.ResourceExhausted);
  expect(requestIds.slice(6)).toEqual([undefined]);
});

test("the deadline bounds retries", async () => {
  const { client, requestIds } = await failingServer([[429, "resource_exhausted", "X", 60]]);
  const begin = performance.now();
  await expect(client.run("true", { deadlineSec: 5 })).rejects.toThrow(CallError);
  expect(performance.now() - begin).toBeLessThan(4000);
  expect(requestIds.length).toBe(1);
});

test("a signal ends the wait for a retry", async () => {
  const { client } = await failingServer([[429, "resource_exhausted", "X", 60]]);
  const signal = AbortSignal.timeout(300);
  await expect(client.run("true", { signal })).rejects.toThrow("timeout");
});

test.each([
  [429, "resource_exhausted", "RESOURCE_EXHAUSTED"],
  [503, "unavailable", "STATE_LOST"],
  [409, "aborted", "DAEMON_LOST"],
  [500, "internal", "A_REASON_OF_THE_FUTURE"],
] as const)("other errors are final: %s %s %s", async (status, code, reason) => {
  const failure: Failure = [status, code, reason];
  const { client, requestIds } = await failingServer([failure]);
  const error = await client.run("true").catch((error) => error);
  expect(error).toBeInstanceOf(CallError);
  expect([error.code, error.reason]).toEqual([code.toUpperCase(), reason]);
  expect(requestIds.length).toBe(1);
});

test("an expired deadline is a timeout", async () => {
  const client = connect({ deadlineSec: 0.2, retries: 0 });
  await expect(client.run("sleep 60")).rejects.toThrow(reasons.Timeout);
  await expect(collect(client.stream("sleep 60"))).rejects.toThrow(reasons.Timeout);
});

test("no daemon is unavailable", async () => {
  for (const address of ["unix:/nonexistent/none.sock", "127.0.0.1:1"]) {
    for (const httpVersion of ["1.1", "2"] as const) {
      const client = connect({ retries: 1, httpVersion }, address);
      await expect(client.getInfo()).rejects.toThrow(Unavailable);
    }
  }
});

test("calls wait for a restarted daemon", async () => {
  const directory = await mkdtemp(join(tmpdir(), "jig-test-"));
  onTestFinished(() => rm(directory, { recursive: true }));
  const address = `unix:${join(directory, "again.sock")}`;
  const workspace = join(directory, "workspace");
  await mkdir(workspace);
  const start = () =>
    Daemon.start(workspace, { program: inject("program"), args: [`--listen=${address}`] });
  const client = connect({ retries: 10 }, address);
  const first = await start();
  expect((await client.run("echo before")).ok).toBe(true);
  await first.close();
  const running = client.run("echo after");
  // Several attempts fail.
  await new Promise((resolve) => setTimeout(resolve, 300));
  const second = await start();
  expect((await running).stdout).toBe("after\n");
  await second.close();
});

test("calls share a connection", async () => {
  const client = connect();
  const numbers = Array.from({ length: 40 }, (_, number) => number);
  const results = await Promise.all(numbers.map((number) => client.run(`echo ${number}`)));
  expect(results.map(({ stdout }) => stdout)).toEqual(numbers.map((number) => `${number}\n`));
});

/** Forwards connections to the daemon, and cuts each after some bytes. */
async function cuttingProxy(cutAfter: () => number) {
  const proxy = { cuts: 0, address: "" };
  const sockets = new Set<Socket>();
  const server = createServer((near) => {
    const far = connectSocket(inject("socket").replace(/^unix:/, ""));
    let budget = cutAfter();
    const cut = () => {
      near.destroy();
      far.destroy();
    };
    for (const [source, sink] of [
      [near, far],
      [far, near],
    ] as const) {
      sockets.add(source);
      source.on("data", (data) => {
        budget -= data.length;
        if (budget < 0) {
          proxy.cuts += far.destroyed ? 0 : 1;
          cut();
        } else if (!sink.write(data)) {
          source.pause();
          sink.once("drain", () => source.resume());
        }
      });
      source.on("close", cut).on("error", cut);
    }
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  onTestFinished(() => {
    server.close();
    for (const socket of sockets) {
      socket.destroy();
    }
  });
  proxy.address = `127.0.0.1:${(server.address() as AddressInfo).port}`;
  return proxy;
}

test.each(["2", "1.1"] as const)("copies continue after cuts: HTTP/%s", async (httpVersion) => {
  let seed = 1;
  const proxy = await cuttingProxy(() => {
    seed = (seed * 48_271) % 0x7fffffff;
    return 500_000 + (seed % 250_000);
  });
  const client = connect({ retries: 10, httpVersion }, proxy.address);
  const content = Buffer.alloc(4 << 20, "the quick brown fox jumps over the lazy dog\n");
  const path = `cut-${httpVersion}`;
  expect((await client.upload(content, path)).sizeBytes).toBe(content.length);
  const uploads = proxy.cuts;
  expect(content.equals(await client.readBytes(path))).toBe(true);
  const downloads = proxy.cuts - uploads;
  expectOutput(await collect(client.stream(`cat ${path}`)), content);
  const { jobId } = await client.submitJob("run", { command: `cat ${path}` });
  const events = await collect(client.watchJob(jobId));
  const output = events.flatMap((event) => (event.kind === "stdout" ? [event.data] : []));
  expect(content.equals(Buffer.concat(output))).toBe(true);
  expect(uploads).toBeGreaterThan(3);
  expect(downloads).toBeGreaterThan(3);
  expect(proxy.cuts).toBeGreaterThan(12);
  await client.deletePath(path);
});

test("copies of trees start again after cuts", async () => {
  let cutAt = 500_000;
  const proxy = await cuttingProxy(() => {
    cutAt = 1_100_000 - cutAt;
    return cutAt;
  });
  const client = connect({ retries: 10 }, proxy.address);
  const directory = await mkdtemp(join(tmpdir(), "jig-test-"));
  onTestFinished(() => rm(directory, { recursive: true }));
  await writeFile(join(directory, "file"), Buffer.alloc(300_000, "x"));
  const archive = execFileSync("tar", ["-c", "-C", directory, "file"]);
  for (let number = 0; number < 8; number += 1) {
    expect((await client.uploadTree(archive, `cut-tree-${number}`)).files).toBe(1);
    const summary = await client.downloadTree(`cut-tree-${number}`, join(directory, "back"));
    expect(summary).toMatchObject({ files: 1, sizeBytes: 300_000 });
  }
  expect(proxy.cuts).toBeGreaterThan(3);
});

/** Checks that all output was received once, except what a gap stands for. */
function expectOutput(events: ProcessEvent[], content: Buffer): void {
  expect([events.at(0)?.kind, events.at(-1)?.kind]).toEqual(["started", "exited"]);
  let offset = 0;
  for (const event of events.slice(1, -1)) {
    if (event.kind === "gap") {
      // While the connection was lost, the command wrote more than the daemon holds.
      expect(event.stdoutOffset).toBeGreaterThan(offset);
      offset = event.stdoutOffset;
    } else if (event.kind === "stdout") {
      expect(event.offset).toBe(offset);
      expect(content.subarray(offset, offset + event.data.length).equals(event.data)).toBe(true);
      offset += event.data.length;
    }
  }
  expect(offset).toBe(content.length);
}
