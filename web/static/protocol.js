/**
 * The messages of /api/chat: one tag byte, then the payload, little endian. Pure.
 *
 * docs/protocol.md is the norm; tests/protocol/vectors pins the bytes for this reader and for the server's.
 */

export const TAG = Object.freeze({
  HANDSHAKE: 0x00,
  AUDIO: 0x01,
  TEXT: 0x02,
  CONTROL: 0x03,
  METADATA: 0x04,
  ERROR: 0x05,
  PING: 0x06,
  COLOURED_TEXT: 0x07,
  CODES: 0x09,
  EVENT: 0x10,
  STAMPED_AUDIO: 0x11,
});

export const CONTROL_ACTIONS = Object.freeze(["start", "end_turn", "pause", "restart"]);

/** Why a server closes a socket, and the `code` of an answer in its place. */
export const CLOSE = Object.freeze({
  ...{ DONE: 1000, LEAVING: 1001, BAD_DATA: 1007, NOT_ALLOWED: 1008, FULL: 1013 },
  /** Ours: this connection is given up, and its call may be gone on with. */
  COMING_BACK: 4000,
});

/** More than any event needs, and the server's own limit. */
export const MAX_JSON_BYTES = 65_536;

/**
 * @typedef {{ kind: "handshake", protocol_version: number, model_version: number }} Handshake
 * @typedef {{ kind: "audio", data: Uint8Array }} Audio
 * @typedef {{ kind: "text", text: string }} Text
 * @typedef {{ kind: "control", action: string }} Control
 * @typedef {{ kind: "metadata", values: Record<string, any> }} Metadata
 * @typedef {{ kind: "error", message: string }} ErrorMessage
 * @typedef {{ kind: "ping" }} Ping
 * @typedef {{ kind: "coloured_text", colour: number, text: string }} ColouredText
 * @typedef {{ kind: "codes", codes: number[] }} Codes
 * @typedef {{ kind: "event", type: string, fields: Record<string, any> }} Event
 * @typedef {{ kind: "stamped_audio", frame: number, step_ms: number, wait_ms: number, data: Uint8Array }}
 *   StampedAudio
 * @typedef {{ kind: "unknown", tag: number, data: Uint8Array }} Unknown
 * @typedef {Handshake | Audio | Text | Control | Metadata | ErrorMessage | Ping | ColouredText | Codes | Event
 *   | StampedAudio | Unknown} Message
 */

/** The bytes cannot be a message, or the message cannot be bytes. */
export class ProtocolError extends Error {}

/**
 * Read one message. An unknown tag is a message of kind "unknown", not an error.
 *
 * @param {Uint8Array} bytes
 * @returns {Message}
 */
export function decode(bytes) {
  if (bytes.length === 0) throw new ProtocolError("a message of 0 bytes: at least the tag is needed");
  const data = bytes.subarray(1);
  switch (bytes[0]) {
    case TAG.HANDSHAKE:
      return decodeHandshake(data);
    case TAG.AUDIO:
      return { kind: "audio", data };
    case TAG.TEXT:
      return { kind: "text", text: decodeText(data, "text") };
    case TAG.CONTROL:
      return decodeControl(data);
    case TAG.METADATA:
      return { kind: "metadata", values: decodeObject(data, "metadata") };
    case TAG.ERROR:
      return { kind: "error", message: decodeText(data, "an error") };
    case TAG.PING:
      if (data.length) throw new ProtocolError(`a ping with ${data.length} bytes after its tag, it has none`);
      return { kind: "ping" };
    case TAG.COLOURED_TEXT:
      if (!data.length) throw new ProtocolError("coloured text with 0 bytes after its tag, the colour is missing");
      return { kind: "coloured_text", colour: data[0], text: decodeText(data.subarray(1), "coloured text") };
    case TAG.CODES:
      return decodeCodes(data);
    case TAG.EVENT:
      return decodeEvent(data);
    case TAG.STAMPED_AUDIO:
      return decodeStampedAudio(data);
    default:
      return { kind: "unknown", tag: bytes[0], data };
  }
}

/**
 * Write one message.
 *
 * @param {Message} message
 * @returns {Uint8Array}
 */
export function encode(message) {
  switch (message.kind) {
    case "handshake":
      return tagged(TAG.HANDSHAKE, u32s([message.protocol_version, message.model_version]));
    case "audio":
      return tagged(TAG.AUDIO, message.data);
    case "text":
      return tagged(TAG.TEXT, encodeText(message.text));
    case "control":
      return tagged(TAG.CONTROL, Uint8Array.of(CONTROL_ACTIONS.indexOf(message.action)));
    case "metadata":
      return tagged(TAG.METADATA, encodeText(JSON.stringify(message.values)));
    case "error":
      return tagged(TAG.ERROR, encodeText(message.message));
    case "ping":
      return Uint8Array.of(TAG.PING);
    case "coloured_text":
      return tagged(TAG.COLOURED_TEXT, Uint8Array.of(message.colour), encodeText(message.text));
    case "codes":
      return tagged(TAG.CODES, u32s(message.codes));
    case "event":
      return tagged(TAG.EVENT, encodeText(JSON.stringify({ type: message.type, ...message.fields })));
    case "stamped_audio":
      return encodeStampedAudio(message);
    case "unknown":
      return tagged(message.tag, message.data);
  }
}

