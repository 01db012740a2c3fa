// JSON Schema (draft 2020-12): every schema that is rendered is one, calls answer what the tools say, and the parameters are such as they say. And
// the Model Context Protocol's own schema of lists of tools.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { check, rendered, report, require, schemasIn } from "./rendered.mjs";

const [, , , , jig, address] = process.argv;
const { default: Ajv } = require("ajv/dist/2020.js");
const { default: formats } = require("ajv-formats");
const { ListToolsResultSchema } = require("@modelcontextprotocol/sdk/types.js");

// Strict: what it does not know is an error. One may be of several types, and null where it need not be given.
const ajv = new Ajv({ strict: true, allErrors: true, allowUnionTypes: true });
formats(ajv);

function compiled(dialect, tool, what, schema) {
  let validate;
  let problem = "";
  try {
    validate = ajv.compile(schema);
  } catch (error) {
    problem = error.message;
  }
  check(dialect, tool, problem === "", `${what}: ${problem}`);
  return validate;
}

function checkValue(dialect, tool, validate, value, what) {
  const holds = validate(value);
  check(dialect, tool, holds, `${what}: ${ajv.errorsText(validate.errors)}`);
}

for (const { dialect, tools } of rendered("openai-chat")) {
  for (const { function: tool } of tools) compiled(dialect, tool.name, "openai-chat", tool.parameters);
}
for (const { dialect, tools } of rendered("openai-responses")) {
  for (const tool of tools) compiled(dialect, tool.name, "openai-responses", tool.parameters);
}
for (const { dialect, tools } of rendered("anthropic")) {
  for (const tool of tools) compiled(dialect, tool.name, "anthropic", tool.input_schema);
}
for (const { dialect, tools } of rendered("mcp")) {
  const parsed = ListToolsResultSchema.safeParse({ tools });
  check(dialect, "", parsed.success, `mcp: ${parsed.error}`);
  for (const tool of tools) {
    compiled(dialect, tool.name, "mcp", tool.inputSchema);
    if (tool.outputSchema) compiled(dialect, tool.name, "mcp", tool.outputSchema);
  }
}

const known = new Map();
for (const { dialect, tools } of rendered("json-schema")) {
  for (const tool of tools) {
    const input = compiled(dialect, tool.name, "input", tool.input_schema);
    const output = tool.output_schema && compiled(dialect, tool.name, "output", tool.output_schema);
    check(dialect, tool.name, dialect !== "contract" || output, "no output schema");
    known.set(`${dialect} ${tool.name}`, { input, output, calls: 0 });
    for (const [schema] of schemasIn(tool.input_schema)) {
      if (!("default" in schema)) continue;
      checkValue(dialect, tool.name, ajv.compile(schema), schema.default, "the default");
    }
  }
}

// The calls are made in their order, in the workspace of the daemon that is there for all these checks.
const written = JSON.parse(readFileSync(new URL("calls.json", import.meta.url), "utf8"));
// Tools of the configuration are the same in every dialect.
const dialects = new Set([...known.keys()].map((name) => name.split(" ")[0]));
const calls = written.flatMap(({ everywhere, ...call }) => (everywhere ? [...dialects].map((dialect) => ({ dialect, ...call })) : [call]));
const common = ["--address", address, "--session", "schemas"];
const job = execFileSync(jig, [...common, "job", "submit", "run", "command=true"], { encoding: "utf8" }).trim();
for (const { dialect = "contract", tool, params: template } of calls) {
  const params = JSON.parse(JSON.stringify(template).replace("$JOB", job));
  const words = [...common, "--json", "call", "--params", JSON.stringify(params), tool];
  if (dialect !== "contract") words.push("--dialect", dialect);
  const { input, output, calls } = known.get(`${dialect} ${tool}`);
  known.get(`${dialect} ${tool}`).calls = calls + 1;
  let text;
  try {
    text = execFileSync(jig, words, { encoding: "utf8" });
  } catch (error) {
    // As the command that it ran.
    text = error.stdout;
  }
  const answer = JSON.parse(text);
  const told = `${JSON.stringify(params)} answered ${JSON.stringify(answer)}`;
  // Some documents say in words of their own what a call has come to.
  const succeeded = answer.success ?? ["INVOKE_STATUS_SUCCESS", "success"].includes(answer.status);
  check(dialect, tool, succeeded, told);
  checkValue(dialect, tool, input, params, "the parameters");
  if (output && answer.data) checkValue(dialect, tool, output, answer.data, `the answer of ${told}`);
}
for (const [name, { output, calls }] of known) {
  if (output) check(name, "", calls > 0, "is not called");
}
report();
