// Tries to call daemons that do not allow this origin.
//
// Parameters: `daemon`, an address, its `key`, and `keyless`, the address of a daemon without keys.

import { assertEqual, call, openEvents, opensOrCloses, parameters, runChecks } from "./page.mjs";

const { daemon, key, keyless } = parameters;

// A request that the browser keeps from the page fails without a status.
const isBlocked = (response) => response.then(() => false, (error) => error instanceof TypeError);

async function tryFetch(address, headers) {
  assertEqual(await isBlocked(call(address, "ToolService/Run", { command: "touch by-foreign-page" }, headers)), true);
}

async function tryEvents(address, key) {
  assertEqual(await opensOrCloses(openEvents(address, "browser", key)), "close");
}

// A browser sends these requests without a preflight. It keeps the responses from the page, even as opaque ones:
// they say that they are for pages of their own origin.
async function trySimpleRequests() {
  const url = `http://${keyless}/jig.v1.ToolService/Run`;
  for (const type of ["text/plain", "application/x-www-form-urlencoded"]) {
    const init = { method: "POST", mode: "no-cors", headers: { "content-type": type }, body: '{"command": "touch by-foreign-page"}' };
    assertEqual(await isBlocked(fetch(url, init)), true);
  }
  assertEqual(await isBlocked(fetch(`http://${keyless}/v1/agent-tools`)), true);
}

await runChecks({
  fetch: () => tryFetch(daemon, { authorization: `Bearer ${key}` }),
  WebSocket: () => tryEvents(daemon, key),
  "fetch without keys": () => tryFetch(keyless),
  "WebSocket without keys": () => tryEvents(keyless),
  "simple requests": trySimpleRequests,
});
