/**
 * Provider for ComputeSDK: its sandboxes are workspaces on demand.
 *
 *     import { jig } from "jig-client/computesdk";
 *
 *     const compute = createCompute({ defaultProvider: jig({ address: "host:50051", key }) });
 *
 * The operator must configure a directory for workspaces on demand.
 */

import {
  type CommandResult,
  defineProvider,
  type Provider,
  type RunCommandOptions,
} from "@computesdk/provider";
import { reasons } from "./exports.js";
import type { DirectoryEntry, ProcessExited, WorkspaceDetails } from "./gen/messages.js";
import { Client, type ClientOptions } from "./index.js";

/** Options of the provider. */
export interface JigConfig extends ClientOptions {
  /** Address of the daemon. By default, that of `JIG_ADDRESS`. */
  address?: string;
  /** A client to use in place of a new one. Its owner closes it. */
  client?: Client;
}

/** A sandbox: a client of its workspace. */
export interface JigSandbox {
  readonly client: Client;
  readonly workspace: string;
  /** Variables of all commands. Other objects for the same sandbox do not know them. */
  readonly env: Readonly<Record<string, string>>;
}

const NAME = "jig";
// The label of workspaces that this provider creates.
const LABELS = { "created-by": "computesdk" };
const MAX_OUTPUT_BYTES = 10 << 20;

const clients = new WeakMap<JigConfig, Client>();

/** Makes a provider of a daemon. */
export const jig: (config: JigConfig) => Provider<JigSandbox> = defineProvider<
  JigSandbox,
  JigConfig
>({
  name: NAME,
  methods: {
    sandbox: {
      async create(config, options = {}) {
        const client = clientOf(config);
        const workspace = await client.createWorkspace({
          name: options.name,
          labels: { ...toLabels(options.metadata), ...LABELS },
          cloneOf: options.snapshotId ?? options.templateId,
          ttlSec: toSeconds(options.timeout),
          signal: options.signal,
        });
        return toSandbox(client, workspace, options.envs);
      },

      async getById(config, sandboxId) {
        const client = clientOf(config);
        const workspace = await client.getWorkspace(sandboxId).catch(ignoreUnknown);
        return workspace ? toSandbox(client, workspace) : null;
      },

      async list(config) {
        const client = clientOf(config);
        const workspaces = await client.listWorkspaces({ labels: LABELS });
        return workspaces.map((workspace) => toSandbox(client, workspace));
      },

      async destroy(config, sandboxId) {
        await clientOf(config).deleteWorkspace(sandboxId).catch(ignoreUnknown);
      },

      async runCommand(sandbox, command, options = {}) {
        const fields = commandOptions(sandbox, options);
        if (options.background) {
          const begin = performance.now();
          const keep = { onDisconnect: "KEEP", stdinOpen: false } as const;
          const process = await sandbox.client.start(command, { ...fields, ...keep });
          await process.close();
          return { stdout: "", stderr: "", exitCode: 0, durationMs: performance.now() - begin };
        }
        const maxOutputBytes = MAX_OUTPUT_BYTES;
        const result = await sandbox.client.run(command, { ...fields, maxOutputBytes });
        const { stdout, stderr, shellExitCode, durationMs } = result;
        return { stdout, stderr, exitCode: shellExitCode, durationMs };
      },

      async streamCommand(sandbox, command, options) {
        return streamCommand(sandbox, command, options);
      },

      async getInfo(sandbox) {
        const { name, createTime, expireTime, labels } = await sandbox.client.getWorkspace(
          sandbox.workspace,
        );
        const createdAt = createTime ?? new Date(0);
        return {
          id: name,
          provider: NAME,
          status: "running",
          createdAt,
          // 0 stands for no end.
          timeout: expireTime ? expireTime.getTime() - createdAt.getTime() : 0,
          metadata: labels,
        };
      },

      async getUrl() {
        throw new Error("the ports of a command cannot be reached from outside its sandbox");
      },

      filesystem: {
        async readFile({ client }, path) {
          return new TextDecoder().decode(await client.readBytes(path));
        },
        async writeFile({ client }, path, content) {
          await client.upload(new TextEncoder().encode(content), path);
        },
        async mkdir({ client }, path) {
          await client.createDirectory(path);
        },
        async readdir({ client }, path) {
          return (await client.listDir(path)).entries.map(toFileEntry);
        },
        async exists({ client }, path) {
          return client.exists(path);
        },
        async remove({ client }, path) {
          await client.deletePath(path, { recursive: true });
        },
      },
    },
  },
});

/** The client of a provider. Its sandboxes share it. */
function clientOf(config: JigConfig): Client {
  const { client, address, ...options } = config;
  const known = client ?? clients.get(config);
  if (known !== undefined) {
    return known;
  }
  const created = new Client(address, options);
  clients.set(config, created);
  return created;
}

function toSandbox(client: Client, { name }: WorkspaceDetails, env = {}) {
  const sandbox = { client: client.withOptions({ workspace: name }), workspace: name, env };
  return { sandbox, sandboxId: name };
}

function ignoreUnknown(error: unknown): undefined {
  if (!(error instanceof reasons.UnknownWorkspace)) {
    throw error;
  }
}

function toLabels(metadata: Readonly<Record<string, unknown>> = {}): Record<string, string> {
  const entries = Object.entries(metadata);
  return Object.fromEntries(entries.map(([name, value]) => [name, String(value)]));
}

function toSeconds(milliseconds: number | undefined): number | undefined {
  return milliseconds === undefined ? undefined : Math.max(Math.ceil(milliseconds / 1000), 1);
}

function commandOptions(sandbox: JigSandbox, { cwd, env, timeout }: RunCommandOptions) {
  return { cwd, env: { ...sandbox.env, ...env }, timeoutSec: toSeconds(timeout) };
}

/** Runs a command, and reports its output while it runs. */
async function streamCommand(
  sandbox: JigSandbox,
  command: string,
  options: RunCommandOptions,
): Promise<CommandResult> {
  const begin = performance.now();
  const output = { stdout: "", stderr: "" };
  const report = { stdout: options.onStdout, stderr: options.onStderr };
  // A chunk can end within a character.
  const decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };
  const add = (kind: "stdout" | "stderr", data?: Uint8Array) => {
    const text = decoders[kind].decode(data, { stream: data !== undefined });
    output[kind] += text;
    if (text) {
      report[kind]?.(text);
    }
  };
  let exited: ProcessExited | undefined;
  for await (const event of sandbox.client.stream(command, commandOptions(sandbox, options))) {
    if (event.kind === "stdout" || event.kind === "stderr") {
      add(event.kind, event.data);
    } else if (event.kind === "exited") {
      exited = event;
    }
  }
  add("stdout");
  add("stderr");
  const exitCode = exited?.shellExitCode ?? 125;
  return { ...output, exitCode, durationMs: performance.now() - begin };
}

function toFileEntry({ name, type, sizeBytes, modifyTime }: DirectoryEntry) {
  return {
    name,
    type: type === "DIRECTORY" ? ("directory" as const) : ("file" as const),
    size: sizeBytes,
    ...(modifyTime && { modified: modifyTime }),
  };
}
