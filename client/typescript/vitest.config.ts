import { join } from "node:path";
import { defineConfig } from "vitest/config";

const source = (name: string) => join(import.meta.dirname, "src", name);

export default defineConfig({
  resolve: {
    alias: [
      { find: /^jig-client$/, replacement: source("index.ts") },
      { find: /^jig-client\/(.+)$/, replacement: source("$1.ts") },
    ],
  },
  test: {
    globalSetup: "test/daemon.ts",
    testTimeout: 50_000,
    hookTimeout: 40_000,
    // Most tests wait for commands.
    maxWorkers: 4,
  },
});
