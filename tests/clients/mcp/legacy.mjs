// The official TypeScript SDK, version 1: `legacy.mjs WORKSPACE (URL | PROGRAM ARGUMENT...)`.
import { checkClient, checkLostClient, report, setOptionsPosition } from "./checks.mjs";
import { connect } from "./connect_v1.mjs";

const [workspace, ...target] = process.argv.slice(2);
setOptionsPosition(2);
const client = await connect(target);
await checkClient(client, workspace);
await client.close();
await checkLostClient(() => connect(target), workspace);
report();
