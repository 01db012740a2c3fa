// The vendors' documented rules: of names, of OpenAI's strict schemas (Structured Outputs, "Supported schemas"; its package implements most of
// them), and of Gemini's objects.
import { isDeepStrictEqual } from "node:util";
import { check, rendered, report, require, schemasIn } from "./rendered.mjs";

const { toStrictJsonSchema } = require("openai/lib/transform");

// Names that all vendors accept: OpenAI allows no dots, Gemini no digit first.
const TOOL_NAME = /^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$/;
const PARAMETER_NAME = /^[a-zA-Z_][a-zA-Z0-9_]{0,63}$/;
const MAX_DESCRIPTION_CHARACTERS = 1024;
const STRICT_KEYWORDS = new Set(
  (
    "type properties required additionalProperties items description enum const anyOf $defs $ref pattern format multipleOf minimum maximum " +
    "exclusiveMinimum exclusiveMaximum minItems maxItems"
  ).split(" "),
);
const MAX_COUNTS = { properties: 5000, levels: 10, values: 1000, characters: 120000 };

for (const { dialect, tools } of rendered("json-schema")) {
  const names = tools.map((tool) => tool.name);
  check(dialect, "", new Set(names).size === names.length, "duplicate names");
  for (const tool of tools) {
    check(dialect, tool.name, TOOL_NAME.test(tool.name), "invalid name");
    check(dialect, tool.name, tool.description.length > 0, "no description");
    check(dialect, tool.name, tool.description.length <= MAX_DESCRIPTION_CHARACTERS, `a description of ${tool.description.length} characters`);
    check(dialect, tool.name, tool.input_schema.type === "object", "not an object");
    for (const [schema] of schemasIn(tool.input_schema)) {
      for (const name of Object.keys(schema.properties ?? {})) check(dialect, tool.name, PARAMETER_NAME.test(name), `invalid name ${name}`);
      for (const name of schema.required ?? []) check(dialect, tool.name, name in schema.properties, `${name} is required but not defined`);
    }
  }
}

for (const { dialect, tools } of rendered("openai-responses")) {
  for (const tool of tools.filter((tool) => tool.strict)) {
    const assert = (holds, text) => check(dialect, tool.name, holds, `strict: ${text}`);
    const count = { properties: 0, levels: 0, values: 0, characters: 0 };
    assert(!("anyOf" in tool.parameters), "anyOf at the root");
    for (const [schema, depth] of schemasIn(tool.parameters)) {
      for (const keyword of Object.keys(schema)) assert(STRICT_KEYWORDS.has(keyword), keyword);
      assert("type" in schema || "anyOf" in schema || "$ref" in schema, "a schema without a type");
      const names = Object.keys(schema.properties ?? {});
      count.properties += names.length;
      count.levels = Math.max(count.levels, depth);
      count.values += schema.enum?.length ?? 0;
      const texts = [...names, ...(schema.enum ?? []), schema.const].filter((value) => typeof value === "string");
      count.characters += texts.reduce((sum, text) => sum + text.length, 0);
      if ([schema.type].flat().includes("object")) {
        assert(schema.additionalProperties === false, "additional properties");
        assert(JSON.stringify([...(schema.required ?? [])].sort()) === JSON.stringify(names.sort()), "not all properties are required");
      }
    }
    let transformed;
    try {
      transformed = toStrictJsonSchema(tool.parameters);
    } catch (error) {
      transformed = error.message;
    }
    assert(isDeepStrictEqual(transformed, tool.parameters), `the package transforms it to ${JSON.stringify(transformed)}`);
    for (const [unit, maximum] of Object.entries(MAX_COUNTS)) assert(count[unit] <= maximum, `${count[unit]} ${unit}`);
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
