import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import type { Readable } from "node:stream";
import { Client, Daemon, DaemonStartError } from "jig-client";
import { expect, inject, onTestFinished, test, vi } from "vitest";
import { waitFor } from "./support.js";

async function temporaryDirectory(): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), "jig-test-"));
  onTestFinished(() => rm(directory, { recursive: true, force: true }));
  return directory;
}

/** Process id and address of a daemon, as a program prints them. */
async function firstLine(output: Readable): Promise<[number, string]> {
  const line = await new Promise<string>((resolve) => {
    output.once("data", (data) => resolve(String(data)));
  });
  const [pid = "", address = ""] = line.trim().split(" ");
  return [Number(pid), address];
}

/** Removes what a program leaves that does not close its client. */
async function removeDirectoryOf(address: string): Promise<void> {
  await rm(dirname(address.replace(/^unix:/, "")), { recursive: true });
}

async function isAlive(pid: number): Promise<boolean> {
  const status = await readFile(`/proc/${pid}/status`, "utf8").catch(() => "State:\tZ");
  return !status.includes("State:\tZ");
}

test("a client can start a daemon", async () => {
  // Variables for other daemons and clients have no effect.
  for (const name of ["JIG_ADDRESS", "JIG_LISTEN", "JIG_WORKSPACE", "JIG_KEYS", "JIG_KEY"]) {
    vi.stubEnv(name, "wrong");
  }
  onTestFinished(() => {
    vi.unstubAllEnvs();
  });
  const directory = await temporaryDirectory();
  const client = await Client.embedded(directory, { program: inject("program"), session: "s" });
  expect((await client.run("echo x > made; echo hello")).stdout).toBe("hello\n");
  const { pid } = await client.getInfo();
  const socket = client.address.replace(/^unix:/, "");
  expect(existsSync(socket)).toBe(true);
  await client.close();
  expect(await readFile(join(directory, "made"), "utf8")).toBe("x\n");
  expect([await isAlive(pid), existsSync(dirname(socket))]).toEqual([false, false]);
});

test("the daemon does not wait for running commands", async () => {
  const client = await Client.embedded(await temporaryDirectory(), { program: inject("program") });
  await client.submitJob("run", { command: "sleep 600" });
  const begin = performance.now();
  await client.close();
  expect(performance.now() - begin).toBeLessThan(10_000);
});

test("a daemon that cannot start is reported", async () => {
  const directory = await temporaryDirectory();
  const program = inject("program");
  const absent = Daemon.start(join(directory, "no-such-directory"), { program });
  await expect(absent).rejects.toThrow("no-such-directory");
  const unknown = Daemon.start(directory, { program: join(directory, "no-such-program") });
  await expect(unknown).rejects.toThrow(DaemonStartError);
  vi.stubEnv("PATH", directory);
  onTestFinished(() => {
    vi.unstubAllEnvs();
  });
  await expect(Daemon.start(directory)).rejects.toThrow("neither jigd nor jig is in PATH");
});

test("the daemon ends with a killed program", async () => {
  const directory = await temporaryDirectory();
  const script = `
    import { Client } from "${join(import.meta.dirname, "../dist/index.js")}";
    const client = await Client.embedded(process.argv[1], { program: process.argv[2] });
    console.log((await client.getInfo()).pid, client.address);
    setTimeout(() => {}, 60_000);
  `;
  const args = ["--input-type=module", "--eval", script, directory, inject("program")];
  const program = spawn(process.execPath, args, { stdio: ["ignore", "pipe", "inherit"] });
  const [pid, address] = await firstLine(program.stdout);
  expect(await isAlive(pid)).toBe(true);
  program.kill("SIGKILL");
  await waitFor(async () => !(await isAlive(pid)));
  await removeDirectoryOf(address);
});

test("a program that forgets to close its client ends", async () => {
  const directory = await temporaryDirectory();
  const script = `
    import { Client } from "${join(import.meta.dirname, "../dist/index.js")}";
    const client = await Client.embedded(process.argv[1], { program: process.argv[2] });
    console.log((await client.getInfo()).pid, client.address);
  `;
  const args = ["--input-type=module", "--eval", script, directory, inject("program")];
  const program = spawn(process.execPath, args, { stdio: ["ignore", "pipe", "inherit"] });
  const ended = new Promise((resolve) => program.once("exit", resolve));
  const [pid, address] = await firstLine(program.stdout);
  expect(await ended).toBe(0);
  await waitFor(async () => !(await isAlive(pid)));
  await removeDirectoryOf(address);
});
