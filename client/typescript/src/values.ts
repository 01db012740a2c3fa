/** Conversion between messages of the contract and plain values. */

import {
  create,
  type DescEnum,
  type DescField,
  type DescMessage,
  type JsonObject,
  type Message,
  ScalarType,
} from "@bufbuild/protobuf";
import { type Duration, type Timestamp, timestampDate } from "@bufbuild/protobuf/wkt";
import { ConfigurationError } from "./errors.js";
import { CommandResult, ToolResult } from "./results.js";

type Values = Record<string, unknown>;

const PROTOTYPES: Readonly<Record<string, object>> = {
  "jig.v1.RunResponse": CommandResult.prototype,
  "jig.v1.ProcessExited": CommandResult.prototype,
  "jig.v1.InvokeResponse": ToolResult.prototype,
};
const INT32 = [-(2 ** 31), 2 ** 31 - 1] as const;
const UINT32 = [0, 2 ** 32 - 1] as const;
const INT64 = [Number.MIN_SAFE_INTEGER, Number.MAX_SAFE_INTEGER] as const;
const UINT64 = [0, Number.MAX_SAFE_INTEGER] as const;
const INTEGER_RANGES = new Map([
  [ScalarType.INT32, INT32],
  [ScalarType.SINT32, INT32],
  [ScalarType.SFIXED32, INT32],
  [ScalarType.UINT32, UINT32],
  [ScalarType.FIXED32, UINT32],
  [ScalarType.INT64, INT64],
  [ScalarType.SINT64, INT64],
  [ScalarType.SFIXED64, INT64],
  [ScalarType.UINT64, UINT64],
  [ScalarType.FIXED64, UINT64],
]);
const TYPE_NAMES = new Map([
  [ScalarType.BOOL, "boolean"],
  [ScalarType.STRING, "string"],
]);

/** Makes a message. Undefined leaves a field unset, and enum values have no prefix. */
export function encode(schema: DescMessage, values: object): Message {
  const message = create(schema) as Message & Values;
  for (const [name, value] of Object.entries(values)) {
    const field = schema.field[name];
    if (field !== undefined && value !== undefined) {
      message[name] = encodeField(field, value);
    }
  }
  return message;
}

function encodeField(field: DescField, value: unknown): unknown {
  switch (field.fieldKind) {
    case "list":
      if (!isList(value)) {
        throw unexpected(field, value, "a list");
      }
      return Array.from(value, (item) => encodeValue(field, item));
    case "map":
      return Object.fromEntries(
        Object.entries(value as object).map(([key, item]) => [key, encodeValue(field, item)]),
      );
    default:
      return encodeValue(field, value);
  }
}

function encodeValue(field: DescField, value: unknown): unknown {
  if (field.enum) {
    return encodeEnum(field.enum, value);
  }
  if (field.message) {
    if (typeof value !== "object" || value === null) {
      throw unexpected(field, value, "an object");
    }
    const isStruct = field.message.typeName === "google.protobuf.Struct";
    return isStruct ? value : encode(field.message, value);
  }
  // The transports report a value that they cannot encode like a lost connection.
  const expected = expectedScalar(field.scalar as ScalarType, value);
  if (expected !== undefined) {
    throw unexpected(field, value, expected);
  }
  return isInteger64(field) ? BigInt(value as number) : value;
}

/** What a scalar must be, if `value` is something else. */
function expectedScalar(type: ScalarType, value: unknown): string | undefined {
  const range = INTEGER_RANGES.get(type);
  if (range !== undefined) {
    const [least, most] = range;
    const isInRange = Number.isInteger(value) && least <= Number(value) && Number(value) <= most;
    return isInRange ? undefined : `an integer from ${least} to ${most}`;
  }
  if (type === ScalarType.BYTES) {
    return value instanceof Uint8Array ? undefined : "a Uint8Array";
  }
  const name = TYPE_NAMES.get(type) ?? "number";
  return typeof value === name ? undefined : `a ${name}`;
}

function isList(value: unknown): value is Iterable<unknown> {
  return typeof value === "object" && value !== null && Symbol.iterator in value;
}

