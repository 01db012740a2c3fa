//! Node.js with npm.

use super::{run_script, with_each_daemon};
use crate::support::Setup;

with_each_daemon!(npm_installs_a_local_package, a_server_answers_on_localhost);

async fn npm_installs_a_local_package(setup: Setup) {
    let daemon = setup.start().await;
    let script = r#"
mkdir pkg app
echo '{"name": "pkg", "version": "1.0.0", "main": "index.js", "bin": {"greet": "greet.js"}}' > pkg/package.json
echo 'module.exports = () => 42' > pkg/index.js
printf '#!/usr/bin/env node\nconsole.log("greeting", require("./index.js")())\n' > pkg/greet.js
echo '{"name": "app", "version": "1.0.0", "private": true, "scripts": {"start": "node main.js", "test": "node --test", "prepare": "echo prepared > prepared"}}' > app/package.json
echo 'console.log(require("pkg")(), process.env.npm_lifecycle_event)' > app/main.js
printf 'const test = require("node:test"), assert = require("node:assert");\ntest("answers", () => assert.equal(require("pkg")(), 42));\n' > app/some.test.js
cd pkg; npm pack --silent
cd ../app; npm install --silent --no-audit --no-fund ../pkg; readlink node_modules/pkg; npm start --silent; npx --no-install greet
npm uninstall --silent --no-audit --no-fund pkg; npm install --silent --offline --no-audit --no-fund ../pkg/pkg-1.0.0.tgz; test ! -L node_modules/pkg; npm start --silent
npm test --silent | grep -c '^# pass 1\|pass 1$'; npm install --silent --offline --no-audit --no-fund; cat prepared; rm -r node_modules; npm ci --silent --offline --no-audit --no-fund; npm ls --parseable | tail -1
"#;
    let output = run_script(&daemon, script).await;
    let expected = "pkg-1.0.0.tgz\n../../pkg\n42 start\ngreeting 42\n42 start\n1\nprepared\n/workspace/app/node_modules/pkg\n";
    assert_eq!(output, expected);
}

async fn a_server_answers_on_localhost(setup: Setup) {
    let daemon = setup.start().await;
    let script = r#"
cat > main.mjs <<'END'
import http from "node:http"; import fs from "node:fs"; import os from "node:os"; import { once } from "node:events";
import { Worker, isMainThread } from "node:worker_threads"; import { fork, execFileSync } from "node:child_process"; import cluster from "node:cluster";
const server = http.createServer((request, response) => { let n = 0; request.on("data", part => n += part.length); request.on("end", () => response.end(`got ${n}`)); });
server.listen(0, "localhost"); await once(server, "listening");
const url = `http://localhost:${server.address().port}/`;
console.log(await (await fetch(url, { method: "POST", body: "x".repeat(1 << 20) })).text());
const many = await Promise.all(Array.from({ length: 50 }, () => fetch(url).then(answer => answer.status)));
console.log(new Set(many)); server.close();
const changed = new Promise(done => { const watcher = fs.watch(".", (_, name) => { if (name === "new") { watcher.close(); done(name); } }); });
fs.writeFileSync("new", ""); console.log(await changed);
const worker = new Worker("require('node:worker_threads').parentPort.postMessage(6 * 7)", { eval: true });
console.log((await once(worker, "message"))[0]);
console.log(execFileSync("sh", ["-c", "echo child"]).toString().trim(), os.userInfo().username, os.availableParallelism() > 0);
const child = fork(process.argv[1].replace("main.mjs", "child.mjs")); console.log((await once(child, "message"))[0]);
console.log((await fs.promises.readFile("/proc/self/status", "utf8")).includes("node"), (await import("node:dns")).promises && (await (await import("node:dns")).promises.lookup("localhost")).family > 0);
END
echo 'process.send("from the child"); process.disconnect()' > child.mjs
node main.mjs
"#;
    let output = run_script(&daemon, script).await;
    let expected =
        "got 1048576\nSet(1) { 200 }\nnew\n42\nchild agent true\nfrom the child\ntrue true\n";
    assert_eq!(output, expected);
}
