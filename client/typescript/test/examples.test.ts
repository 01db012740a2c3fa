/**
 * The examples and the programs of README.md run with the built package, or with the one whose
 * directory is `JIG_TEST_PACKAGE`.
 */

import { execFile } from "node:child_process";
import { mkdir, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { delimiter, dirname, join, resolve } from "node:path";
import { promisify } from "node:util";
import { expect, inject, onTestFinished, test } from "vitest";

const SOURCE = join(import.meta.dirname, "..");
const PACKAGE = process.env["JIG_TEST_PACKAGE"] ?? SOURCE;

/** Runs a program in a directory with `project`, where `jigd` is in PATH. Returns its output. */
async function runProgram(source: string): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), "jig-test-"));
  onTestFinished(() => rm(directory, { recursive: true }));
  await mkdir(join(directory, "bin"));
  await mkdir(join(directory, "project"));
  await mkdir(join(directory, "node_modules"));
  await symlink(resolve(inject("program")), join(directory, "bin", "jigd"));
  await symlink(PACKAGE, join(directory, "node_modules", "jig-client"));
  await writeFile(join(directory, "program.mts"), source);
  const path = `${join(directory, "bin")}${delimiter}${process.env["PATH"]}`;
  const { stdout } = await promisify(execFile)(process.execPath, ["program.mts", "project"], {
    cwd: directory,
    env: { ...process.env, PATH: path },
  });
  return stdout;
}

test("the agent", async () => {
  const source = await readFile(join(SOURCE, "examples", "agent.ts"), "utf8");
  const output = await runProgram(source);
  expect(output.split("\n").slice(0, 2)).toEqual(["write_file: ok", "run: ok"]);
  expect(output).toContain("hello from the sandbox");
});

test("the programs of README.md", async () => {
  const page = await readFile(join(SOURCE, "README.md"), "utf8");
  const programs = [...page.matchAll(/^```ts\n(.*?)^```$/gms)].map(([, program = ""]) => program);
  expect(programs.length).toBeGreaterThanOrEqual(2);
  for (const program of programs) {
    await runProgram(program);
  }
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
