// JSON Schema (draft 2020-12): every rendered schema is valid, and parameters and results of calls match the schemas of their tools. Also checks
// tool lists with the Model Context Protocol's own schema.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { check, rendered, report, require, schemasIn } from "./rendered.mjs";

const [, , , , jig, address] = process.argv;
const { default: Ajv } = require("ajv/dist/2020.js");
const { default: formats } = require("ajv-formats");
const { ListToolsResultSchema } = require("@modelcontextprotocol/sdk/types.js");

// Strict: unknown keywords are errors. A value may have several types, and an optional one may be null.
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

// Calls run in their order, in the workspace that all these checks share.
const templates = JSON.parse(readFileSync(new URL("calls.json", import.meta.url), "utf8"));
// Custom tools are the same in every dialect.
const dialects = new Set([...known.keys()].map((name) => name.split(" ")[0]));
const calls = templates.flatMap(({ everywhere, ...call }) => (everywhere ? [...dialects].map((dialect) => ({ dialect, ...call })) : [call]));
const common = ["--address", address, "--session", "schemas"];
const job = execFileSync(jig, [...common, "job", "submit", "run", "command=true"], { encoding: "utf8" }).trim();
for (const { dialect = "contract", tool, params: template } of calls) {
  const params = JSON.parse(JSON.stringify(template).replace("$JOB", job));
  const command = [...common, "--json", "call", "--params", JSON.stringify(params), tool];
  if (dialect !== "contract") command.push("--dialect", dialect);
  const { input, output, calls } = known.get(`${dialect} ${tool}`);
  known.get(`${dialect} ${tool}`).calls = calls + 1;
  let text;
  try {
    text = execFileSync(jig, command, { encoding: "utf8" });
  } catch (error) {
    // jig exits with the status of the command that the tool ran.
    text = error.stdout;
  }
  const response = JSON.parse(text);
  const description = `${JSON.stringify(params)} returned ${JSON.stringify(response)}`;
  // Some dialects report the status in their own terms.
  const succeeded = response.success ?? ["INVOKE_STATUS_SUCCESS", "success"].includes(response.status);
  check(dialect, tool, succeeded, description);
  checkValue(dialect, tool, input, params, "the parameters");
  if (output && response.data) checkValue(dialect, tool, output, response.data, `the result of ${description}`);
}
for (const [name, { output, calls }] of known) {
  if (output) check(name, "", calls > 0, "is not called");
}
report();
