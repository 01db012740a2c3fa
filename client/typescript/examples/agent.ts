// An agent: a model, and a loop that runs its tool calls in sandboxes.
//
// Usage: node agent.ts [DIRECTORY]
//
// Starts a daemon for the directory, or calls the one of JIG_ADDRESS. A script replaces the model.
// Of a real one, `askModel` would return `new Anthropic().messages.create({ …, tools, messages })`.
// The loop also accepts the replies of the other vendors.

import { Client, type JsonObject } from "jig-client";

const MAX_ROUNDS = 20;
const SCRIPT: [string, JsonObject][] = [
  ["write_file", { path: "greet.sh", content: "echo hello from the sandbox\n" }],
  ["run", { command: "sh greet.sh", timeout_sec: 10 }],
];

interface Reply {
  role: "assistant";
  content: JsonObject[];
}

/** Replies as a model would: writes a file, runs it, and reports its output. */
function askModel(tools: JsonObject[], messages: JsonObject[]): Reply {
  const step = messages.filter(({ role }) => role === "assistant").length;
  const next = SCRIPT[step];
  if (next === undefined) {
    const text = `Done: ${JSON.stringify(messages.at(-1)?.["content"])}`;
    return { role: "assistant", content: [{ type: "text", text }] };
  }
  const [name, input] = next;
  if (!tools.some((tool) => tool["name"] === name)) {
    throw new Error(`the daemon has no tool ${name}`);
  }
  return { role: "assistant", content: [{ type: "tool_use", id: `call_${step}`, name, input }] };
}

/** Returns the last text of the model. */
async function runAgent(client: Client, task: string): Promise<string> {
  const tools = await client.tools("anthropic");
  const messages: JsonObject[] = [{ role: "user", content: task }];
  for (let round = 0; round < MAX_ROUNDS; round += 1) {
    const reply = askModel(tools, messages);
    messages.push({ ...reply });
    const results = await client.handle(reply);
    for (const { name, ok, error } of results.outcomes) {
      console.log(`${name}: ${ok ? "ok" : error?.code}`);
    }
    if (results.messages.length === 0) {
      return String(reply.content[0]?.["text"]);
    }
    messages.push(...results.messages);
  }
  throw new Error(`the model has not finished after ${MAX_ROUNDS} rounds`);
}

const client = process.env["JIG_ADDRESS"]
  ? new Client(undefined, { session: "agent" })
  : await Client.embedded(process.argv[2], { session: "agent" });
try {
  console.log(await runAgent(client, "Write a script that prints a greeting, and run it."));
} finally {
  await client.close();
}