function unexpected(field: DescField, value: unknown, expected: string): ConfigurationError {
  return new ConfigurationError(`${field.localName} is ${String(value)}; it must be ${expected}`);
}

function encodeEnum(type: DescEnum, value: unknown): number {
  const known = type.values.find(({ localName, number }) => localName === value && number !== 0);
  if (known === undefined) {
    const names = type.values
      .filter(({ number }) => number !== 0)
      .map(({ localName }) => localName);
    throw new ConfigurationError(`${type.name} is ${value}; it must be one of ${names.join(", ")}`);
  }
  return known.number;
}

/**
 * Converts a message to a plain object.
 *
 * Enum values are names without their prefix. An absent message, an unset optional field and an
 * unset enum are undefined. 64-bit integers are numbers.
 */
export function decode(schema: DescMessage, message: Message): object {
  const source = message as Message & Values;
  const result: Values = Object.create(PROTOTYPES[schema.typeName] ?? Object.prototype);
  for (const field of schema.fields) {
    const value = decodeField(field, source[field.localName]);
    if (value !== undefined) {
      result[field.localName] = value;
    }
  }
  return result;
}

function decodeField(field: DescField, value: unknown): unknown {
  if (value === undefined) {
    return undefined;
  }
  switch (field.fieldKind) {
    case "list":
      return (value as unknown[]).map((item) => decodeValue(field, item));
    case "map":
      return Object.fromEntries(
        Object.entries(value as object).map(([name, item]) => [name, decodeValue(field, item)]),
      );
    default:
      return decodeValue(field, value);
  }
}

function decodeValue(field: DescField, value: unknown): unknown {
  if (field.enum) {
    return decodeEnum(field.enum, value as number);
  }
  if (!field.message) {
    return isInteger64(field) ? Number(value) : value;
  }
  switch (field.message.typeName) {
    case "google.protobuf.Timestamp":
      return timestampDate(value as Timestamp);
    case "google.protobuf.Duration":
      return durationSeconds(value as Duration);
    case "google.protobuf.Struct":
      return value as JsonObject;
    default:
      return decode(field.message, value as Message);
  }
}

function decodeEnum(type: DescEnum, number: number): string | undefined {
  if (number === 0) {
    return undefined;
  }
  // A newer daemon can have values that this package does not know.
  return type.value[number]?.localName ?? String(number);
}

/**
 * Converts a message of a stream by its `oneof`, whose case becomes `kind`. Returns undefined for
 * keep-alive messages. Messages without `oneof` are decoded as they are.
 */
export function decodeEvent(schema: DescMessage, message: Message): object | undefined {
  const [oneof] = schema.oneofs;
  if (oneof === undefined) {
    return decode(schema, message);
  }
  const { case: kind, value } = (message as Message & Values)[oneof.localName] as {
    case: string | undefined;
    value: Message;
  };
  const field = oneof.fields.find(({ localName }) => localName === kind);
  if (kind === undefined || kind === "keepAlive" || !field?.message) {
    return undefined;
  }
  return Object.assign(decode(field.message, value), { kind });
}

export function durationSeconds({ seconds, nanos }: Duration): number {
  return Number(seconds) + nanos / 1e9;
}

function isInteger64(field: DescField): boolean {
  const range = INTEGER_RANGES.get(field.scalar as ScalarType);
  return range === INT64 || range === UINT64;
}

const ENCODER = new TextEncoder();

/** The bytes of a text in UTF-8, or the bytes themselves. */
export function toBytes(content: string | Uint8Array): Uint8Array {
  return typeof content === "string" ? ENCODER.encode(content) : content;
}

/** A new id for idempotency, such as a request id. */
export function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Joins chunks of bytes. */
export function concatenate(chunks: readonly Uint8Array[]): Uint8Array {
  const content = new Uint8Array(chunks.reduce((size, chunk) => size + chunk.length, 0));
  let offset = 0;
  for (const chunk of chunks) {
    content.set(chunk, offset);
    offset += chunk.length;
  }
  return content;
}

/** A message that the daemon always sends. */
export function present<T>(value: T | undefined): T {
  if (value === undefined) {
    throw new TypeError("the response of the daemon lacks a message");
  }
  return value;
}
