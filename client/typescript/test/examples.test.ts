/**
 * The examples and the programs of README.md and docs/adapters run with the built package, or with
 * the one whose directory is `JIG_TEST_PACKAGE`.
 */

import { execFile } from "node:child_process";
import { mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { delimiter, dirname, join, resolve } from "node:path";
import { promisify } from "node:util";
import { Client, Daemon } from "jig-client";
import { expect, inject, onTestFinished, test } from "vitest";

const SOURCE = join(import.meta.dirname, "..");
const PACKAGE = process.env["JIG_TEST_PACKAGE"] ?? SOURCE;
const PAGES = join(SOURCE, "..", "..", "docs", "adapters");
// What programs of frameworks import besides this package.
const FRAMEWORKS = ["ai", "computesdk"];

async function makeDirectory(): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), "jig-test-"));
  onTestFinished(() => rm(directory, { recursive: true }));
  return directory;
}

async function readExample(name: string): Promise<string> {
  return readFile(join(SOURCE, "examples", name), "utf8");
}

/** The programs of a page. */
async function readPrograms(page: string): Promise<string[]> {
  const text = await readFile(page, "utf8");
  return [...text.matchAll(/^```ts\n(.*?)^```$/gms)].map(([, program = ""]) => program);
}

/**
 * Runs a program in a directory with `project`, where `jigd` is in PATH. Returns its output.
 *
 * Without an address, the program starts its own daemon.
 */
async function runProgram(source: string, address?: string): Promise<string> {
  const directory = await makeDirectory();
  await mkdir(join(directory, "bin"));
  await mkdir(join(directory, "project"));
  await mkdir(join(directory, "node_modules"));
  await symlink(resolve(inject("program")), join(directory, "bin", "jigd"));
  await symlink(PACKAGE, join(directory, "node_modules", "jig-client"));
  for (const name of FRAMEWORKS) {
    await symlink(join(SOURCE, "node_modules", name), join(directory, "node_modules", name));
  }
  await writeFile(join(directory, "program.mts"), source);
  const path = `${join(directory, "bin")}${delimiter}${process.env["PATH"]}`;
  const { stdout } = await promisify(execFile)(process.execPath, ["program.mts", "project"], {
    cwd: directory,
    env: { ...process.env, PATH: path, ...(address && { JIG_ADDRESS: address }) },
  });
  return stdout;
}

/** Runs a program with a daemon for workspaces on demand, of which it must leave none. */
async function runAdapter(source: string): Promise<string> {
  const directory = await makeDirectory();
  await mkdir(join(directory, "workspace"));
  await mkdir(join(directory, "created"));
  const config = join(directory, "jigd.toml");
  const table = `[workspaces_on_demand]\ndirectory = "${join(directory, "created")}"\n`;
  await writeFile(config, table);
  const options = { program: inject("program"), args: [`--config=${config}`] };
  const daemon = await Daemon.start(join(directory, "workspace"), options);
  const client = new Client(daemon.address);
  try {
    const output = await runProgram(source, daemon.address);
    const left = (await client.listWorkspaces()).filter(({ onDemand }) => onDemand);
    expect(left).toEqual([]);
    return output;
  } finally {
    await client.close();
    await daemon.close();
  }
}

test("the agent", async () => {
  const output = await runProgram(await readExample("agent.ts"));
  expect(output.split("\n").slice(0, 2)).toEqual(["write_file: ok", "run: ok"]);
  expect(output).toContain("hello from the sandbox");
});

test("the agent of the AI SDK", async () => {
  const output = await runAdapter(await readExample("ai-sdk.ts"));
  expect(output.split("\n")).toEqual([
    'write_file: "wrote greet.sh"',
    'shell: {"exitCode":0,"stdout":"hello from the sandbox\\n","stderr":""}',
    "Done.",
    "",
  ]);
});

test("the sandbox of ComputeSDK", async () => {
  const output = await runAdapter(await readExample("computesdk.ts"));
  expect(output).toBe("exit code 0: hello from the sandbox\ngreet.sh, 26 bytes\n");
});

test("the programs of README.md", async () => {
  const programs = await readPrograms(join(SOURCE, "README.md"));
  expect(programs.length).toBeGreaterThanOrEqual(2);
  for (const program of programs) {
    await runProgram(program);
  }
});

test.each([
  ["ai-sdk", "stdout: '/workspace\\n'"],
  ["computesdk", "1 notes.txt"],
])("the program of docs/adapters/%s.md", async (name, output) => {
  const programs = await readPrograms(join(PAGES, `${name}.md`));
  expect(programs.length).toBe(1);
  expect(await runAdapter(programs[0] ?? "")).toContain(output);
});

test("each adapter has a page and an example", async () => {
  const manifest = JSON.parse(await readFile(join(SOURCE, "package.json"), "utf8"));
  const entries = Object.keys(manifest.exports).map((entry) => entry.replace("./", ""));
  const adapters = entries.filter((entry) => ![".", "browser"].includes(entry)).sort();
  expect(adapters.length).toBeGreaterThanOrEqual(2);
  const examples = await readdir(join(SOURCE, "examples"));
  expect(examples).toEqual(expect.arrayContaining(adapters.map((adapter) => `${adapter}.ts`)));

  const pages = [];
  for (const page of await readdir(PAGES)) {
    if ((await readPrograms(join(PAGES, page))).length > 0) {
      pages.push(page.replace(".md", ""));
    }
  }
  expect(pages.sort()).toEqual(adapters);
});

test("the entry point of browsers imports nothing of Node", async () => {
  const packages = new Set<string>();
  const files = [join(PACKAGE, "dist", "browser.js")];
  for (const file of files) {
    const text = await readFile(file, "utf8");
    for (const [, name = ""] of text.matchAll(/^(?:import|export)\b[^;]*?from "(.+?)";$/gms)) {
      const path = join(dirname(file), name);
      if (!name.startsWith(".")) {
        packages.add(name);
      } else if (!files.includes(path)) {
        files.push(path);
      }
    }
  }
  expect(files.length).toBeGreaterThan(20);
  expect([...packages].sort()).toEqual([
    "@bufbuild/protobuf",
    "@bufbuild/protobuf/codegenv2",
    "@bufbuild/protobuf/wkt",
    "@connectrpc/connect",
    "@connectrpc/connect-web",
  ]);
});
