import { type Client, CommandFailed, ConfigurationError, reasons, Unavailable } from "jig-client";
import { expect, test } from "vitest";
import { collect, connect, outputOf, readUntil, sessionOf, waitFor } from "./support.js";

test("run returns how the command ended", async () => {
  const client = connect();
  const result = await client.run("echo out; echo err >&2; exit 3");
  expect(result).toMatchObject({
    outcome: "EXITED",
    exitCode: 3,
    stdout: "out\n",
    stderr: "err\n",
  });
  expect([result.ok, result.shellExitCode]).toEqual([false, 3]);
  expect(() => result.check()).toThrow(CommandFailed);
  expect(() => result.check()).toThrow("exit code 3: err");
  expect((await client.run(["echo", "$HOME"])).stdout).toBe("$HOME\n");
});

test.each([
  [{ timeoutSec: "10" }, "timeoutSec is 10; it must be an integer from 0 to 4294967295"],
  [{ timeoutSec: Number.NaN }, "timeoutSec is NaN"],
  [{ cwd: 5 }, "cwd is 5; it must be a string"],
  [{ env: { DEPTH: 3 } }, "env is 3; it must be a string"],
  [{ limits: 64 }, "limits is 64; it must be an object"],
  [{ limits: { memoryBytes: 1.5 } }, "memoryBytes is 1.5; it must be an integer from 0"],
])("run rejects %j, and is not repeated", async (options, message) => {
  const run = connect({ deadlineSec: 60 }).run("true", options as never);
  await expect(run).rejects.toThrow(ConfigurationError);
  await expect(run).rejects.toThrow(message);
});

test("run takes all fields", async () => {
  const client = connect();
  await client.createDirectory("run-here");
  const result = await client.run("pwd; echo $NAME; cat; ulimit -n", {
    cwd: "run-here",
    env: { NAME: "value" },
    stdin: "input\n",
    timeoutSec: 10,
    limits: { openFiles: 64 },
  });
  expect(result.stdout).toBe("/workspace/run-here\nvalue\ninput\n64\n");
  const short = await client.run("seq 10000", { maxOutputBytes: 100 });
  expect(short).toMatchObject({ stdoutTruncated: true, stdoutBytes: 48894 });
  const whole = await client.readArtifact(short.stdoutPath);
  expect(whole.length).toBe(48894);
  const part = await client.readArtifact(short.stdoutPath, { offset: 2, limit: 3 });
  expect(part).toEqual(whole.subarray(2, 5));
});

test("a shell remembers until it is restarted", async () => {
  const client = connect();
  const shell = "remembers";
  expect((await client.run("cd /usr; x=1", { shell })).shellState).toBe("updated");
  expect((await client.run("pwd; echo $x", { shell })).stdout).toBe("/usr\n1\n");
  const again = await client.run("pwd; echo $x", { shell, restartShell: true });
  expect(again.stdout).toBe("/workspace\n\n");
});

test("a killed command has no exit code", async () => {
  const client = connect();
  const timedOut = await client.run("sleep 60", { timeoutSec: 1 });
  expect(timedOut.outcome).toBe("TIMED_OUT");
  expect([timedOut.exitCode, timedOut.ok, timedOut.shellExitCode]).toEqual([undefined, false, 124]);
  const killed = await client.run("kill -KILL $$");
  expect([killed.outcome, killed.signal, killed.shellExitCode]).toEqual([
    "SIGNALED",
    "SIGKILL",
    137,
  ]);
});

test("a command that cannot start is an error", async () => {
  const client = connect();
  await expect(client.run(["no-such-program"])).rejects.toThrow(reasons.CommandNotFound);
  const elsewhere = client.run("true", { cwd: "no-such-directory" });
  await expect(elsewhere).rejects.toThrow(reasons.DirectoryNotFound);
  const error = await client.run("true", { timeoutSec: 0 }).catch((error) => error);
  expect(error).toBeInstanceOf(reasons.InvalidParams);
  expect(error).toMatchObject({ name: "InvalidParams", code: "INVALID_ARGUMENT" });
  expect(error.violations).toMatchObject([{ field: "timeout_sec" }]);
  expect(error.callId).not.toBe("");
});

test("the last command of a session", async () => {
  const client = connect();
  await expect(client.lastCommand()).rejects.toThrow(reasons.NoCommandHistory);
  await client.run("echo last");
  expect((await client.lastCommand()).stdout).toBe("last\n");
});

test("a stream has output while the command runs", async () => {
  const events = connect().stream("echo one; sleep 0.3; echo two >&2; exit 5");
  expect((await events.next()).value).toMatchObject({ kind: "started" });
  const { value: first } = await events.next();
  expect(first).toMatchObject({
    kind: "stdout",
    offset: 0,
    data: new TextEncoder().encode("one\n"),
  });
  const begin = performance.now();
  expect((await events.next()).value).toMatchObject({ kind: "stderr", offset: 0 });
  expect(performance.now() - begin).toBeGreaterThan(100);
  expect((await events.next()).value).toMatchObject({ kind: "exited", exitCode: 5, ok: false });
  expect(await events.next()).toEqual({ done: true, value: undefined });
});

