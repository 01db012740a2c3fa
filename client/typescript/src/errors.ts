/** Errors of calls. Each reason of the contract has a class in `reasons`. */

/** Base class of all errors of this package. */
export class JigError extends Error {
  override readonly name: string = "JigError";
}

/** An address, option or environment variable has an invalid value. */
export class ConfigurationError extends JigError {
  override readonly name = "ConfigurationError";
}

/** The embedded daemon did not start. The message has the end of its log. */
export class DaemonStartError extends JigError {
  override readonly name = "DaemonStartError";
}

/** Tool calls of several vendors in one reply. */
export class UnknownReply extends JigError {
  override readonly name = "UnknownReply";
}

/** A field of a request that violates its rules. */
export interface FieldViolation {
  /** Path of the field in the request, such as `edits[0].old_string`. */
  readonly field: string;
  /** The rule that the value violates. */
  readonly description: string;
}

/** What a call reports about its failure. */
export interface CallErrorDetails {
  code?: string;
  reason?: string;
  metadata?: Readonly<Record<string, string>>;
  violations?: readonly FieldViolation[];
  retryDelaySec?: number | undefined;
  callId?: string;
  cause?: unknown;
}

/**
 * A call that failed. Subclasses have one reason each, such as `FileNotFound`.
 *
 * A reason that this version of the package does not know has this class itself.
 */
export class CallError extends JigError {
  override readonly name: string = "CallError";
  /** Reason in the contract, such as `FILE_NOT_FOUND`. Empty if the daemon gave none. */
  readonly reason: string;
  /** gRPC code, such as `NOT_FOUND`. */
  readonly code: string;
  /** Values in the message, by name. */
  readonly metadata: Readonly<Record<string, string>>;
  /** Invalid fields of the request, of `InvalidParams`. */
  readonly violations: readonly FieldViolation[];
  /** Seconds after which a retry can succeed. Undefined if the daemon suggests no retry. */
  readonly retryDelaySec: number | undefined;
  /** Id of the call in the log of the daemon. Empty if the daemon was not reached. */
  readonly callId: string;

  constructor(message: string, details: CallErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.reason = details.reason ?? "";
    this.code = details.code ?? "";
    this.metadata = details.metadata ?? {};
    this.violations = details.violations ?? [];
    this.retryDelaySec = details.retryDelaySec;
    this.callId = details.callId ?? "";
  }
}

/** The daemon cannot be reached, or the connection was lost. Code: `UNAVAILABLE`. */
export class Unavailable extends CallError {
  override readonly name = "Unavailable";
}
