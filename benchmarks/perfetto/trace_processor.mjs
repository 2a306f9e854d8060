// Loads a trace in Perfetto's trace processor, and prints the rows of queries as JSON.
//
// Run: node trace_processor.mjs FOLDER TRACE SQL...
//
// FOLDER has the engine of Perfetto's page: a bundle that is written for a worker, and its
// WebAssembly. A worker is given a port for the messages of the RPC, and both sides of that port are
// here, so that each request has its replies when the call returns.
//
// Source: protos/perfetto/trace_processor/trace_processor.proto in Perfetto's sources.

import { closeSync, openSync, readFileSync, readSync } from "node:fs";
import { join } from "node:path";
import { argv, exit, stdout } from "node:process";

const CHUNK_BYTES = 8 << 20;
const APPEND_TRACE_DATA = 1;
const FINALIZE_TRACE_DATA = 2;
const QUERY_STREAMING = 3;
const FIELD = {
  message: 1, fatalError: 5, request: 2, invalidRequest: 4, appendData: 101, query: 103,
  appendResult: 201, queryResult: 203, finalizeResult: 209,
};
const [NULL, INTEGER, FLOAT, STRING] = [1, 2, 3, 4];

const [folder, trace, ...queries] = argv.slice(2);

// ---------------------------------------------------------------------------------- messages

function varint(value) {
  const bytes = [];
  for (; value > 127; value = Math.floor(value / 128)) bytes.push((value % 128) | 128);
  return [...bytes, value];
}

const number = (field, value) => Uint8Array.from([...varint(field * 8), ...varint(value)]);

function nested(field, ...parts) {
  const length = parts.reduce((sum, part) => sum + part.length, 0);
  const head = [...varint(field * 8 + 2), ...varint(length)];
  const bytes = new Uint8Array(head.length + length);
  bytes.set(head);
  let at = head.length;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}

class Bytes {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  get more() {
    return this.at < this.bytes.length;
  }

  varint() {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = this.bytes[this.at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
    }
  }

  take(length) {
    this.at += length;
    return this.bytes.subarray(this.at - length, this.at);
  }

  *fields() {
    while (this.more) {
      const tag = Number(this.varint());
      const read = {
        0: () => this.varint(),
        1: () => this.take(8),
        2: () => this.take(Number(this.varint())),
        5: () => this.take(4),
      }[tag & 7];
      if (read === undefined) throw new Error(`a reply has a field of type ${tag & 7}`);
      yield [tag >> 3, read()];
    }
  }
}

const text = (bytes) => new TextDecoder().decode(bytes);

// ------------------------------------------------------------------------------------- engine

// What the bundle expects of a browser's worker, given to it as arguments. It reads its WebAssembly
// with a request that blocks.
class FileRequest {
  open(_, url) {
    this.path = join(folder, url);
  }

  send() {
    this.response = readFileSync(this.path);
  }
}

async function engine() {
  const worker = { location: { href: "https://localhost/" } };
  const scope = {
    self: worker,
    WorkerGlobalScope: Object,
    XMLHttpRequest: FileRequest,
    process: undefined,
    console: { log() {}, warn() {}, error: console.error },
  };
  const bundle = readFileSync(join(folder, "engine_bundle.js"), "utf8");
  new Function(...Object.keys(scope), bundle)(...Object.values(scope));
  // The last thing that it does to be ready waits for a promise.
  await new Promise(setImmediate);
  return worker;
}

const pieces = [];
const port = { postMessage: (piece) => pieces.push(piece) };

// The replies to a request, each with its fields. They come in pieces that end anywhere.
function replies(kind, ...args) {
  const request = nested(FIELD.message, number(FIELD.request, kind), ...args);
  port.onmessage({ data: request });
  const stream = new Bytes(Buffer.concat(pieces.splice(0)));
  return [...stream.fields()].map(([, message]) => {
    const reply = new Map(new Bytes(message).fields());
    for (const field of [FIELD.fatalError, FIELD.invalidRequest])
      if (reply.has(field)) throw new Error(`the engine: ${text(reply.get(field))}`);
    return reply;
  });
}

function load() {
  const file = openSync(trace);
  const chunk = new Uint8Array(CHUNK_BYTES);
  for (let n; (n = readSync(file, chunk)) > 0; )
    for (const reply of replies(APPEND_TRACE_DATA, nested(FIELD.appendData, chunk.subarray(0, n))))
      refuse(reply.get(FIELD.appendResult), 2);
  closeSync(file);
  for (const reply of replies(FINALIZE_TRACE_DATA)) refuse(reply.get(FIELD.finalizeResult), 2);
}

function refuse(result, field) {
  for (const [number, value] of result === undefined ? [] : new Bytes(result).fields())
    if (number === field && value.length) throw new Error(text(value));
}

function* cells(batch) {
  const found = { 1: [], 2: [], 3: [], 5: [] };
  for (const [field, value] of new Bytes(batch).fields()) found[field]?.push(value);
  const [kinds, integers] = [1, 2].map((field) => {
    const values = [];
    for (const packed of found[field])
      for (const bytes = new Bytes(packed); bytes.more; ) values.push(bytes.varint());
    return values.values();
  });
  const floats = found[3].flatMap((packed) => [...new Float64Array(Uint8Array.from(packed).buffer)]);
  const strings = found[5].flatMap((packed) => text(packed).split("\0"));
  const [someFloats, someStrings] = [floats.values(), strings.values()];
  for (const kind of kinds)
    if (Number(kind) === NULL) yield "null";
    // Integers are of 64 bits, which JSON has and JavaScript's numbers have not.
    else if (Number(kind) === INTEGER) yield String(BigInt.asIntN(64, integers.next().value));
    else if (Number(kind) === FLOAT) yield JSON.stringify(someFloats.next().value);
    else if (Number(kind) === STRING) yield JSON.stringify(someStrings.next().value);
    else throw new Error(`a cell of type ${kind}`);
}

// The rows of a query, as JSON.
function rows(sql) {
  const names = [];
  const values = [];
  for (const reply of replies(
    QUERY_STREAMING,
    nested(FIELD.query, nested(1, new TextEncoder().encode(sql))),
  )) {
    const result = reply.get(FIELD.queryResult);
    refuse(result, 2);
    for (const [field, value] of new Bytes(result).fields())
      if (field === 1) names.push(text(value));
      else if (field === 3) values.push(...cells(value));
  }
  const keys = names.map((name) => JSON.stringify(name));
  const found = [];
  for (let at = 0; at < values.length; at += keys.length)
    found.push(`{${keys.map((key, i) => `${key}:${values[at + i]}`).join(",")}}`);
  return `[${found.join(",")}]`;
}

try {
  (await engine()).onmessage({ data: port });
  load();
  stdout.write(`[${queries.map(rows).join(",\n")}]\n`);
} catch (error) {
  console.error(error.message);
  exit(1);
}
