import {
  type Approval,
  type Decision,
  parseReply,
  reasons,
  UnknownReply,
  type Vendor,
} from "jig-client";
import { expect, test } from "vitest";
import { connect, text } from "./support.js";

const ARGUMENTS = { command: "echo said" };
const FUNCTION = { name: "run", arguments: JSON.stringify(ARGUMENTS) };
const CHAT_CALL = { id: "c1", type: "function", function: FUNCTION };
const RESPONSES_CALL = { type: "function_call", call_id: "c1", ...FUNCTION };
const TOOL_USE = { type: "tool_use", id: "c1", name: "run", input: ARGUMENTS };
const TEXT = { type: "text", text: "I run it." };
const GEMINI_PART = { functionCall: { name: "run", args: ARGUMENTS } };

const REPLIES: [Vendor, unknown][] = [
  ["anthropic", { role: "assistant", content: [TEXT, TOOL_USE] }],
  ["anthropic", [TOOL_USE]],
  ["openai-responses", { output: [{ type: "reasoning", summary: [] }, RESPONSES_CALL] }],
  ["openai-chat", { choices: [{ message: { content: null, tool_calls: [CHAT_CALL] } }] }],
  ["openai-chat", { role: "assistant", content: "text", tool_calls: [CHAT_CALL] }],
  ["gemini", { candidates: [{ content: { parts: [{ text: "x" }, GEMINI_PART] } }] }],
  ["gemini", [{ id: "c1", name: "run", args: ARGUMENTS }]],
  ["mcp", { name: "run", arguments: ARGUMENTS }],
];

test.each(REPLIES)("replies of %s are handled: %j", async (vendor, reply) => {
  const [call] = parseReply(reply);
  expect(call).toMatchObject({ vendor, name: "run", argumentsJson: JSON.stringify(ARGUMENTS) });
  const { outcomes, messages } = await connect().handle(reply);
  expect(outcomes).toMatchObject([{ ok: true, output: { stdout: "said\n" } }]);
  expect(messages.length).toBe(1);
  const result = resultOf(vendor, call?.callId ?? "", messages[0]);
  expect(result).toEqual({ exit_code: 0, stdout: "said\n" });
});

/** Checks the form of a message. Returns the result in it. */
// biome-ignore lint/suspicious/noExplicitAny: messages of several vendors
function resultOf(vendor: Vendor, callId: string, message: any): unknown {
  switch (vendor) {
    case "anthropic":
      expect(message).toMatchObject({ role: "user" });
      expect(message.content).toMatchObject([{ type: "tool_result", tool_use_id: callId }]);
      return JSON.parse(message.content[0].content);
    case "openai-responses":
      expect(message).toMatchObject({ type: "function_call_output", call_id: callId });
      return JSON.parse(message.output);
    case "openai-chat":
      expect(message).toMatchObject({ role: "tool", tool_call_id: callId });
      return JSON.parse(message.content);
    case "gemini": {
      const response = message.parts[0].functionResponse;
      expect([message.role, response.id ?? ""]).toEqual(["user", callId]);
      return response.response.output;
    }
    default:
      return JSON.parse(message.content[0].text);
  }
}

test.each(["text", { content: "text" }, { content: [TEXT] }, [], null, undefined])(
  "a reply without tool calls has no messages: %j",
  async (reply) => {
    expect(await connect().handle(reply)).toEqual({ messages: [], outcomes: [] });
  },
);

test("calls of several vendors are rejected", async () => {
  await expect(connect().handle([TOOL_USE, CHAT_CALL])).rejects.toThrow(UnknownReply);
});

test("many calls and failures", async () => {
  const client = connect();
  const calls = Array.from({ length: 25 }, (_, number) => ({
    ...TOOL_USE,
    id: `c${number}`,
    name: "read_file",
    input: { path: "none" },
  }));
  const { outcomes, messages } = await client.handle(calls);
  expect(outcomes.map(({ error }) => error?.code)).toEqual(Array(25).fill("FILE_NOT_FOUND"));
  const content = messages[0]?.["content"] as unknown[];
  expect(content.length).toBe(25);
  expect(content[24]).toMatchObject({ tool_use_id: "c24", is_error: true });

  for (const name of ["no_such_tool", "", "long ".repeat(100), "ä".repeat(63)]) {
    const unknown = await client.handle([{ ...TOOL_USE, name }]);
    expect(unknown.outcomes[0]?.error?.code).toBe("UNKNOWN_TOOL");
  }
  const broken = { ...CHAT_CALL, function: { name: "run", arguments: "{" } };
  expect((await client.handle([broken])).outcomes[0]?.error?.code).toBe("INVALID_PARAMS");
});

