/** RPCs of the contract by name. */

import type { DescMethod } from "@bufbuild/protobuf";
import { MethodOptions_IdempotencyLevel } from "@bufbuild/protobuf/wkt";
import { FILES } from "./gen/files.js";
import type { Methods } from "./gen/messages.js";

export type MethodName = keyof Methods;
export type RequestOf<M extends MethodName> = Methods[M]["request"];
export type ResponseOf<M extends MethodName> = Methods[M]["response"];

// Names of RPCs are unique in the contract.
const METHODS = new Map(
  FILES.flatMap((file) => file.services)
    .flatMap((service) => service.methods)
    .map((method) => [method.name, method]),
);

export function methodOf(name: MethodName): DescMethod {
  const method = METHODS.get(name);
  if (method === undefined) {
    throw new TypeError(`the contract has no RPC ${name}`);
  }
  return method;
}

/** Whether a repeated call has no effect, so that it needs no request id. */
export function onlyReads(method: DescMethod): boolean {
  return method.idempotency === MethodOptions_IdempotencyLevel.NO_SIDE_EFFECTS;
}
