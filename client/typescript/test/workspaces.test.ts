import { CallError, type Client, reasons, type WorkspaceDetails } from "jig-client";
import { expect, onTestFinished, test } from "vitest";
import { connect } from "./support.js";

/** Creates a workspace for a test, and a client of it. */
async function createWorkspace(
  client: Client,
  options: Parameters<Client["createWorkspace"]>[0] = {},
): Promise<[WorkspaceDetails, Client]> {
  const workspace = await client.createWorkspace(options);
  // Before the client is closed.
  onTestFinished(async () => {
    await connect()
      .deleteWorkspace(workspace.name)
      .catch(() => undefined);
  });
  return [workspace, client.withOptions({ workspace: workspace.name })];
}

test("a workspace is created, used and deleted", async () => {
  const client = connect();
  const [workspace, inside] = await createWorkspace(client, { labels: { task: "t1" } });
  expect(workspace).toMatchObject({ onDemand: true, labels: { task: "t1" } });
  expect(workspace.createTime).toBeInstanceOf(Date);
  expect((await inside.run("pwd; ls; echo x > made")).stdout).toBe(`${workspace.mountPath}\n`);
  expect(await inside.exists("made")).toBe(true);
  expect(await client.exists("made")).toBe(false);

  const { name } = workspace;
  expect((await client.getWorkspace(name)).name).toBe(name);
  const listed = await client.listWorkspaces({ labels: { task: "t1" } });
  expect(listed.map((known) => known.name)).toContain(name);
  const updated = await client.updateWorkspace(name, { ttlSec: 3600, labels: { task: "t2" } });
  expect(updated.labels).toEqual({ task: "t2" });
  expect(updated.expireTime?.getTime()).toBeGreaterThan(Date.now());

  await client.deleteWorkspace(name);
  await expect(inside.run("true")).rejects.toThrow(reasons.UnknownWorkspace);
  await expect(client.getWorkspace(name)).rejects.toThrow(reasons.UnknownWorkspace);
});

test("a workspace can be a copy", async () => {
  const client = connect();
  const name = `w-${crypto.randomUUID()}`;
  const [, inside] = await createWorkspace(client, { name });
  await inside.writeFile("a/b", "copied");
  const [, copy] = await createWorkspace(client, { cloneOf: name });
  expect((await copy.readFile("a/b")).content).toBe("copied");
  await copy.writeFile("a/b", "changed");
  expect((await inside.readFile("a/b")).content).toBe("copied");
});

test("a workspace has bounds", async () => {
  const client = connect();
  const bounds = { maxBytes: 1 << 20, maxFiles: 3 };
  const [workspace, inside] = await createWorkspace(client, bounds);
  expect(workspace).toMatchObject(bounds);
  await inside.writeFile("a", "x".repeat(5000));
  const tooLarge = await inside.writeFile("b", "x".repeat(2 << 20)).catch((error) => error);
  expect(tooLarge).toBeInstanceOf(reasons.NoSpace);
  expect(tooLarge.metadata["limit_kind"]).toBe("workspace_bytes");
  await inside.writeFile("b", "");
  const tooMany = await inside.writeFile("d", "").catch((error) => error);
  expect(tooMany.metadata["limit_kind"]).toBe("workspace_files");
  const { usedBytes, usedFiles } = await client.getWorkspace(workspace.name);
  expect(usedBytes).toBeGreaterThanOrEqual(5000);
  expect(usedFiles).toBe(3);
});

test("errors of workspaces", async () => {
  const client = connect();
  const name = `w-${crypto.randomUUID()}`;
  await createWorkspace(client, { name });
  const error = await client.createWorkspace({ name }).catch((error) => error);
  expect(error).toBeInstanceOf(CallError);
  expect(error.reason).toBe("WORKSPACE_EXISTS");
  const invalid = client.createWorkspace({ name: "Not A Name" });
  await expect(invalid).rejects.toThrow(reasons.InvalidParams);
  const absent = client.createWorkspace({ cloneOf: "no-such-workspace" });
  await expect(absent).rejects.toThrow(reasons.UnknownWorkspace);
  const configured = (await client.listWorkspaces()).find(({ onDemand }) => !onDemand);
  const forbidden = client.deleteWorkspace(configured?.name ?? "");
  await expect(forbidden).rejects.toThrow(reasons.Forbidden);
});

test("a request id creates one workspace", async () => {
  const client = connect();
  const requestId = crypto.randomUUID();
  const [first] = await createWorkspace(client, { requestId });
  expect((await client.createWorkspace({ requestId })).name).toBe(first.name);
});
