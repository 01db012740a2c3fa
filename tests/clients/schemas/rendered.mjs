// The tools that the daemon renders (files `DIALECT.FORMAT.json`), the results of calls (files `results/FORMAT.json`), and the packages that check both.
import { readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const [, , directory, sdks] = process.argv;

/// Finds packages in the directory of their installation, which is not above this file.
export const require = createRequire(join(sdks, "package.json"));

/// The tools in a format: `{dialect, tools}` for each dialect. The contract's own tools have the dialect `contract`.
export function rendered(format) {
  const end = `.${format}.json`;
  const files = readdirSync(directory).filter((name) => name.endsWith(end)).sort();
  return files.map((name) => ({
    dialect: name.slice(0, -end.length),
    tools: JSON.parse(readFileSync(join(directory, name), "utf8")),
  }));
}

/// The results of calls in a format.
export function results(format) {
  return JSON.parse(readFileSync(join(directory, "results", `${format}.json`), "utf8"));
}

/// The schema itself, then every schema in it, each with its depth.
export function* schemasIn(schema, depth = 1) {
  yield [schema, depth];
  const inner = [
    ...Object.values(schema.properties ?? {}),
    ...Object.values(schema.$defs ?? {}),
    ...(schema.anyOf ?? []),
    ...[schema.items, schema.additionalProperties].filter((value) => typeof value === "object"),
  ];
  for (const child of inner) yield* schemasIn(child, depth + 1);
}

const problems = [];
let tried = 0;

/// Checks one assertion about a tool.
export function check(dialect, tool, holds, text) {
  tried += 1;
  if (!holds) problems.push(`${dialect} ${tool}: ${text}`);
}

/// Prints the problems and the number of assertions.
export function report() {
  for (const problem of problems) console.log(problem);
  console.log(`${tried} tried, ${problems.length} wrong`);
  process.exit(tried > 0 && problems.length === 0 ? 0 : 1);
}
