/**
 * Client of jig for web pages: `fetch`, without Unix sockets, client certificates and uploads.
 *
 *     import { Client } from "jig-client/browser";
 *
 *     const client = new Client("https://jig.internal:50051", { key });
 *     console.log((await client.run("ls")).stdout);
 *
 * The daemon must allow the origin of the page (`http.allowed_origins`).
 */

import { createConnectTransport } from "@connectrpc/connect-web";
import { Operations } from "./client.js";
import type { ClientOptions } from "./options.js";

export * from "./exports.js";
export type { ClientOptions } from "./options.js";

/** Client of a daemon at a URL, such as `https://host:port`. The first call connects. */
export class Client extends Operations {
  constructor(baseUrl: string, options: ClientOptions = {}) {
    const transport = createConnectTransport({ baseUrl, useBinaryFormat: true });
    super({ address: baseUrl, transport, close: async () => {} }, options);
  }
}
