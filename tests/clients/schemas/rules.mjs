// The rules that vendors write down: of names, of OpenAI's strict schemas (Structured Outputs, "Supported schemas"; its package has the most of
// them), and of Gemini's objects.
import { isDeepStrictEqual } from "node:util";
import { check, rendered, report, require, schemasIn } from "./rendered.mjs";

const { toStrictJsonSchema } = require("openai/lib/transform");

// What all vendors take: OpenAI no dots, Gemini no digit first.
const NAME = /^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$/;
const PARAMETER = /^[a-zA-Z_][a-zA-Z0-9_]{0,63}$/;
const DESCRIPTION = 1024;
const STRICT = new Set(
  (
    "type properties required additionalProperties items description enum const anyOf $defs $ref pattern format multipleOf minimum maximum " +
    "exclusiveMinimum exclusiveMaximum minItems maxItems"
  ).split(" "),
);
const MOST = { properties: 5000, levels: 10, values: 1000, characters: 120000 };

for (const { dialect, tools } of rendered("json-schema")) {
  const names = tools.map((tool) => tool.name);
  check(dialect, "", new Set(names).size === names.length, "names twice");
  for (const tool of tools) {
    check(dialect, tool.name, NAME.test(tool.name), "the name");
    check(dialect, tool.name, tool.description.length > 0, "no description");
    check(dialect, tool.name, tool.description.length <= DESCRIPTION, `a description of ${tool.description.length} characters`);
    check(dialect, tool.name, tool.input_schema.type === "object", "no object");
    for (const [schema] of schemasIn(tool.input_schema)) {
      for (const name of Object.keys(schema.properties ?? {})) check(dialect, tool.name, PARAMETER.test(name), `the name ${name}`);
      for (const name of schema.required ?? []) check(dialect, tool.name, name in schema.properties, `${name} is required and not there`);
    }
  }
}

for (const { dialect, tools } of rendered("openai-responses")) {
  for (const tool of tools.filter((tool) => tool.strict)) {
    const wrong = (holds, text) => check(dialect, tool.name, holds, `strict: ${text}`);
    const count = { properties: 0, levels: 0, values: 0, characters: 0 };
    wrong(!("anyOf" in tool.parameters), "anyOf at the root");
    for (const [schema, depth] of schemasIn(tool.parameters)) {
      for (const keyword of Object.keys(schema)) wrong(STRICT.has(keyword), keyword);
      wrong("type" in schema || "anyOf" in schema || "$ref" in schema, "a schema of anything");
      const names = Object.keys(schema.properties ?? {});
      count.properties += names.length;
      count.levels = Math.max(count.levels, depth);
      count.values += schema.enum?.length ?? 0;
      const texts = [...names, ...(schema.enum ?? []), schema.const].filter((value) => typeof value === "string");
      count.characters += texts.reduce((sum, text) => sum + text.length, 0);
      if ([schema.type].flat().includes("object")) {
        wrong(schema.additionalProperties === false, "open");
        wrong(JSON.stringify([...(schema.required ?? [])].sort()) === JSON.stringify(names.sort()), "not all is required");
      }
    }
    let made;
    try {
      made = toStrictJsonSchema(tool.parameters);
    } catch (error) {
      made = error.message;
    }
    wrong(isDeepStrictEqual(made, tool.parameters), `the package makes it ${JSON.stringify(made)}`);
    for (const [what, most] of Object.entries(MOST)) wrong(count[what] <= most, `${count[what]} ${what}`);
  }
}

for (const { dialect, tools } of rendered("gemini")) {
  for (const { name, parameters } of tools.flatMap((tool) => tool.functionDeclarations)) {
    for (const [schema] of parameters ? schemasIn(parameters) : []) {
      if (schema.type !== "object") continue;
      check(dialect, name, Object.keys(schema.properties ?? {}).length > 0, `gemini: an object without properties: ${JSON.stringify(schema)}`);
    }
  }
}
report();
