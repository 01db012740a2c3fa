// Approvals by the user of the official TypeScript SDK, version 2: `approvals.mjs WORKSPACE (URL | PROGRAM ARGUMENT...)`. Calls of dangerous tools need
// approval. In revision 2026-07-28, the SDK repeats the call with the answer and the `requestState`.
import { checkApprovals, report } from "./checks.mjs";
import { connect } from "./connect.mjs";

const [workspace, ...target] = process.argv.slice(2);
for (const mode of [{ pin: "2026-07-28" }, "legacy"]) {
  await checkApprovals((onQuestion) => connect(target, { elicitation: {} }, { mode }, onQuestion), workspace);
}
report();
