/** Clients and helpers of the tests. */

import { Client, type ClientOptions, type Process, type ProcessEvent } from "jig-client";
import { expect, inject, onTestFinished } from "vitest";

/** The session of a test. */
export function sessionOf(): string {
  return (expect.getState().currentTestName ?? "").replaceAll(/[^A-Za-z0-9]+/g, "-").slice(0, 64);
}

/** A client in a session of its own, which the end of the test closes. */
export function connect(options: ClientOptions = {}, address = inject("socket")): Client {
  const client = new Client(address, { session: sessionOf(), deadlineSec: 45, ...options });
  onTestFinished(() => client.close());
  return client;
}

/** Creates an empty directory of the workspace for a test. */
export async function makeRoot(client: Client): Promise<string> {
  const name = `root-${crypto.randomUUID()}`;
  await client.createDirectory(name);
  return name;
}

export async function collect<T>(stream: AsyncIterable<T>): Promise<T[]> {
  const items: T[] = [];
  for await (const item of stream) {
    items.push(item);
  }
  return items;
}

export function text(data: Uint8Array | Uint8Array[]): string {
  return Buffer.concat([data].flat()).toString();
}

/** The bytes of one stream of a process. */
export function outputOf(
  events: readonly ProcessEvent[],
  kind: "stdout" | "stderr" = "stdout",
): string {
  return text(events.flatMap((event) => (event.kind === kind ? [event.data] : [])));
}

/** Reads the output of a process until it has a text. */
export async function readUntil(process: Process, end: string): Promise<string> {
  let received = "";
  for await (const event of process) {
    if (event.kind === "stdout") {
      received += text(event.data);
    }
    if (received.includes(end)) {
      break;
    }
  }
  return received;
}

/** Waits until a condition holds, for at most 30 seconds. */
export async function waitFor(condition: () => Promise<boolean>): Promise<void> {
  const end = performance.now() + 30_000;
  while (!(await condition())) {
    if (performance.now() > end) {
      throw new Error("the condition does not hold after 30 seconds");
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
