// The tools as the daemon renders them: files `DIALECT.FORMAT.json`; what came of calls, as files `results/FORMAT.json`; and the packages to try both with.
import { readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const [, , folder, sdks] = process.argv;

/// Finds packages where they are installed, which is not above this file.
export const require = createRequire(join(sdks, "package.json"));

/// What there is in a format: `{dialect, tools}` for each dialect; the tools of the contract are of `contract`.
export function rendered(format) {
  const end = `.${format}.json`;
  const files = readdirSync(folder).filter((name) => name.endsWith(end)).sort();
  return files.map((name) => ({
    dialect: name.slice(0, -end.length),
    tools: JSON.parse(readFileSync(join(folder, name), "utf8")),
  }));
}

/// What came of calls, in a format.
export function results(format) {
  return JSON.parse(readFileSync(join(folder, "results", `${format}.json`), "utf8"));
}

/// Every schema in a schema, and how deep it lies; itself first.
export function* schemasIn(schema, depth = 1) {
  yield [schema, depth];
  const inner = [
    ...Object.values(schema.properties ?? {}),
    ...Object.values(schema.$defs ?? {}),
    ...(schema.anyOf ?? []),
    ...[schema.items, schema.additionalProperties].filter((value) => typeof value === "object"),
  ];
  for (const one of inner) yield* schemasIn(one, depth + 1);
}

const problems = [];
let tried = 0;

/// One assertion about a tool.
export function check(dialect, tool, holds, text) {
  tried += 1;
  if (!holds) problems.push(`${dialect} ${tool}: ${text}`);
}

/// Says what was wrong, and how many assertions there were.
export function report() {
  for (const problem of problems) console.log(problem);
  console.log(`${tried} tried, ${problems.length} wrong`);
  process.exit(tried > 0 && problems.length === 0 ? 0 : 1);
}
