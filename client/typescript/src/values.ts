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
const INTEGERS_OF_64_BITS = new Set([
  ScalarType.INT64,
  ScalarType.UINT64,
  ScalarType.SINT64,
  ScalarType.FIXED64,
  ScalarType.SFIXED64,
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
      return Array.from(value as Iterable<unknown>, (item) => encodeValue(field, item));
    case "map":
      return { ...(value as object) };
    default:
      return encodeValue(field, value);
  }
}

function encodeValue(field: DescField, value: unknown): unknown {
  if (field.enum) {
    return encodeEnum(field.enum, value);
  }
  if (field.message) {
    const isStruct = field.message.typeName === "google.protobuf.Struct";
    return isStruct ? value : encode(field.message, value as object);
  }
  return isInteger64(field) ? BigInt(value as number) : value;
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
  return field.scalar !== undefined && INTEGERS_OF_64_BITS.has(field.scalar);
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