/**
 * @param {Uint8Array} data
 * @returns {Handshake}
 */
function decodeHandshake(data) {
  const view = viewOf(data);
  const handshake = { kind: /** @type {const} */ ("handshake"), protocol_version: 0, model_version: 0 };
  switch (data.length) {
    case 0:
      return handshake;
    case 2:
      return { ...handshake, protocol_version: view.getUint8(0), model_version: view.getUint8(1) };
    case 8:
      return { ...handshake, protocol_version: view.getUint32(0, true), model_version: view.getUint32(4, true) };
  }
  throw new ProtocolError(`a handshake with ${data.length} bytes after its tag, 0, 2 or 8 are known`);
}

/**
 * @param {Uint8Array} data
 * @returns {Control}
 */
function decodeControl(data) {
  const action = data.length === 1 ? CONTROL_ACTIONS[data[0]] : undefined;
  if (action === undefined) throw new ProtocolError("control needs one byte of 00 to 03");
  return { kind: "control", action };
}

/**
 * @param {Uint8Array} data
 * @returns {Codes}
 */
function decodeCodes(data) {
  if (data.length % 4) throw new ProtocolError(`codes in ${data.length} bytes, each one takes 4`);
  const view = viewOf(data);
  const codes = Array.from({ length: data.length / 4 }, (_, index) => view.getUint32(4 * index, true));
  return { kind: "codes", codes };
}

/**
 * @param {Uint8Array} data
 * @returns {Event}
 */
function decodeEvent(data) {
  const { type, ...fields } = decodeObject(data, "an event");
  if (typeof type !== "string" || !type) {
    throw new ProtocolError(`an event of type ${JSON.stringify(type)}, a word is needed`);
  }
  return { kind: "event", type, fields };
}

/**
 * @param {Uint8Array} data
 * @returns {StampedAudio}
 */
function decodeStampedAudio(data) {
  if (data.length < 8) {
    throw new ProtocolError(`stamped audio with ${data.length} bytes after its tag, the stamp takes 8`);
  }
  const view = viewOf(data);
  return {
    kind: "stamped_audio",
    frame: view.getUint32(0, true),
    step_ms: view.getUint16(4, true) / 10,
    wait_ms: view.getUint16(6, true) / 10,
    data: data.subarray(8),
  };
}

/**
 * @param {StampedAudio} message
 * @returns {Uint8Array}
 */
function encodeStampedAudio(message) {
  const stamp = new DataView(new ArrayBuffer(8));
  stamp.setUint32(0, message.frame, true);
  stamp.setUint16(4, tenths(message.step_ms), true);
  stamp.setUint16(6, tenths(message.wait_ms), true);
  return tagged(TAG.STAMPED_AUDIO, new Uint8Array(stamp.buffer), message.data);
}

/** @param {number} milliseconds */
function tenths(milliseconds) {
  return Math.round(Math.min(milliseconds * 10, 0xffff));
}

/**
 * @param {Uint8Array} data
 * @param {string} what
 */
function decodeText(data, what) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data);
  } catch {
    throw new ProtocolError(`${what} is not UTF-8`);
  }
}

/** @param {string} text */
function encodeText(text) {
  return new TextEncoder().encode(text);
}

/**
 * One JSON object, as strictly as the server reads it.
 *
 * @param {Uint8Array} data
 * @param {string} what
 * @returns {Record<string, any>}
 */
function decodeObject(data, what) {
  if (data.length > MAX_JSON_BYTES) {
    throw new ProtocolError(`${what} has ${data.length} bytes of JSON, the limit is ${MAX_JSON_BYTES}`);
  }
  const text = decodeText(data, what);
  let value;
  try {
    value = JSON.parse(text, (_, part) => {
      // Numbers beyond a double become infinite, and an escape may spell half of a surrogate pair.
      if (typeof part === "number" && !Number.isFinite(part)) throw new SyntaxError("a number is not finite");
      if (typeof part === "string" && hasLoneSurrogate(part)) throw new SyntaxError("half of a surrogate pair");
      return part;
    });
  } catch (error) {
    throw new ProtocolError(`${what} is not JSON: ${error instanceof Error ? error.message : error}`);
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new ProtocolError(`${what} is JSON of another kind, an object is needed`);
  }
  return value;
}

/** @param {string} text */
function hasLoneSurrogate(text) {
  return /[\uD800-\uDBFF](?![\uDC00-\uDFFF])|(?<![\uD800-\uDBFF])[\uDC00-\uDFFF]/.test(text);
}

/** @param {Uint8Array} data */
function viewOf(data) {
  return new DataView(data.buffer, data.byteOffset, data.byteLength);
}

/**
 * @param {number} tag
 * @param {...Uint8Array} parts
 */
function tagged(tag, ...parts) {
  const bytes = new Uint8Array(parts.reduce((size, part) => size + part.length, 1));
  bytes[0] = tag;
  let offset = 1;
  for (const part of parts) {
    bytes.set(part, offset);
    offset += part.length;
  }
  return bytes;
}

/** @param {number[]} values */
function u32s(values) {
  const view = new DataView(new ArrayBuffer(4 * values.length));
  values.forEach((value, index) => view.setUint32(4 * index, value, true));
  return new Uint8Array(view.buffer);
}
