// Checks that both generations of the official TypeScript SDK make.
import { execFileSync } from "node:child_process";
import { existsSync, rmSync } from "node:fs";
import { join } from "node:path";

let passed = 0;
let failed = 0;

export async function check(name, work) {
  try {
    await work();
    passed += 1;
  } catch (error) {
    failed += 1;
    console.log(`FAILED: ${name}: ${error?.stack ?? error}`);
  }
}

export function expect(condition, value) {
  if (!condition) throw new Error(`unexpected: ${JSON.stringify(value)}`);
}

export function report() {
  console.log(`${passed} passed, ${failed} failed`);
  process.exit(failed === 0 ? 0 : 1);
}

async function until(condition) {
  const end = Date.now() + 20_000;
  while (!(await condition())) {
    expect(Date.now() < end, "a condition within 20 s");
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

export async function waitUntilGone(process) {
  await until(() => !execFileSync("ps", ["-eo", "args="]).toString().includes(`${process}\n`));
}

// The client goes in the middle of a call.
export async function checkLostClient(connect, workspace) {
  const begun = join(workspace, "mcp-begun");
  const endings = {
    closed: async (client) => {
      // A session outlives its connection, unless the client ends it.
      if (client.transport.sessionId !== undefined) await client.transport.terminateSession();
      await client.close();
    },
    killed: async (client) => client.transport.pid && process.kill(client.transport.pid, "SIGKILL"),
  };
  for (const [name, end] of Object.entries(endings)) {
    const client = await connect();
    if (name === "killed" && !client.transport.pid) {
      await client.close();
      continue;
    }
    await check(`a client that is ${name} leaves no process`, async () => {
      const calling = client.callTool({ name: "run", arguments: { command: "touch mcp-begun; sleep 987655" } });
      calling.catch(() => {});
      await until(() => existsSync(begun));
      await end(client);
      await waitUntilGone("sleep 987655");
      rmSync(begun);
    });
  }
}

// `connect` makes a client whose user answers with the parameter.
export async function checkApprovals(connect, workspace) {
  for (const action of ["decline", "cancel", "accept"]) {
    await check(`approval: ${action}`, async () => {
      const file = join(workspace, "approved");
      const questions = [];
      const client = await connect((request) => {
        questions.push(request.params.message);
        return action === "accept" ? { action, content: {} } : { action };
      });
      const result = await client.callTool({ name: "run", arguments: { command: "touch approved" } });
      const isAccepted = action === "accept";
      expect(!result.isError === isAccepted && existsSync(file) === isAccepted, result);
      expect(questions.length === 1 && questions[0].includes("touch approved"), questions);
      rmSync(file, { force: true });
      await client.close();
    });
  }
}

// `workspace` is the daemon's directory.
export async function checkClient(client, workspace) {
  const call = (name, args, options) => client.callTool({ name, arguments: args }, ...(options ?? []));

  await check("tools/list", async () => {
    const { tools } = await client.listTools();
    const names = tools.map((tool) => tool.name);
    expect(names.includes("run") && names.includes("read_file"), names);
    for (const tool of tools) expect(typeof tool.annotations.readOnlyHint === "boolean", tool);
  });

  // The SDK validates structured content against the tool's output schema.
  await check("results match their schemas", async () => {
    const file = "mcp.txt";
    for (const [name, args] of [
      ["write_file", { path: file, content: "one\ntwo\n" }],
      ["edit_file", { path: file, edits: [{ old_string: "two", new_string: "three" }] }],
      ["read_file", { path: file }],
      ["list_files", {}],
      ["list_dir", { path: "." }],
      ["stat", { path: file }],
      ["search", { query: "three" }],
      ["run", { command: "echo out; echo err >&2; exit 3" }],
      ["run", { command: "kill -9 $$" }],
      ["last_command", {}],
      ["create_directory", { path: "mcp-directory" }],
      ["move_path", { source: file, destination: "mcp-directory/moved.txt" }],
      ["delete_path", { path: "mcp-directory", recursive: true }],
    ]) {
      const result = await call(name, args);
      expect(!result.isError && result.structuredContent, { name, result });
    }
  });

  await check("a failed tool is a result", async () => {
    const result = await call("read_file", { path: "no such file" });
    expect(result.isError && result.content[0].text.includes("no such file"), result);
  });

  await check("cancel leaves no process", async () => {
    const begun = join(workspace, "mcp-begun");
    const controller = new AbortController();
    const calling = call("run", { command: "touch mcp-begun; sleep 987654" }, clientOptions({ signal: controller.signal }));
    calling.catch(() => {});
    await until(() => existsSync(begun));
    controller.abort();
    await calling.then(
      () => expect(false, "the cancelled call ended"),
      () => {},
    );
    await waitUntilGone("sleep 987654");
    rmSync(begun);
  });

  await check("progress", async () => {
    const messages = [];
    const command = "echo first; sleep 0.5; echo second";
    const onprogress = (progress) => messages.push(progress.message);
    await call("run", { command }, clientOptions({ onprogress }));
    expect(messages[0] === "first", messages);
  });

  await check("artifacts are resources", async () => {
    const { resources } = await client.listResources();
    const found = resources.find((resource) => resource.uri.endsWith("_stdout.txt"));
    const { contents } = await client.readResource({ uri: found.uri });
    expect(contents[0].text.length > 0, contents);
  });
}

// Version 1 of the SDK has a schema as the second parameter.
let optionsAt = 1;
export function setOptionsPosition(position) {
  optionsAt = position;
}
function clientOptions(options) {
  return optionsAt === 1 ? [options] : [undefined, options];
}
