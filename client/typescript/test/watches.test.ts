import { reasons } from "jig-client";
import { expect, test } from "vitest";
import { connect, makeRoot } from "./support.js";

test("watch files", async () => {
  const client = connect();
  const path = await makeRoot(client);
  const seen: string[] = [];
  for await (const message of client.watchFiles({ path, excludeGlobs: ["no"] })) {
    if (message.kind === "ready") {
      expect(message.directories).toBe(1);
      await client.writeFile(`${path}/no`, "");
      await client.writeFile(`${path}/a`, "");
      continue;
    }
    for (const change of message.changes) {
      seen.push(`${change.kind} ${change.path} ${change.type}`);
    }
    if (seen.includes(`CREATED ${path}/d/f FILE`)) {
      break;
    }
    await client.run(`mkdir -p ${path}/d && touch ${path}/d/f`);
  }
  expect(seen).toContain(`CREATED ${path}/a FILE`);
  expect(seen.join()).not.toContain(`${path}/no`);
  const none = client.watchFiles({ path: `${path}/none` }).next();
  await expect(none).rejects.toThrow(reasons.DirectoryNotFound);
});
