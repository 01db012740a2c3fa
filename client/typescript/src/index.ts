/**
 * Client of jig: sandboxed commands and files for AI agents.
 *
 *     import { Client } from "jig-client";
 *
 *     await using client = await Client.embedded("project");
 *     console.log((await client.run("ls")).stdout);
 *     const results = await client.handle(reply); // runs the tool calls of a model's reply
 *
 * Errors of calls are classes of `reasons`, one for each reason of the contract, and have the base
 * `CallError`.
 */

import type { Connection } from "./caller.js";
import { openConnection } from "./node/connection.js";
import { Daemon, type DaemonOptions } from "./node/daemon.js";
import { type NodeClientOptions, withEnvironment } from "./node/options.js";
import { PortOperations } from "./node/ports.js";

export * from "./exports.js";
export { Daemon, type DaemonOptions } from "./node/daemon.js";
export type { NodeClientOptions as ClientOptions } from "./node/options.js";
export type { PortStream } from "./node/ports.js";
export type { UploadOptions, UploadSource } from "./node/transfer.js";
export type { DownloadTreeOptions, UploadTreeOptions } from "./node/trees.js";

/** Options of `Client.embedded`. */
export type EmbeddedOptions = NodeClientOptions & DaemonOptions;

// The environment variables that a client of an embedded daemon uses.
const EMBEDDED_VARIABLES = ["JIG_SESSION", "JIG_DEADLINE", "TRACEPARENT"];

/**
 * Client of a daemon at `address`, by default that of `JIG_ADDRESS`.
 *
 * An address is `host:port`, `http://host:port`, `https://host:port` (TLS) or `unix:/path`.
 *
 * Throws `ConfigurationError`. The first call connects.
 */
export class Client extends PortOperations {
  constructor(address?: string, options?: NodeClientOptions);
  /** @internal */
  constructor(connection: Connection, options: NodeClientOptions);
  constructor(address: string | Connection = "", options: NodeClientOptions = {}) {
    if (typeof address !== "string") {
      super(address, options);
      return;
    }
    const all = withEnvironment(options);
    super(openConnection(address || (process.env["JIG_ADDRESS"] ?? ""), all), all);
  }

  /**
   * Starts a daemon that serves `directory` and ends with this client.
   *
   * Throws `DaemonStartError`.
   */
  static async embedded(directory = ".", options: EmbeddedOptions = {}): Promise<Client> {
    const variables = EMBEDDED_VARIABLES.map((name) => [name, process.env[name]]);
    const all = withEnvironment(options, Object.fromEntries(variables));
    const daemon = await Daemon.start(directory, options);
    try {
      const connection = openConnection(daemon.address, all);
      const close = async () => {
        await connection.close();
        await daemon.close();
      };
      return new Client({ ...connection, close }, all);
    } catch (error) {
      await daemon.close();
      throw error;
    }
  }
}