test("a request id runs calls once", async () => {
  const client = connect();
  const options = { requestId: crypto.randomUUID(), waitSec: 0.2 };
  const file = `once-${options.requestId}`;
  const input = { command: `echo x >> ${file}; until [ -e ${file}-end ]; do sleep 0.1; done` };
  const calls = Array.from({ length: 21 }, (_, number) => ({
    ...TOOL_USE,
    id: `c${number}`,
    input,
  }));
  const first = await client.handle(calls, options);
  const again = await client.handle(calls, options);
  const ids = first.outcomes.map(({ jobId }) => jobId);
  expect(new Set(ids).size).toBe(21);
  expect(again.outcomes.map(({ jobId }) => jobId)).toEqual(ids);
  await client.writeFile(`${file}-end`, "");
  for (const jobId of ids) {
    await client.waitJob(jobId);
  }
  expect((await client.run(`wc -l < ${file}`)).stdout).toBe("21\n");
});

test("a slow call is pending", async () => {
  const client = connect();
  const slow = { ...TOOL_USE, input: { command: "sleep 1.5; echo late" } };
  const { outcomes, messages } = await client.handle([slow], { waitSec: 0.2 });
  const jobId = outcomes[0]?.jobId ?? "";
  expect(outcomes[0]?.pending).toBe(true);
  expect(JSON.stringify(messages)).toContain(jobId);
  const wait = { type: "tool_use", id: "w", name: "wait_job", input: { job_id: jobId } };
  const waited = await client.handle([wait]);
  expect(waited.outcomes[0]?.output).toMatchObject({ output: { stdout: "late\n" } });
});

test("a slow call ends within the time to wait", async () => {
  const slow = { ...TOOL_USE, input: { command: "sleep 1.5; echo late" } };
  const { outcomes } = await connect().handle([slow], { approve: () => undefined });
  expect(outcomes).toMatchObject([{ pending: false, ok: true, output: { stdout: "late\n" } }]);
});

test.each(["ALLOW", "DENY", undefined] as const)(
  "calls that need approval: %s",
  async (decision: Decision | undefined) => {
    const client = connect();
    const seen: Approval[] = [];
    const approve = async (approval: Approval) => {
      seen.push(approval);
      return decision;
    };
    const call = { ...TOOL_USE, input: { command: "echo needs-approval" } };
    const quick = { ...TOOL_USE, id: "c2" };
    const waitSec = decision ? 40 : 4;
    const { outcomes } = await client.handle([call, quick], { approve, waitSec });
    expect(seen.map(({ tool }) => tool)).toEqual(["run"]);
    expect(outcomes[1]?.ok).toBe(true);
    const [first] = outcomes;
    if (decision === "ALLOW") {
      expect(first?.output).toEqual({ exit_code: 0, stdout: "needs-approval\n" });
    } else if (decision === "DENY") {
      expect(first?.error?.code).toBe("APPROVAL_DENIED");
    } else {
      expect(first).toMatchObject({ pending: true, approvalId: seen[0]?.approvalId });
      await client.cancelJob(first?.jobId ?? "");
    }
  },
);

test("tools of each vendor", async () => {
  const client = connect();
  const [first] = await client.tools("anthropic");
  expect(Object.keys(first ?? {})).toEqual(expect.arrayContaining(["name", "input_schema"]));
  const chat = await client.tools("openai-chat", { names: ["run"] });
  expect(chat).toMatchObject([{ function: { name: "run" } }]);
  expect((await client.tools("openai-responses"))[0]?.["type"]).toBe("function");
  expect((await client.tools("gemini"))[0]).toHaveProperty("functionDeclarations");
  expect((await client.tools("mcp"))[0]).toHaveProperty("inputSchema");
  const claude = await client.tools("anthropic", { dialect: "claude" });
  expect(claude.map((tool) => tool["name"])).toContain("Bash");
  const unknown = client.tools("anthropic", { dialect: "no-such-dialect" });
  await expect(unknown).rejects.toThrow(reasons.InvalidParams);
});

test("dialects and custom tools", async () => {
  const client = connect();
  const bash = { type: "tool_use", id: "b", name: "Bash", input: { command: "echo bash" } };
  expect((await client.handle([bash], { dialect: "claude" })).outcomes[0]?.ok).toBe(true);
  await client.writeFile("words.txt", "a\nb\na\n");
  const counted = await client.invoke("count_word", { word: "a" }, { callId: "model-1" });
  expect(counted).toMatchObject({ ok: true, requestId: "model-1", data: { stdout: "2\n" } });
  const failed = await client.invoke("read_file", { path: "no-such-file" });
  expect(failed.ok).toBe(false);
  expect(() => failed.check()).toThrow(reasons.FileNotFound);
  const exited = await client.invoke("run", { command: "exit 1" });
  exited.check();
});

test("a call by name as a stream", async () => {
  const client = connect();
  const stream = client.invokeStream("run", { command: "echo needs-approval" });
  const { value: waiting } = await stream.next();
  expect(waiting?.kind).toBe("pendingApproval");
  if (waiting?.kind === "pendingApproval") {
    await client.decideApproval(waiting.approvalId, "ALLOW");
  }
  const { value: output } = await stream.next();
  expect(output?.kind === "stdout" && text(output.data)).toBe("needs-approval\n");
  expect((await stream.next()).value).toMatchObject({ kind: "result", exitCode: 0 });
  expect((await stream.next()).done).toBe(true);
});
