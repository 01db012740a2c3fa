/** Conversion of the errors of transports. */

import { Code, ConnectError } from "@connectrpc/connect";
import { CallError, type CallErrorDetails, type FieldViolation, Unavailable } from "./errors.js";
import {
  BadRequestSchema,
  ErrorInfoSchema,
  RetryInfoSchema,
} from "./gen/google/rpc/error_details_pb.js";
import { CLASSES } from "./gen/reasons.js";
import { durationSeconds } from "./values.js";

export const CALL_ID_HEADER = "jig-call-id";

// Codes that transports give lost connections. Errors of the daemon have a reason beside them.
const CONNECTION_CODES = new Set([
  Code.Aborted,
  Code.Canceled,
  Code.Internal,
  Code.InvalidArgument,
  Code.Unavailable,
  Code.Unknown,
]);

/** Converts an error of a transport. */
export function toCallError(error: unknown): CallError {
  const failure = ConnectError.from(error);
  const [info] = failure.findDetails(ErrorInfoSchema);
  const [retry] = failure.findDetails(RetryInfoSchema);
  const violations: FieldViolation[] = failure
    .findDetails(BadRequestSchema)
    .flatMap(({ fieldViolations }) => fieldViolations)
    .map(({ field, description }) => ({ field, description }));

  const isDeadline = failure.code === Code.DeadlineExceeded;
  const reason = info?.reason ?? (isDeadline ? "TIMEOUT" : "");
  const isLost = info === undefined && CONNECTION_CODES.has(failure.code);
  const details: CallErrorDetails = {
    code: isLost ? "UNAVAILABLE" : codeName(failure.code),
    reason,
    metadata: info?.metadata ?? {},
    violations,
    retryDelaySec: retry?.retryDelay && durationSeconds(retry.retryDelay),
    callId: failure.metadata.get(CALL_ID_HEADER) ?? "",
    cause: error,
  };
  if (isLost) {
    return new Unavailable(failure.rawMessage, details);
  }
  return callErrorOf(reason, failure.rawMessage, details);
}

/** Makes an error of the class of its reason. */
export function callErrorOf(reason: string, message: string, details: CallErrorDetails): CallError {
  const kind = Object.hasOwn(CLASSES, reason) ? CLASSES[reason] : undefined;
  return new (kind ?? CallError)(message, { ...details, reason });
}

/** The gRPC name of a code, such as `NOT_FOUND`. */
function codeName(code: Code): string {
  if (code === Code.Canceled) {
    return "CANCELLED";
  }
  return Code[code].replace(/(?!^)(?=[A-Z])/g, "_").toUpperCase();
}
