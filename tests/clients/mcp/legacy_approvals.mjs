// Approvals by the user of the official TypeScript SDK, version 1: `legacy_approvals.mjs WORKSPACE (URL | PROGRAM ARGUMENT...)`.
import { checkApprovals, report } from "./checks.mjs";
import { connect } from "./connect_v1.mjs";

const [workspace, ...target] = process.argv.slice(2);
await checkApprovals((onQuestion) => connect(target, onQuestion), workspace);
report();
