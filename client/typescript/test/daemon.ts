/** The daemon that all tests share. `JIG_TEST_JIGD` is the path of `jigd`. */

import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Daemon } from "jig-client";
import type { TestProject } from "vitest/node";

const toConfig = (directory: string) => `
[workspaces_on_demand]
directory = "${join(directory, "created")}"

[[tools]]
name = "count_word"
description = "Counts a word."
argv = ["sh", "-c", "grep -c \\"$1\\" words.txt", "sh", "{word}"]
[tools.schema]
required = ["word"]
properties.word = { type = "string", description = "The word." }

[[policy.rules]]
name = "removal"
tool = "run"
pattern = 'needs-approval'
action = "ask"

[http]
allowed_origins = ["https://app.example"]
`;

declare module "vitest" {
  interface ProvidedContext {
    /** Address of the Unix socket. */
    socket: string;
    /** Host and port. */
    port: string;
    /** Directory of the workspace. */
    workspace: string;
    program: string;
  }
}

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const program = process.env["JIG_TEST_JIGD"] ?? "jigd";
  const directory = await mkdtemp(join(tmpdir(), "jig-test-"));
  const [workspace, config] = [join(directory, "workspace"), join(directory, "jigd.toml")];
  await mkdir(workspace);
  await mkdir(join(directory, "created"));
  await writeFile(config, toConfig(directory));
  const args = [`--config=${config}`, "--listen=127.0.0.1:0"];
  const daemon = await Daemon.start(workspace, { program, args });
  const port = daemon.addresses.find((address) => !address.startsWith("unix:")) ?? "";
  project.provide("socket", daemon.address);
  project.provide("port", port);
  project.provide("workspace", workspace);
  project.provide("program", program);
  return async () => {
    await daemon.close();
    await rm(directory, { recursive: true });
  };
}
