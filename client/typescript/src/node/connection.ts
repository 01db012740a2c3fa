/** Connections of Node: TCP, TLS and Unix sockets, with HTTP/2 or HTTP/1.1. */

import { createHash } from "node:crypto";
import { Agent as HttpAgent } from "node:http";
import { Agent as HttpsAgent } from "node:https";
import { connect } from "node:net";
import { createConnectTransport, Http2SessionManager } from "@connectrpc/connect-node";
import type { Connection, Digest } from "../caller.js";
import { type NodeClientOptions, parseAddress, readCertificates } from "./options.js";

const KEEP_ALIVE_INTERVAL_MS = 30_000;
const KEEP_ALIVE_TIMEOUT_MS = 20_000;

/** Prepares a connection. The first call connects. */
export function openConnection(address: string, options: NodeClientOptions): Connection {
  const target = parseAddress(address);
  const certificates = readCertificates(target, options);
  const { baseUrl, socketPath } = target;
  const common = { baseUrl, useBinaryFormat: true, acceptCompression: [] };

  if (options.httpVersion === "1.1") {
    const settings = { keepAlive: true, ...certificates };
    const agent = baseUrl.startsWith("https:") ? new HttpsAgent(settings) : new HttpAgent(settings);
    const nodeOptions = { agent, ...certificates, ...(socketPath && { socketPath }) };
    const transport = createConnectTransport({ ...common, httpVersion: "1.1", nodeOptions });
    return { address, transport, newDigest, close: async () => agent.destroy() };
  }

  const pings = { pingIntervalMs: KEEP_ALIVE_INTERVAL_MS, pingTimeoutMs: KEEP_ALIVE_TIMEOUT_MS };
  const createConnection = socketPath && { createConnection: () => connect(socketPath) };
  const session = { ...certificates, ...createConnection };
  const sessionManager = new Http2SessionManager(baseUrl, pings, session);
  const transport = createConnectTransport({ ...common, httpVersion: "2", sessionManager });
  return { address, transport, newDigest, close: async () => sessionManager.abort() };
}

function newDigest(): Digest {
  const hash = createHash("sha256");
  return {
    update: (data) => {
      hash.update(data);
    },
    hex: () => hash.digest("hex"),
  };
}
