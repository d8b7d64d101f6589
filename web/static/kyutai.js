/**
 * The messages of /api/asr-streaming and /api/tts_streaming: msgpack maps with the key `type`. Pure.
 *
 * docs/protocol.md is the norm; tests/protocol/vectors pins the bytes for this reader and for the server's.
 */

/** @typedef {null | boolean | number | string | Uint8Array | unknown[] | { [key: string]: unknown }} Value */
/** @typedef {{ type: string, [key: string]: any }} Packed */

/** Deeper than any message of ours. */
const MAX_DEPTH = 8;

/** The bytes are no message. */
export class PackedError extends Error {}

/**
 * @param {Uint8Array} bytes
 * @returns {Packed}
 */
export function unpack(bytes) {
  const reader = new Reader(bytes);
  const value = reader.value(0);
  if (typeof value !== "object" || value === null || Array.isArray(value) || value instanceof Uint8Array) {
    throw new PackedError("a message that is no map");
  }
  if (typeof value["type"] !== "string") throw new PackedError("a message without a type");
  return /** @type {Packed} */ (value);
}

/**
 * A message for the server: its type, strings, whole numbers, and samples as an array of float32.
 *
 * @param {Record<string, string | number | Float32Array>} message
 */
export function pack(message) {
  const parts = [new Uint8Array([0x80 | Object.keys(message).length])];
  for (const [key, value] of Object.entries(message)) {
    parts.push(packText(key));
    if (typeof value === "string") parts.push(packText(value));
    else if (typeof value === "number") parts.push(packWhole(value));
    else parts.push(packSamples(value));
  }
  const out = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}

/** @param {string} text */
function packText(text) {
  const bytes = new TextEncoder().encode(text);
  const size = bytes.length;
  const head = size < 32 ? [0xa0 | size] : size < 256 ? [0xd9, size] : size < 65_536 ? [0xda, size >> 8, size & 255] : null;
  if (!head) throw new PackedError(`a text of ${size} bytes, at most 65535 go into a message`);
  const out = new Uint8Array(head.length + size);
  out.set(head);
  out.set(bytes, head.length);
  return out;
}

/** @param {number} value 0 to 4294967295 */
function packWhole(value) {
  if (value < 128) return new Uint8Array([value]);
  const view = new DataView(new ArrayBuffer(5));
  view.setUint8(0, 0xce);
  view.setUint32(1, value);
  return new Uint8Array(view.buffer);
}

/** @param {Float32Array} samples */
function packSamples(samples) {
  const view = new DataView(new ArrayBuffer(5 + 5 * samples.length));
  view.setUint8(0, 0xdd);
  view.setUint32(1, samples.length);
  samples.forEach((sample, index) => {
    view.setUint8(5 + 5 * index, 0xca);
    view.setFloat32(6 + 5 * index, sample);
  });
  return new Uint8Array(view.buffer);
}

class Reader {
  /** @param {Uint8Array} bytes */
  constructor(bytes) {
    this._bytes = bytes;
    this._view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this._at = 0;
  }

  /**
   * @param {number} depth
   * @returns {Value}
   */
  value(depth) {
    if (depth > MAX_DEPTH) throw new PackedError("a message that is nested too deeply");
    const tag = this._whole(1);
    if (tag < 0x80) return tag;
    if (tag < 0x90) return this._map(tag & 15, depth);
    if (tag < 0xa0) return this._array(tag & 15, depth);
    if (tag < 0xc0) return this._text(tag & 31);
    if (tag >= 0xe0) return tag - 256;
    switch (tag) {
      case 0xc0:
        return null;
      case 0xc2:
        return false;
      case 0xc3:
        return true;
      case 0xc4:
      case 0xc5:
      case 0xc6:
        return this._take(this._whole(1 << (tag - 0xc4))).slice();
      case 0xca:
        return this._number(4, (at) => this._view.getFloat32(at));
      case 0xcb:
        return this._number(8, (at) => this._view.getFloat64(at));
      case 0xcc:
      case 0xcd:
      case 0xce:
        return this._whole(1 << (tag - 0xcc));
      case 0xcf:
        return this._number(8, (at) => Number(this._view.getBigUint64(at)));
      case 0xd0:
        return this._number(1, (at) => this._view.getInt8(at));
      case 0xd1:
        return this._number(2, (at) => this._view.getInt16(at));
      case 0xd2:
        return this._number(4, (at) => this._view.getInt32(at));
      case 0xd3:
        return this._number(8, (at) => Number(this._view.getBigInt64(at)));
      case 0xd9:
      case 0xda:
      case 0xdb:
        return this._text(this._whole(1 << (tag - 0xd9)));
      case 0xdc:
      case 0xdd:
        return this._array(this._whole(2 << (tag - 0xdc)), depth);
      case 0xde:
      case 0xdf:
        return this._map(this._whole(2 << (tag - 0xde)), depth);
      default:
        throw new PackedError(`a byte that begins nothing: ${tag}`);
    }
  }

  /** @param {number} size @param {(at: number) => number} read */
  _number(size, read) {
    return read(this._skip(size));
  }

  /** @param {number} size 1, 2 or 4 */
  _whole(size) {
    const at = this._skip(size);
    return size === 1 ? this._view.getUint8(at) : size === 2 ? this._view.getUint16(at) : this._view.getUint32(at);
  }

  /** @param {number} size */
  _skip(size) {
    const at = this._at;
    if (at + size > this._bytes.length) throw new PackedError("a message that is cut off");
    this._at += size;
    return at;
  }

  /** @param {number} size */
  _take(size) {
    const at = this._skip(size);
    return this._bytes.subarray(at, at + size);
  }

  /** @param {number} size */
  _text(size) {
    return new TextDecoder().decode(this._take(size));
  }

  /** @param {number} size @param {number} depth */
  _array(size, depth) {
    if (size > this._bytes.length) throw new PackedError("an array longer than its message");
    return Array.from({ length: size }, () => this.value(depth + 1));
  }

  /** @param {number} size @param {number} depth */
  _map(size, depth) {
    if (size > this._bytes.length) throw new PackedError("a map longer than its message");
    /** @type {{ [key: string]: Value }} */
    const found = Object.create(null);
    for (let index = 0; index < size; index++) {
      const key = this.value(depth + 1);
      if (typeof key !== "string") throw new PackedError("a key that is no text");
      found[key] = this.value(depth + 1);
    }
    return found;
  }
}
