/** An embedded daemon: a `jigd` that lives as long as its client. */

import { type ChildProcess, spawn } from "node:child_process";
import { constants } from "node:fs";
import { access, mkdtemp, open, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { delimiter, join, resolve } from "node:path";
import type { Readable } from "node:stream";
import { DaemonStartError } from "../errors.js";

const START_TIMEOUT_MS = 30_000;
// The arguments can allow running calls 25 seconds, as is the default elsewhere.
const STOP_TIMEOUT_MS = 40_000;
const LOG_TAIL_BYTES = 4096;

// Ends the daemon when this process closes the pipe or dies, however it dies. The daemon alone has
// the standard output, so that its end is seen.
const GUARD = '"$@" </dev/null & daemon=$!; exec >&-; read -r _; kill -TERM $daemon; wait $daemon';

/** Options of `Daemon.start`. */
export interface DaemonOptions {
  /** Path of `jigd`. By default, the one in `PATH`, or else `jig`, which contains it. */
  program?: string | undefined;
  /** Minimum isolation level, such as `L2`. `JIG_MINIMUM_LEVEL`. */
  minimumLevel?: string | undefined;
  /** Whether the daemon changes the owner of the workspace. `JIG_CHOWN_WORKSPACE`. */
  chownWorkspace?: boolean | undefined;
  /** Further flags of `jigd`, such as `--network=host`. */
  args?: readonly string[] | undefined;
}

/** A `jigd` with a private Unix socket and state directory, both deleted at its end. */
export class Daemon implements AsyncDisposable {
  /** Address for clients: `unix:` and the path of the socket. */
  readonly address: string;
  /** All addresses, with those of further `--listen` flags. */
  readonly addresses: readonly string[];
  readonly #process: ChildProcess;
  readonly #directory: string;

  private constructor(child: ChildProcess, directory: string, addresses: readonly string[]) {
    this.address = socketAddress(directory);
    this.addresses = addresses;
    this.#process = child;
    this.#directory = directory;
  }

  /**
   * Starts a daemon with a directory as its workspace.
   *
   * Throws `DaemonStartError`.
   */
  static async start(directory = ".", options: DaemonOptions = {}): Promise<Daemon> {
    const { args = [] } = options;
    const program = await findProgram(options.program);
    // The path of a socket has at most 107 bytes.
    const temporary = await mkdtemp(join(tmpdir(), "jig-"));
    const command = [
      ...program,
      `--listen=${socketAddress(temporary)}`,
      `--workspace=${resolve(directory)}`,
      `--state-dir=${join(temporary, "state")}`,
      "--log=text",
      ...levelFlags(options),
      // By default, calls end with the daemon: its program has left them.
      ...(args.some((argument) => argument.startsWith("--drain-timeout"))
        ? []
        : ["--drain-timeout=0s"]),
      ...args,
    ];
    const log = await open(join(temporary, "log"), "w");
    const child = spawn("/bin/sh", ["-c", GUARD, "sh", ...command], {
      stdio: ["pipe", "pipe", log.fd],
      env: daemonEnvironment(),
      // Ctrl-C in the terminal is for this program, which then ends the daemon.
      detached: true,
    });
    await log.close();
    const listeners = command.filter((argument) => argument.startsWith("--listen")).length;
    const addresses = await readAddresses(child.stdout as Readable, listeners);
    if (addresses.length < listeners) {
      await stop(child);
      const tail = (await readFile(join(temporary, "log"))).subarray(-LOG_TAIL_BYTES).toString();
      await rm(temporary, { recursive: true, force: true });
      throw new DaemonStartError(`the daemon did not start:\n${tail.trim()}`);
    }
    // A program that has nothing else to do ends, and the daemon with it.
    for (const handle of [child, child.stdin, child.stdout]) {
      (handle as { unref?: () => void } | null)?.unref?.();
    }
    return new Daemon(child, temporary, addresses);
  }

  /** Ends the daemon, with all commands, and deletes its directory. */
  async close(): Promise<void> {
    this.#process.ref();
    await stop(this.#process);
    await rm(this.#directory, { recursive: true, force: true });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

function socketAddress(directory: string): string {
  return `unix:${join(directory, "jig.sock")}`;
}

/** The addresses that the daemon prints. Fewer than expected if it ends or hangs. */
async function readAddresses(output: Readable, count: number): Promise<string[]> {
  const timer = setTimeout(() => output.destroy(), START_TIMEOUT_MS);
  let text = "";
  let lines: string[] = [];
  try {
    for await (const chunk of output.iterator({ destroyOnReturn: false })) {
      text += chunk;
      lines = text.split("\n").slice(0, -1);
      if (lines.length >= count) {
        break;
      }
    }
  } catch {
    // The time is up.
  }
  clearTimeout(timer);
  return lines.map((line) => line.trim().replace(/^listening on /, ""));
}

async function stop(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) {
    return;
  }
  const ended = new Promise((resolve) => child.once("exit", resolve));
  child.stdin?.end();
  const timer = setTimeout(() => {
    process.kill(-(child.pid as number), "SIGKILL");
  }, STOP_TIMEOUT_MS);
  await ended;
  clearTimeout(timer);
}

async function findProgram(program: string | undefined): Promise<string[]> {
  if (program !== undefined) {
    return [program];
  }
  for (const [name, ...rest] of [["jigd"], ["jig", "serve"]] as const) {
    for (const directory of (process.env["PATH"] ?? "").split(delimiter)) {
      const path = join(directory, name);
      const isExecutable = await access(path, constants.X_OK).then(
        () => true,
        () => false,
      );
      if (isExecutable) {
        return [path, ...rest];
      }
    }
  }
  throw new DaemonStartError("neither jigd nor jig is in PATH: install it, or give `program`");
}

function levelFlags({ minimumLevel, chownWorkspace }: DaemonOptions): string[] {
  const level = minimumLevel || process.env["JIG_MINIMUM_LEVEL"];
  const variable = (process.env["JIG_CHOWN_WORKSPACE"] ?? "").toLowerCase();
  const isSet = !["", "0", "false", "no"].includes(variable);
  return [
    ...(level ? [`--minimum-level=${level}`] : []),
    ...((chownWorkspace ?? isSet) ? ["--chown-workspace"] : []),
  ];
}

/** The environment without variables for other daemons, such as `JIG_LISTEN`. */
function daemonEnvironment(): NodeJS.ProcessEnv {
  const entries = Object.entries(process.env).filter(([name]) => !name.startsWith("JIG_"));
  return Object.fromEntries(entries);
}
