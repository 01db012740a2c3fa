/** Options of clients in Node. The environment variables are those of the command `jig`. */

import { readFileSync } from "node:fs";
import { ConfigurationError } from "../errors.js";
import type { ClientOptions } from "../options.js";

/**
 * Options of a client in Node. Those that are not given come from the environment: `JIG_KEY`,
 * `JIG_WORKSPACE`, `JIG_SESSION`, `JIG_DEADLINE`, `TRACEPARENT`, and the variables named here.
 */
export interface NodeClientOptions extends ClientOptions {
  /** PEM file with the CA certificates of the daemon. By default, those of Node. `JIG_CA`. */
  ca?: string | undefined;
  /** PEM file with the client certificate. `JIG_CLIENT_CERT`. */
  clientCert?: string | undefined;
  /** PEM file with the private key of `clientCert`. `JIG_CLIENT_KEY`. */
  clientKey?: string | undefined;
  /** Version of HTTP. By default, 2. A proxy in between can need 1.1. */
  httpVersion?: "1.1" | "2" | undefined;
}

type Environment = Readonly<Record<string, string | undefined>>;

const ADDRESS_HINT = "write `host:port`, `http://host:port`, `https://host:port` or `unix:/path`";
const TRACEPARENT = /^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$/i;

/** Takes options that are not set from the environment. */
export function withEnvironment(
  options: NodeClientOptions,
  environment: Environment = process.env,
): NodeClientOptions {
  const { JIG_DEADLINE: deadline, TRACEPARENT: traceparent = "" } = environment;
  return {
    ...options,
    key: options.key || environment["JIG_KEY"],
    workspace: options.workspace || environment["JIG_WORKSPACE"],
    session: options.session || environment["JIG_SESSION"],
    deadlineSec: options.deadlineSec ?? (deadline ? parseSeconds(deadline) : undefined),
    ca: options.ca || environment["JIG_CA"],
    clientCert: options.clientCert || environment["JIG_CLIENT_CERT"],
    clientKey: options.clientKey || environment["JIG_CLIENT_KEY"],
    // A malformed value starts a new trace, as W3C Trace Context requires.
    traceparent: options.traceparent || (TRACEPARENT.test(traceparent) ? traceparent : undefined),
  };
}

function parseSeconds(text: string): number {
  const seconds = Number(text);
  if (Number.isNaN(seconds)) {
    throw new ConfigurationError(
      `JIG_DEADLINE is \`${text}\`; it must be a number of seconds, such as \`30\` or \`0.5\``,
    );
  }
  return seconds;
}

/** An address, as the transports of Node take it. */
export interface Target {
  readonly baseUrl: string;
  readonly socketPath?: string;
}

/** Parses an address. Throws `ConfigurationError` if it is malformed. */
export function parseAddress(address: string): Target {
  const invalid = (problem: string) =>
    new ConfigurationError(`\`${address}\` is not an address: ${problem}`);
  if (!address) {
    throw new ConfigurationError(
      "no address: give one, set JIG_ADDRESS, or start a daemon with `Client.embedded`",
    );
  }
  if (address.startsWith("unix:")) {
    // `unix://HOST/PATH` names a socket of another machine, which cannot be reached.
    const path = address.slice("unix:".length).replace(/^\/\/(?=\/)/, "");
    if (path.startsWith("//")) {
      throw invalid("write `unix:/path` or `unix:///path`");
    }
    if (!path) {
      throw invalid("a path must follow `unix:`");
    }
    return { baseUrl: "http://localhost", socketPath: path };
  }

  const text = /^[a-z]+:\/\//.test(address) ? address : `http://${address}`;
  const parts = /^(https?):\/\/([^/?#\s]*):([0-9]+)\/?$/.exec(text);
  if (parts?.[2]?.includes("@")) {
    throw invalid("set the key in `JIG_KEY`, not in the address");
  }
  const baseUrl = parts ? `${parts[1]}://${parts[2]}:${parts[3]}` : "";
  if (!URL.canParse(baseUrl) || Number(parts?.[3]) === 0) {
    throw invalid(ADDRESS_HINT);
  }
  return { baseUrl };
}

/** The certificates of the options, in PEM. */
export function readCertificates(target: Target, options: NodeClientOptions) {
  const { ca, clientCert, clientKey } = options;
  if (!target.baseUrl.startsWith("https:")) {
    if (ca || clientCert || clientKey) {
      const authority = target.baseUrl.replace(/^http:\/\//, "");
      const problem = "CA and client certificate need an address with TLS";
      throw new ConfigurationError(`${problem}: write https://${authority}`);
    }
    return {};
  }
  if (Boolean(clientCert) !== Boolean(clientKey)) {
    throw new ConfigurationError("a client certificate needs both its file and its key");
  }
  return {
    ...(ca && { ca: readPem(ca) }),
    ...(clientCert && { cert: readPem(clientCert) }),
    ...(clientKey && { key: readPem(clientKey) }),
  };
}

function readPem(path: string): Buffer {
  try {
    return readFileSync(path);
  } catch (cause) {
    throw new ConfigurationError(`cannot read ${path}: ${(cause as Error).message}`, { cause });
  }
}