test("leaving a stream kills its command", async () => {
  const client = connect();
  for await (const event of client.stream("sleep 600")) {
    if (event.kind === "started") {
      await expectRunning(client, event.processId);
      break;
    }
  }
  await expectKilled(client);
});

test("a signal ends a stream and its command", async () => {
  const client = connect();
  const controller = new AbortController();
  const reading = collect(client.stream("sleep 600", { signal: controller.signal }));
  await waitFor(async () => (await processesOf(client)).length > 0);
  controller.abort(new Error("enough"));
  await expect(reading).rejects.toThrow("enough");
  await expectKilled(client);
});

test("a signal ends a call", async () => {
  const client = connect({ retries: 0 });
  const signal = AbortSignal.timeout(500);
  await expect(client.run("sleep 600", { signal })).rejects.toThrow("timeout");
  await waitFor(async () => !(await client.lastCommand()).running);
  expect((await client.lastCommand()).outcome).toBe("CANCELLED");
  await expect(client.run("true", { signal })).rejects.toThrow("timeout");
});

test("a process with a terminal", async () => {
  const pty = { cols: 80, rows: 24 };
  const process = await connect().start("stty size; read line; stty size; cat", { pty });
  expect(await readUntil(process, "24 80\r\n")).toContain("24 80");
  await process.resize(100, 30);
  await process.write("go\n");
  expect(await readUntil(process, "30 100\r\n")).toContain("30 100");
  await process.write("typed\n");
  expect(await readUntil(process, "typed")).toContain("typed");
  await process.closeStdin();
  const exited = await process.wait();
  expect(exited.ok).toBe(true);
  expect(process.exited).toBe(exited);
  await expect(process.sendSignal("SIGTERM")).rejects.toThrow(reasons.ProcessEnded);
  await process.close();
});

test("a process with pipes", async () => {
  const client = connect();
  const process = await client.start(["cat"]);
  for (let count = 0; count < 3; count += 1) {
    await process.write(new Uint8Array(1 << 19).fill(121));
  }
  await process.closeStdin();
  expect(outputOf(await collect(process)).length).toBe(3 << 19);
  await expect(process.write("late")).rejects.toThrow(/./);

  const trap = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.1; done";
  const other = await client.start(trap);
  await readUntil(other, "ready");
  await other.sendSignal("SIGTERM");
  expect((await other.wait()).exitCode).toBe(7);
});

test("a request id starts one process", async () => {
  const client = connect();
  const requestId = crypto.randomUUID();
  const process = await client.start("echo started; cat", { requestId });
  const again = await client.start("echo started; cat", { requestId });
  expect(again.processId).toBe(process.processId);
  await process.write("x\n");
  expect(await readUntil(again, "x\n")).toBe("started\nx\n");
  await process.close();
  await again.close();
});

test("attach continues a process", async () => {
  const client = connect();
  const process = await client.start("echo first; cat", { onDisconnect: "KEEP" });
  await readUntil(process, "first\n");
  await process.close();
  const { processId } = process;

  const again = await client.attach(processId, { stdoutOffset: 2 });
  await again.write("second\n");
  expect(await readUntil(again, "second\n")).toBe("rst\nsecond\n");
  await again.close();
  await expectRunning(client, processId);

  const last = await client.attach(processId);
  await last.sendSignal("SIGKILL");
  expect((await last.wait()).signal).toBe("SIGKILL");
  const absent = client.attach("01HZZZZZZZZZZZZZZZZZZZZZZZ");
  await expect(absent).rejects.toThrow(reasons.ProcessNotFound);
});

test("another task can close a process", async () => {
  const client = connect();
  const process = await client.start("sleep 600");
  const reading = collect(process);
  setTimeout(() => process.close(), 300);
  expect(await reading).toEqual([]);
  await expect(process.wait()).rejects.toThrow(Unavailable);
  await expectKilled(client);
});

test("bytes of a command are not changed", async () => {
  const events = await collect(connect().stream(["printf", "\\377\\000a"]));
  const bytes = events.flatMap((event) => (event.kind === "stdout" ? [...event.data] : []));
  expect(bytes).toEqual([255, 0, 97]);
});

/** The processes of the client's session. */
async function processesOf(client: Client) {
  const session = sessionOf();
  return (await client.listProcesses()).filter((process) => process.session === session);
}

async function expectRunning(client: Client, processId: string): Promise<void> {
  const known = await client.listProcesses();
  expect(known.find((process) => process.processId === processId)?.state).toBe("RUNNING");
}

/** Waits less than the 30 s that a process with a request id has without a stream. */
async function expectKilled(client: Client): Promise<void> {
  await waitFor(async () => {
    const [process] = await processesOf(client);
    return process?.state === "ENDED" && process.signal === "SIGKILL";
  });
}
