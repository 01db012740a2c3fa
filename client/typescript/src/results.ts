/** Behaviour of results beside their fields, which the contract has. */

import { CallError, JigError } from "./errors.js";
import type { InvokeStatus, Outcome, ToolError } from "./gen/messages.js";
import { CLASSES } from "./gen/reasons.js";

// Numbers of signals of Linux that end commands.
const SIGNALS: Readonly<Record<string, number>> = {
  SIGHUP: 1,
  SIGINT: 2,
  SIGQUIT: 3,
  SIGILL: 4,
  SIGTRAP: 5,
  SIGABRT: 6,
  SIGBUS: 7,
  SIGFPE: 8,
  SIGKILL: 9,
  SIGUSR1: 10,
  SIGSEGV: 11,
  SIGUSR2: 12,
  SIGPIPE: 13,
  SIGALRM: 14,
  SIGTERM: 15,
  SIGSTKFLT: 16,
  SIGXCPU: 24,
  SIGXFSZ: 25,
  SIGVTALRM: 26,
  SIGPROF: 27,
  SIGIO: 29,
  SIGPWR: 30,
  SIGSYS: 31,
};

/** A command that did not exit with 0. `CommandResult.check` throws it. */
export class CommandFailed extends JigError {
  override readonly name = "CommandFailed";
  /** How the command ended. */
  readonly result: CommandResult;

  constructor(result: CommandResult) {
    const parts = [result.outcome, result.signal, result.limit].filter(Boolean);
    const ending = result.outcome === "EXITED" ? `exit code ${result.exitCode}` : parts.join(" ");
    const output = (result.stderr || result.stdout).trim();
    super(`the command ended with ${ending}${output && `: ${output}`}`);
    this.result = result;
  }
}

/** A command that has ended. */
export abstract class CommandResult {
  declare readonly outcome?: Outcome;
  declare readonly exitCode?: number;
  declare readonly signal: string;
  declare readonly limit: string;
  declare readonly stdout: string;
  declare readonly stderr: string;

  /** Whether the command exited with 0. */
  get ok(): boolean {
    return this.outcome === "EXITED" && this.exitCode === 0;
  }

  /**
   * Exit code as a shell and `jig run` report it.
   *
   * 128 + n after signal n, 124 after a timeout, 130 after a cancellation, and 125 if the end of
   * the command is unknown.
   */
  get shellExitCode(): number {
    if (this.exitCode !== undefined) {
      return this.exitCode;
    }
    if (this.outcome === "TIMED_OUT" || this.outcome === "CANCELLED") {
      return this.outcome === "TIMED_OUT" ? 124 : 130;
    }
    return this.signal ? 128 + (SIGNALS[this.signal] ?? (Number(this.signal) || 0)) : 125;
  }

  /** Throws `CommandFailed` unless the command exited with 0. */
  check(): void {
    if (!this.ok) {
      throw new CommandFailed(this);
    }
  }
}

/** Result of a tool that was called by its name. */
export abstract class ToolResult {
  declare readonly status?: InvokeStatus;
  declare readonly error?: ToolError;
  declare readonly text: string;

  /** Whether the tool succeeded. A command that ran is a success, whatever its exit code. */
  get ok(): boolean {
    return this.status === "SUCCESS";
  }

  /** Throws the `CallError` of the reason unless the tool succeeded. */
  check(): void {
    if (this.ok) {
      return;
    }
    const reason = this.error?.errorType.toUpperCase() ?? "";
    const values = Object.entries(this.error?.details ?? {});
    const metadata = Object.fromEntries(values.map(([name, value]) => [name, String(value)]));
    const kind = Object.hasOwn(CLASSES, reason) ? CLASSES[reason] : undefined;
    throw new (kind ?? CallError)(this.error?.message ?? this.text, { reason, metadata });
  }
}
