import { reasons } from "jig-client";
import { expect, test } from "vitest";
import { collect, connect, sessionOf, text } from "./support.js";

test("jobs", async () => {
  const client = connect();
  const params = { command: "echo one; sleep 0.5; echo two" };
  const { jobId } = await client.submitJob("run", params, { priority: 1 });
  expect(["QUEUED", "RUNNING"]).toContain((await client.waitJob(jobId, { waitSec: 0.01 })).state);
  const events = await collect(client.watchJob(jobId, { stdoutOffset: 1 }));
  const output = events.flatMap((event) => (event.kind === "stdout" ? [event.data] : []));
  expect(text(output)).toBe("ne\ntwo\n");
  const last = events.at(-1);
  expect(last).toMatchObject({ kind: "job", state: "SUCCEEDED" });
  const job = await client.waitJob(jobId);
  expect(job.result).toMatchObject({ ok: true, data: { exit_code: 0 } });
  expect(await client.getJob(jobId)).toEqual(job);
  const listed = await client.listJobs({ states: ["SUCCEEDED"] });
  expect(listed.map((known) => known.jobId)).toContain(jobId);
  const absent = client.getJob("01HZZZZZZZZZZZZZZZZZZZZZZZ");
  await expect(absent).rejects.toThrow(reasons.JobNotFound);
  await expect(client.submitJob("no_such_tool", {})).rejects.toThrow(reasons.UnknownTool);
});

test("a cancelled job", async () => {
  const client = connect();
  const params = { command: "sleep 600" };
  const { jobId } = await client.submitJob("run", params, { queue: "cancelled" });
  expect((await client.cancelJob(jobId)).state).toBe("CANCELLED");
});

test("a request id makes one job", async () => {
  const client = connect();
  const once = { requestId: crypto.randomUUID() };
  const first = await client.submitJob("run", { command: "true" }, once);
  const second = await client.submitJob("run", { command: "true" }, once);
  expect(second.jobId).toBe(first.jobId);
  const other = client.submitJob("run", { command: "false" }, once);
  await expect(other).rejects.toThrow(reasons.RequestIdReused);
});

test("approvals", async () => {
  const client = connect();
  const job = await client.submitJob("run", { command: "echo needs-approval; exit 4" });
  let approvalId = "";
  for await (const approval of client.watchApprovals()) {
    if (approval.session === sessionOf()) {
      approvalId = approval.approvalId;
      break;
    }
  }
  const approval = await client.getApproval(approvalId);
  expect(approval).toMatchObject({ tool: "run", state: "PENDING" });
  expect(approval.parameters[0]?.name).toBe("command");
  const decided = await client.decideApproval(approvalId, "ALLOW", { comment: "fine" });
  expect(decided.approval?.state).toBe("ALLOWED");
  expect((await client.waitJob(job.jobId)).result?.exitCode).toBe(4);
  const again = client.decideApproval(approvalId, "DENY");
  await expect(again).rejects.toThrow(reasons.ApprovalDecided);
  const known = await client.listApprovals({ decided: true });
  expect(known.map((item) => item.approvalId)).toContain(approvalId);
});

test("a denied call is an error", async () => {
  const client = connect();
  const running = client.run("echo needs-approval").catch((error) => error);
  for await (const approval of client.watchApprovals()) {
    if (approval.session === sessionOf()) {
      await client.decideApproval(approval.approvalId, "DENY", { comment: "not today" });
      break;
    }
  }
  const error = await running;
  expect(error).toBeInstanceOf(reasons.ApprovalDenied);
  expect(error.message).toContain("not today");
  expect(error.metadata["state"]).toBe("DENIED");
});

test("rules", async () => {
  const client = connect();
  const options = { pattern: "never-this", name: "never" };
  const { ruleId } = await client.createRule("run", "DENY", options);
  await expect(client.run("echo never-this")).rejects.toThrow(reasons.PolicyDenied);
  expect((await client.updateRule(ruleId, { enabled: false })).enabled).toBe(false);
  expect((await client.run("echo never-this")).ok).toBe(true);
  expect((await client.listRules())[0]?.name).toBe("never");
  await client.deleteRule(ruleId);
  await expect(client.deleteRule(ruleId)).rejects.toThrow(reasons.RuleNotFound);
});

test("events and artifacts", async () => {
  const client = connect();
  await client.run("echo text");
  const events = await collect(client.watchEvents({ follow: false }));
  const types = events.map((event) => event.kind === "event" && event.type);
  expect(types).toEqual(["tool_call_started", "tool_call_finished"]);
  const afterSequence = 2;
  const later = client.watchEvents({ afterSequence, types: ["tool_call_finished"] });
  await client.run("true");
  expect((await later.next()).value).toMatchObject({ kind: "event", sequence: 4 });
  await later.return();
  const [artifact] = await client.listArtifacts({ step: 1 });
  expect(text(await client.readArtifact(artifact?.path ?? ""))).toBe("text\n");
  const absent = client.readArtifact("logs/none.txt");
  await expect(absent).rejects.toThrow(reasons.ArtifactNotFound);
  expect((await client.listSessions()).length).toBeGreaterThan(0);
});

test("the daemon", async () => {
  const client = connect();
  const info = await client.getInfo();
  expect(info.isolation?.level).toMatch(/^L[123]$/);
  expect(info.workspaces[0]?.mountPath).toBe("/workspace");
  expect(info.caller?.role).toBe("ADMIN");
  const elsewhere = client.withOptions({ workspace: "no-such-workspace" });
  await expect(elsewhere.getInfo()).rejects.toThrow(reasons.UnknownWorkspace);
});
