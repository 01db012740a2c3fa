// The official TypeScript SDK, version 2: `client.mjs WORKSPACE (URL | PROGRAM ARGUMENT...)`.
import { check, checkClient, checkLostClient, expect, report } from "./checks.mjs";
import { connect } from "./connect.mjs";

const [workspace, ...target] = process.argv.slice(2);

for (const mode of [{ pin: "2026-07-28" }, "legacy"]) {
  const connectInMode = () => connect(target, {}, { mode });
  const client = await connectInMode();
  await check(`${JSON.stringify(mode)} is negotiated`, () => {
    const version = client.getNegotiatedProtocolVersion();
    expect((version === "2026-07-28") === (mode !== "legacy"), version);
  });
  await checkClient(client, workspace);
  await client.close();
  await checkLostClient(connectInMode, workspace);
}
report();
