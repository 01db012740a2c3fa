import { execFileSync } from "node:child_process";
import { chmod, mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import {
  Client,
  type ClientOptions,
  ConfigurationError,
  Daemon,
  reasons,
  Unavailable,
} from "jig-client";
import { Client as BrowserClient } from "jig-client/browser";
import { expect, inject, onTestFinished, test } from "vitest";
import { parseAddress, withEnvironment } from "../src/node/options.js";
import { requestHeaders } from "../src/options.js";
import { collect, connect, outputOf } from "./support.js";

test.each([
  ["127.0.0.1:50051", { baseUrl: "http://127.0.0.1:50051" }],
  ["[::1]:50051", { baseUrl: "http://[::1]:50051" }],
  ["http://host:80/", { baseUrl: "http://host:80" }],
  ["https://host:443", { baseUrl: "https://host:443" }],
  ["unix:/run/jig.sock", { baseUrl: "http://localhost", socketPath: "/run/jig.sock" }],
  ["unix:///run/jig.sock", { baseUrl: "http://localhost", socketPath: "/run/jig.sock" }],
  ["unix:jig.sock", { baseUrl: "http://localhost", socketPath: "jig.sock" }],
])("address %s", (address, target) => {
  expect(parseAddress(address)).toEqual(target);
});

test.each([
  "",
  "host",
  "host:",
  "host:port",
  "host:0",
  "host:99999",
  "ftp://host:1",
  "http://host",
  "http://host:1/path",
  "http://key@host:1",
  "host :1",
  "unix:",
  "unix://host/path",
])("malformed address %j", (address) => {
  expect(() => parseAddress(address)).toThrow(ConfigurationError);
});

test("options come from the environment", () => {
  const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  const variables = { JIG_KEY: "secret", JIG_WORKSPACE: "app", JIG_DEADLINE: "0.5" };
  const environment = { ...variables, TRACEPARENT: traceparent };
  const options = withEnvironment({ workspace: "given" }, environment);
  expect(options.deadlineSec).toBe(0.5);
  expect(Object.fromEntries(requestHeaders(options))).toEqual({
    authorization: "Bearer secret",
    "jig-workspace": "given",
    traceparent,
  });
  expect([...requestHeaders(withEnvironment({}, { TRACEPARENT: "x" }))]).toEqual([]);
  expect(() => withEnvironment({}, { JIG_DEADLINE: "soon" })).toThrow(ConfigurationError);
});

test.each<ClientOptions>([
  { key: "a\nb" },
  { workspace: "\x7f" },
  { session: "é" },
  { deadlineSec: 0 },
  { requestId: "\t" },
  { ca: "ca.pem" },
])("invalid options %j", (options) => {
  expect(() => new Client("host:1", options)).toThrow(ConfigurationError);
});

test("invalid files of TLS", () => {
  for (const options of [{ ca: "/none" }, { clientCert: "/none" }]) {
    expect(() => new Client("https://host:1", options)).toThrow(ConfigurationError);
  }
});

test("sessions and copies of a client", async () => {
  const client = connect();
  const other = client.withOptions({ session: "another-session" });
  await other.run("echo other");
  await client.run("echo own");
  expect((await other.lastCommand()).stdout).toBe("other\n");
  expect((await client.lastCommand()).stdout).toBe("own\n");
  await other.upload(Uint8Array.of(7), "of-a-copy");
  expect(await other.readBytes("of-a-copy")).toEqual(Uint8Array.of(7));
  expect(() => client.withOptions({ session: "é" })).toThrow(ConfigurationError);
});

test.each([
  ["HTTP/2 over TCP", () => connect({ httpVersion: "2" }, inject("port"))],
  ["HTTP/1.1 over TCP", () => connect({ httpVersion: "1.1" }, inject("port"))],
  ["HTTP/1.1 over a Unix socket", () => connect({ httpVersion: "1.1" })],
  ["fetch of browsers", () => new BrowserClient(`http://${inject("port")}`, { session: "page" })],
])("calls and streams by %s", async (_, open) => {
  const client = open();
  expect((await client.run("echo hello")).stdout).toBe("hello\n");
  const stream = client.stream("echo one; echo two");
  expect(outputOf(await collect(stream))).toBe("one\ntwo\n");
  const absent = client.readFile("none");
  await expect(absent).rejects.toThrow(reasons.FileNotFound);
  const process = await client.start(["cat"]);
  await process.write("typed");
  await process.closeStdin();
  expect(outputOf(await collect(process))).toBe("typed");
  const content = new Uint8Array(1 << 20).fill(7);
  await client.writeFile("transport", content);
  expect((await client.readBytes("transport")).length).toBe(content.length);
  const slow = client.run("sleep 60", { deadlineSec: 0.3 });
  await expect(slow).rejects.toThrow(reasons.Timeout);
  const call = { type: "tool_use", id: "c", name: "run", input: { command: "echo hi" } };
  expect((await client.handle([call])).outcomes[0]?.ok).toBe(true);
  const controller = new AbortController();
  const running = client.run("sleep 60", { signal: controller.signal });
  setTimeout(() => controller.abort(new Error("enough")), 200);
  await expect(running).rejects.toThrow("enough");
  await client.close();
});

test("a page cannot reach a daemon that is absent", async () => {
  const client = new BrowserClient("http://127.0.0.1:1", { retries: 1 });
  await expect(client.getInfo()).rejects.toThrow(Unavailable);
});

test("TLS, keys and client certificates", async () => {
  const directory = await mkdtemp(join(tmpdir(), "jig-test-"));
  await chmod(directory, 0o700);
  onTestFinished(() => rm(directory, { recursive: true }));
  const program = inject("program");
  await makeCertificates(directory);
  const keys = join(directory, "keys.toml");
  const newKey = (...args: string[]) =>
    execFileSync(join(dirname(program), "jig"), ["key", "--keys", keys, "new", ...args], {
      stdio: ["ignore", "pipe", "ignore"],
    })
      .toString()
      .trim();
  newKey("builder", "--certificate", "uri:spiffe://example.org/builder");
  const key = newKey("reader", "--role", "read");
  const workspace = join(directory, "workspace");
  await mkdir(workspace);
  const file = (name: string) => join(directory, name);
  const args = ["--listen=127.0.0.1:0", `--keys=${keys}`, `--tls-client-ca=${file("ca.crt")}`];
  args.push(`--tls-cert=${file("server.crt")}`, `--tls-key=${file("server.key")}`);
  const daemon = await Daemon.start(workspace, { program, args });
  onTestFinished(() => daemon.close());
  const address = `https://${daemon.addresses.find((known) => !known.startsWith("unix:"))}`;
  const ca = file("ca.crt");

  for (const httpVersion of ["2", "1.1"] as const) {
    const certificate = { clientCert: file("builder.crt"), clientKey: file("builder.key") };
    const builder = connect({ ca, ...certificate, httpVersion }, address);
    expect((await builder.run("echo hello")).stdout).toBe("hello\n");
    const reader = connect({ ca, key, httpVersion }, address);
    expect((await reader.tools("anthropic")).length).toBeGreaterThanOrEqual(0);
    const untrusting = connect({ key, httpVersion, retries: 0 }, address);
    const error = await untrusting.run("true").catch((error) => error);
    expect(error).toBeInstanceOf(Unavailable);
    expect(error.message).toMatch(/certificate/i);
  }
  // Over HTTP/1.1, the daemon rejects such a call before it has read the request, and closes the
  // connection. The client can then lose the response.
  const reader = connect({ ca, key }, address);
  await expect(reader.run("true")).rejects.toThrow(reasons.Forbidden);
  const anonymous = connect({ ca }, address);
  await expect(anonymous.run("true")).rejects.toThrow(reasons.Unauthenticated);
});

async function makeCertificates(directory: string): Promise<void> {
  const openssl = (...args: string[]) =>
    execFileSync("openssl", args, { cwd: directory, stdio: "ignore" });
  const newKey = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
  const ca = ["-subj", "/CN=jig test CA", "-days", "2", "-keyout", "ca.key", "-out", "ca.crt"];
  openssl("req", "-x509", ...newKey, ...ca);
  for (const [name, alternative] of [
    ["server", "DNS:localhost,IP:127.0.0.1"],
    ["builder", "URI:spiffe://example.org/builder"],
  ] as const) {
    const files = ["-keyout", `${name}.key`, "-out", `${name}.csr`];
    openssl("req", ...newKey, "-subj", `/CN=${name}`, ...files);
    const extensions = `subjectAltName=${alternative}\nbasicConstraints=critical,CA:FALSE\n`;
    await writeFile(join(directory, "extensions"), extensions);
    const issuer = ["-CA", "ca.crt", "-CAkey", "ca.key", "-days", "2", "-extfile", "extensions"];
    openssl("x509", "-req", "-in", `${name}.csr`, "-out", `${name}.crt`, ...issuer);
    await chmod(join(directory, `${name}.key`), 0o600);
  }
}
