/** Operations that run commands: to their end, with live output, or with a terminal. */

import type { Caller } from "./caller.js";
import type {
  AttachRequest,
  LastCommandResponse,
  ProcessInfo,
  RunRequest,
  RunResponse,
  StartRequest,
} from "./gen/messages.js";
import { type CallOptions, splitOptions } from "./options.js";
import { Process, type ProcessEvent, processEvents } from "./process.js";
import { toBytes } from "./values.js";

/** Shell text for `/bin/sh -c`, or a program and its arguments, without a shell. */
export type Command = string | readonly string[];

type WithText<T> = Omit<T, "command" | "argv" | "stdin"> & {
  /** Standard input of the command. */
  stdin?: string | Uint8Array | undefined;
};

/** Options of `run`. */
export type RunOptions = WithText<RunRequest> & CallOptions;
/** Options of `start`. */
export type StartOptions = WithText<StartRequest> & CallOptions;
/** Options of `stream`. */
export type StreamOptions = Omit<StartOptions, "pty" | "onDisconnect" | "stdinOpen">;
/** Options of `attach`. */
export type AttachOptions = Omit<AttachRequest, "processId"> & CallOptions;

/**
 * Runs commands in sandboxes of their own.
 *
 * `cwd` is relative to the workspace. `env` adds variables. `limits` are at or below those of the
 * operator.
 */
export class CommandOperations {
  /** @internal */
  protected readonly caller: Caller;

  /** @internal */
  protected constructor(caller: Caller) {
    this.caller = caller;
  }

  /**
   * Runs a command to its end. Its result says truthfully how it ended.
   *
   * A command that ran is never an error: see `outcome`, `exitCode`, `ok` and `check()`. After
   * `timeoutSec` (120; 1 to 86,400) it is killed. `stdin` has at most 8 MiB. Each stream returns at
   * most `maxOutputBytes` (100 KiB; up to 10 MiB), its beginning and its end.
   *
   * In a `shell`, a command has the directory, variables, functions and options that the last
   * command with this name left. `restartShell` forgets them before the command.
   *
   * Throws, if nothing was run: `CommandNotFound`, `CommandNotExecutable`, `DirectoryNotFound` (of
   * `cwd`), `PermissionDenied`, `SandboxUnavailable` or `SandboxError`.
   */
  async run(command: Command, options: RunOptions = {}): Promise<RunResponse> {
    const [call, fields] = splitOptions(options);
    return this.caller.call("Run", withCommand(command, fields), call);
  }

  /** Returns the last command of the session. Throws `NoCommandHistory` without one. */
  async lastCommand(options: CallOptions = {}): Promise<LastCommandResponse> {
    return this.caller.call("LastCommand", {}, options);
  }

  /**
   * Runs a command and streams its output while it runs, then `exited`.
   *
   * The options are those of `run`, but without `timeoutSec` there is no timeout, and `exited`
   * repeats at most `maxOutputBytes` (0) of each stream. The stream continues after a lost
   * connection. Leaving the loop kills the command, as the signal does.
   *
   * Throws the errors of `run`.
   */
  stream(
    command: Command,
    options: StreamOptions = {},
  ): AsyncGenerator<ProcessEvent, void, undefined> {
    const [call, fields] = splitOptions(options);
    const start = { ...withCommand(command, fields), stdinOpen: false };
    return processEvents(this.caller, { start }, call);
  }

  /**
   * Starts a command and returns it as a process, with its input open.
   *
   * `pty` gives it a terminal, whose output is all `stdout`. With `onDisconnect: "KEEP"`, it
   * continues when its streams have ended, and `attach` finds it. Without `timeoutSec`, it has no
   * timeout.
   *
   * Throws the errors of `run`, and `ProcessEnded` if a signal ended it before its start.
   */
  async start(command: Command, options: StartOptions = {}): Promise<Process> {
    const [call, fields] = splitOptions(options);
    return Process.open(this.caller, { start: withCommand(command, fields) }, call);
  }

  /**
   * Attaches to a running process, or one that ended within 15 minutes.
   *
   * Its output begins after the given numbers of bytes. `gap` stands for output that the daemon has
   * dropped. Closing the process does not kill it.
   *
   * Throws `ProcessNotFound`.
   */
  async attach(processId: string, options: AttachOptions = {}): Promise<Process> {
    const [call, fields] = splitOptions(options);
    return Process.open(this.caller, { attach: { processId, ...fields } }, call);
  }

  /** Lists the started processes of the workspace, oldest first, with recently ended ones. */
  async listProcesses(options: CallOptions = {}): Promise<readonly ProcessInfo[]> {
    return (await this.caller.call("ListProcesses", {}, options)).processes;
  }
}

/** The fields that the requests of `Run` and `Start` have in common. */
function withCommand<T extends { stdin?: string | Uint8Array | undefined }>(
  command: Command,
  fields: T,
): Omit<T, "stdin"> & RunRequest {
  const { stdin, ...rest } = fields;
  const words = typeof command === "string" ? { command } : { argv: command };
  return { ...rest, ...words, stdin: stdin === undefined ? undefined : toBytes(stdin) };
}
