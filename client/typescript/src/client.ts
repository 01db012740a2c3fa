/** What the clients of all environments have in common. */

import { Caller, type Connection } from "./caller.js";
import type { ClientOptions } from "./options.js";
import { WatchOperations } from "./watches.js";

/** All operations of a client. Close it, or use it in an `await using` block. */
export class Operations extends WatchOperations implements AsyncDisposable {
  /** @internal */
  protected constructor(connection: Connection, options: ClientOptions) {
    super(new Caller(connection, options));
  }

  /** Address of the daemon. */
  get address(): string {
    return this.caller.connection.address;
  }

  /**
   * Returns a client with other options and the same connection.
   *
   * `client.withOptions({ session: "review" })` is for a conversation. Closing either client closes
   * the connection of both.
   */
  withOptions(changes: ClientOptions): this {
    const copy = Object.create(Object.getPrototypeOf(this));
    return Object.assign(copy, this, { caller: this.caller.with(changes) });
  }

  /** Closes the connection, and ends an embedded daemon. */
  async close(): Promise<void> {
    await this.caller.connection.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
