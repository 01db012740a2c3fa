import type { Experimental_SandboxSession as SandboxSession } from "@ai-sdk/provider-utils";
import { generateText, jsonSchema, stepCountIs, tool } from "ai";
import { MockLanguageModelV4 } from "ai/test";
import type { Client } from "jig-client";
import { sandboxSession } from "jig-client/ai-sdk";
import { expect, test } from "vitest";
import { connect, makeRoot, text, waitFor } from "./support.js";

async function openSession(): Promise<{ client: Client; sandbox: SandboxSession }> {
  const client = connect();
  const workingDirectory = await makeRoot(client);
  return { client, sandbox: sandboxSession(client, { workingDirectory }) };
}

async function readAll(stream: ReadableStream<Uint8Array> | null): Promise<string> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of stream ?? []) {
    chunks.push(chunk);
  }
  return text(chunks);
}

test("run returns outputs and exit code", async () => {
  const { sandbox } = await openSession();
  expect(sandbox.description).toContain("root-");
  const command = "echo $NAME; echo err >&2; exit 3";
  const result = await sandbox.run({ command, env: { NAME: "value" } });
  expect(result).toEqual({ exitCode: 3, stdout: "value\n", stderr: "err\n" });
  expect((await sandbox.run({ command: "kill -KILL $$" })).exitCode).toBe(137);
  await sandbox.run({ command: "mkdir sub" });
  const inside = await sandbox.run({ command: "pwd", workingDirectory: "sub" });
  expect(inside.stdout).toMatch(/^\/workspace\/root-.*\/sub\n$/);
  const absolute = await sandbox.run({ command: "pwd", workingDirectory: "/workspace" });
  expect(absolute.stdout).toBe("/workspace\n");
});

test("a command is killed after its time", async () => {
  const sandbox = sandboxSession(connect(), { timeoutSec: 0.5 });
  const result = await sandbox.run({ command: "echo begun; sleep 60" });
  expect(result).toEqual({ exitCode: 124, stdout: "begun\n", stderr: "" });
});

test("long output is complete", async () => {
  const { sandbox } = await openSession();
  const { stdout } = await sandbox.run({ command: "seq 500000" });
  expect(stdout.length).toBe(3_388_895);
});

test("files", async () => {
  const { sandbox } = await openSession();
  const path = "a/b.txt";
  await sandbox.writeTextFile({ path, content: "one\ntwo\nthree" });
  expect(await sandbox.readTextFile({ path })).toBe("one\ntwo\nthree");
  expect(await sandbox.readTextFile({ path, startLine: 2 })).toBe("two\nthree");
  expect(await sandbox.readTextFile({ path, startLine: 2, endLine: 2 })).toBe("two\n");
  expect(await sandbox.readTextFile({ path, startLine: 3, endLine: 99 })).toBe("three");
  await sandbox.writeTextFile({ path, content: "é", encoding: "latin1" });
  expect(await sandbox.readBinaryFile({ path })).toEqual(Uint8Array.of(0xe9));
  expect(await sandbox.readTextFile({ path, encoding: "latin1" })).toBe("é");

  const content = new Uint8Array(1 << 20).fill(120);
  await sandbox.writeFile({ path: "stream", content: new Blob([content]).stream() });
  expect(await sandbox.readBinaryFile({ path: "stream" })).toEqual(content);
  expect((await readAll(await sandbox.readFile({ path: "stream" }))).length).toBe(1 << 20);
  await sandbox.writeBinaryFile({ path: "empty", content: new Uint8Array() });
  expect(await readAll(await sandbox.readFile({ path: "empty" }))).toBe("");
  const opened = await sandbox.readFile({ path: "stream" });
  await opened?.cancel();
});

test("an absent file is null", async () => {
  const { sandbox } = await openSession();
  expect(await sandbox.readFile({ path: "none" })).toBeNull();
  expect(await sandbox.readBinaryFile({ path: "none/none" })).toBeNull();
  expect(await sandbox.readTextFile({ path: "none" })).toBeNull();
  await expect(sandbox.readTextFile({ path: "../../etc/passwd" })).rejects.toThrow("leads out of");
});

