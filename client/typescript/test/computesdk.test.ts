import { createCompute, type Provider, type ProviderSandbox } from "@computesdk/provider";
import { type JigSandbox, jig } from "jig-client/computesdk";
import { expect, onTestFinished, test } from "vitest";
import { connect, waitFor } from "./support.js";

function openProvider(): Provider<JigSandbox> {
  return jig({ client: connect() });
}

async function createSandbox(
  provider = openProvider(),
  options: Parameters<Provider["sandbox"]["create"]>[0] = {},
): Promise<ProviderSandbox<JigSandbox>> {
  const sandbox = await provider.sandbox.create(options);
  // The test's client is closed by then.
  onTestFinished(() => jig({ client: connect() }).sandbox.destroy(sandbox.sandboxId));
  return sandbox;
}

test("commands", async () => {
  const sandbox = await createSandbox(openProvider(), { envs: { ONE: "1" } });
  expect(sandbox.provider).toBe("jig");
  const command = "echo $ONE $TWO; echo err >&2; exit 3";
  const result = await sandbox.runCommand(command, { env: { TWO: "2" }, cwd: "." });
  expect(result).toMatchObject({ stdout: "1 2\n", stderr: "err\n", exitCode: 3 });
  expect(result.durationMs).toBeGreaterThan(0);
  expect((await sandbox.runCommand("nonexistent-command-12345")).exitCode).toBe(127);
  expect((await sandbox.runCommand("sleep 60", { timeout: 500 })).exitCode).toBe(124);
  expect((await sandbox.runCommand("seq 500000")).stdout.length).toBe(3_388_895);
});

test("a command in the background continues", async () => {
  const sandbox = await createSandbox();
  const begin = performance.now();
  const command = "sleep 5; touch done";
  expect(await sandbox.runCommand(command, { background: true })).toMatchObject({ exitCode: 0 });
  expect(performance.now() - begin).toBeLessThan(4900);
  await waitFor(() => sandbox.filesystem.exists("done"));
});

test("output while the command runs", async () => {
  const sandbox = await createSandbox();
  const seen: [number, string][] = [];
  const begin = performance.now();
  const result = await sandbox.runCommand(
    "echo é; sleep 0.5; printf '\\303'; sleep 0.1; printf '\\251'; exit 4",
    {
      onStdout: (text) => seen.push([performance.now() - begin, text]),
    },
  );
  expect(result).toMatchObject({ stdout: "é\né", exitCode: 4 });
  expect(seen.map(([, text]) => text)).toEqual(["é\n", "é"]);
  expect((seen[1]?.[0] ?? 0) - (seen[0]?.[0] ?? 0)).toBeGreaterThan(400);
});

test("files", async () => {
  const { filesystem } = await createSandbox();
  await filesystem.writeFile("/workspace/a/b.txt", "text");
  expect(await filesystem.readFile("a/b.txt")).toBe("text");
  await filesystem.mkdir("a/c");
  expect(await filesystem.readdir("a")).toMatchObject([
    { name: "b.txt", type: "file", size: 4 },
    { name: "c", type: "directory" },
  ]);
  await filesystem.remove("a");
  expect(await filesystem.exists("a")).toBe(false);
  await expect(filesystem.readFile("/nonexistent/file.txt")).rejects.toThrow("leads out of");
});

test("sandboxes are found, listed and destroyed", async () => {
  const provider = openProvider();
  const sandbox = await createSandbox(provider, { timeout: 60_000, metadata: { task: 7 } });
  const info = await sandbox.getInfo();
  expect(info).toMatchObject({ id: sandbox.sandboxId, provider: "jig", status: "running" });
  expect(info.metadata).toMatchObject({ task: "7" });
  expect(info.timeout).toBeGreaterThan(50_000);
  await sandbox.filesystem.writeFile("x", "kept");
  const again = await provider.sandbox.getById(sandbox.sandboxId);
  expect(await again?.filesystem.readFile("x")).toBe("kept");
  const copy = await createSandbox(provider, { snapshotId: sandbox.sandboxId });
  expect(await copy.filesystem.readFile("x")).toBe("kept");
  const ids = (await provider.sandbox.list()).map(({ sandboxId }) => sandboxId);
  expect(ids).toEqual(expect.arrayContaining([sandbox.sandboxId, copy.sandboxId]));
  await expect(sandbox.getUrl({ port: 80 })).rejects.toThrow("ports");
  await sandbox.destroy();
  await sandbox.destroy();
  expect(await provider.sandbox.getById(sandbox.sandboxId)).toBeNull();
});

test("the compute object of ComputeSDK", async () => {
  const compute = createCompute({ defaultProvider: openProvider() });
  const sandbox = await compute.sandbox.create();
  expect((await sandbox.runCommand("echo hello")).stdout).toBe("hello\n");
  await compute.sandbox.destroy(sandbox.sandboxId);
  expect(await compute.sandbox.getById(sandbox.sandboxId)).toBeNull();
});
