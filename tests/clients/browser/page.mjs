// What the pages share.

// The fragment of the page's address has its parameters.
export const parameters = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

const { promise: timeout, reject } = Promise.withResolvers();
setTimeout(() => reject(new Error("not done after 10 s")), 10_000);

// Runs the checks one after the other, writes their results into the page, and lets the page finish loading.
export async function runChecks(checks) {
  let [passed, failed] = [0, 0];
  for (const [name, check] of Object.entries(checks)) {
    try {
      await Promise.race([check(), timeout]);
      passed += 1;
    } catch (error) {
      failed += 1;
      write(`${name}: ${error}`);
    }
  }
  write(`${passed} passed, ${failed} failed`);
  await fetch("/finish", { method: "POST" });
}

function write(line) {
  const paragraph = document.createElement("p");
  paragraph.textContent = line;
  document.body.append(paragraph);
}

export function assertEqual(actual, expected) {
  const [is, expectation] = [actual, expected].map((value) => JSON.stringify(value));
  if (is !== expectation) throw new Error(`${is} is not ${expectation}`);
}

// Calls a method by Connect with JSON, and no library.
export function call(address, method, message, headers) {
  return fetch(`http://${address}/jig.v1.${method}`, {
    method: "POST",
    headers: { "content-type": "application/json", ...headers },
    body: JSON.stringify(message),
  });
}

// Opens a WebSocket with the events of a session. A page cannot send the key as a header.
export function openEvents(address, session, key) {
  const protocols = ["jig.events"];
  if (key) protocols.push(`jig.key.${btoa(key).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`);
  return new WebSocket(`ws://${address}/v1/sessions/${session}/events`, protocols);
}

// Waits until a WebSocket opens or closes. Returns the type of the event.
export function opensOrCloses(socket) {
  return new Promise((resolve) => {
    socket.onopen = socket.onclose = ({ type }) => resolve(type);
  });
}