test("files are described, listed and deleted", async () => {
  const { sandbox } = await openSession();
  await sandbox.run({ command: "mkdir empty; echo text > file; ln -s file link; mkfifo pipe" });
  expect(await sandbox.stat({ path: "file" })).toEqual({ type: "file", size: 5 });
  expect(await sandbox.stat({ path: "empty" })).toMatchObject({ type: "directory" });
  expect(await sandbox.stat({ path: "pipe" })).toMatchObject({ type: "other" });
  expect(await sandbox.stat({ path: "none" })).toBeNull();
  await expect(sandbox.stat({ path: "link" })).rejects.toThrow("symbolic link");

  const entries = await sandbox.listDirectory({ path: "." });
  expect(entries?.map(({ name, type }) => `${name}: ${type}`).sort()).toEqual([
    "empty: directory",
    "file: file",
    "link: symlink",
    "pipe: other",
  ]);
  expect(await sandbox.listDirectory({ path: "empty" })).toEqual([]);
  expect(await sandbox.listDirectory({ path: "none" })).toBeNull();
  await expect(sandbox.listDirectory({ path: "file" })).rejects.toThrow("not a directory");

  expect(await sandbox.deleteFile({ path: "link" })).toBe(true);
  expect(await sandbox.readTextFile({ path: "file" })).toBe("text\n");
  expect(await sandbox.deleteFile({ path: "file" })).toBe(true);
  expect(await sandbox.deleteFile({ path: "file" })).toBe(false);
  await expect(sandbox.deleteFile({ path: "empty" })).rejects.toThrow("is a directory");
});

test("a spawned process reads its standard input", async () => {
  const { sandbox } = await openSession();
  const process = await sandbox.spawn({ command: "cat; echo end", stdin: true });
  const writer = process.stdin.getWriter();
  await writer.write(new TextEncoder().encode("one\n"));
  await writer.close();
  expect(await readAll(process.stdout)).toBe("one\nend\n");
  expect(await process.wait()).toEqual({ exitCode: 0 });

  const ended = await sandbox.spawn({ command: "exit 3", stdin: true });
  expect(await ended.wait()).toEqual({ exitCode: 3 });
  await ended.stdin.close();
  const closed = await sandbox.spawn({ command: "cat" });
  expect("stdin" in closed).toBe(false);
  expect(await closed.wait()).toEqual({ exitCode: 0 });
});

test("a spawned process streams, and can be killed", async () => {
  const { sandbox } = await openSession();
  const process = await sandbox.spawn({ command: "echo err >&2; echo ready; sleep 600" });
  const reader = process.stdout.getReader();
  expect(text((await reader.read()).value ?? new Uint8Array())).toBe("ready\n");
  await process.kill();
  await process.kill();
  expect(await process.wait()).toEqual({ exitCode: 137 });
  expect((await reader.read()).done).toBe(true);
  expect(await readAll(process.stderr)).toBe("err\n");
});

test("a process whose output is not read waits, and can be killed", async () => {
  const { sandbox } = await openSession();
  const process = await sandbox.spawn({ command: "yes" });
  await new Promise((resolve) => setTimeout(resolve, 1000));
  await process.kill();
  expect(await process.wait()).toEqual({ exitCode: 137 });
  await process.stdout.cancel();
});

test("an abort kills the process", async () => {
  const { client, sandbox } = await openSession();
  const controller = new AbortController();
  const command = "sleep 601";
  const process = await sandbox.spawn({ command, abortSignal: controller.signal });
  controller.abort(new Error("enough"));
  await expect(process.wait()).rejects.toThrow("enough");
  await expect(readAll(process.stdout)).rejects.toThrow("enough");
  await waitFor(async () => {
    const known = (await client.listProcesses()).find((one) => one.command === command);
    return known?.state === "ENDED";
  });
  const late = sandbox.run({ command: "true", abortSignal: controller.signal });
  await expect(late).rejects.toThrow("enough");
  const read = sandbox.readTextFile({ path: "x", abortSignal: controller.signal });
  await expect(read).rejects.toThrow("enough");
});

test("a model's tool runs in the sandbox", async () => {
  const { sandbox } = await openSession();
  const usage = {
    inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
    outputTokens: { total: 1, text: 1, reasoning: 0 },
  };
  const call = {
    type: "tool-call" as const,
    toolCallId: "c1",
    toolName: "shell",
    input: JSON.stringify({ command: "echo from the sandbox" }),
  };
  let step = 0;
  const model = new MockLanguageModelV4({
    doGenerate: async () => {
      step += 1;
      return {
        content: step === 1 ? [call] : [{ type: "text" as const, text: "done" }],
        finishReason:
          step === 1
            ? { unified: "tool-calls" as const, raw: undefined }
            : { unified: "stop" as const, raw: undefined },
        usage,
        warnings: [],
      };
    },
  });
  const outputs: unknown[] = [];
  const shell = tool({
    description: "Runs a command.",
    inputSchema: jsonSchema<{ command: string }>({
      type: "object",
      properties: { command: { type: "string" } },
    }),
    execute: async ({ command }, { experimental_sandbox }) => {
      const result = await experimental_sandbox?.run({ command });
      outputs.push(result?.stdout);
      return result;
    },
  });
  const result = await generateText({
    model,
    prompt: "Say hello from the sandbox.",
    tools: { shell },
    stopWhen: stepCountIs(3),
    experimental_sandbox: sandbox,
  });
  expect(result.text).toBe("done");
  expect(outputs).toEqual(["from the sandbox\n"]);
});
