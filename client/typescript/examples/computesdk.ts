// A sandbox of ComputeSDK that is a workspace of jig: creates it, works in it, and destroys it.
//
// Usage: JIG_ADDRESS=127.0.0.1:50051 node computesdk.ts

import { compute } from "computesdk";
import { jig } from "jig-client/computesdk";

compute.setConfig({ provider: jig({}) });
const sandbox = await compute.sandbox.create({ timeout: 600_000, envs: { NAME: "sandbox" } });
try {
  await sandbox.filesystem.writeFile("greet.sh", "echo hello from the $NAME\n");
  const { stdout, exitCode } = await sandbox.runCommand("sh greet.sh", { timeout: 10_000 });
  console.log(`exit code ${exitCode}: ${stdout.trim()}`);

  const files = await sandbox.filesystem.readdir(".");
  console.log(files.map(({ name, size }) => `${name}, ${size} bytes`).join("\n"));
} finally {
  await sandbox.destroy();
}
