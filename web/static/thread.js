/**
 * What is kept of a call so that another connection can go on with it: its token, and what has come. Pure.
 *
 * docs/protocol.md is the norm: numbered messages (tag 12), acknowledgements (12) and the claim (13).
 */

import { ProtocolError, TAG } from "./protocol.js";

const NUMBERED = 0x12;
const CLAIM = 0x13;
const ACK_EVERY_MS = 1000;
const TOKEN_BYTES = 16;
const VERSION = 1;
/** In place of a number: nothing yet. */
const NONE = 0xffffffff;

/** One call's, over as many connections as it takes. */
export class Thread {
  constructor() {
    /** @type {Uint8Array | null} */
    this._token = null;
    this._seq = -1;
    this._frame = -1;
    /** @type {number | null} */
    this._ackedMs = null;
    this._lostMs = 0;
    this.windowMs = 0;
    /** The first frame of our speech that the server has not got. */
    this.inputFrame = 0;
    this._worker = "";
    /** Whether the call went to another worker, and was not asked for there yet. */
    this.isMoved = false;
  }

  /** Whether another connection may go on with the call. */
  get isResumable() {
    return this._token !== null;
  }

  /**
   * Whether there is still time to.
   *
   * @param {number} nowMs
   */
  isInTime(nowMs) {
    return this._token !== null && nowMs - this._lostMs < this.windowMs;
  }

  /** The call cannot be gone on with. */
  end() {
    this._token = null;
  }

  /** @param {number} nowMs the connection is gone */
  lost(nowMs) {
    this._lostMs = nowMs;
  }

  /** @param {Record<string, any> | undefined} offer what `ready` says of it */
  offered(offer) {
    if (!offer) return;
    this._token = tokenOf(String(offer["token"]));
    this.windowMs = 1000 * Number(offer["window_s"]);
    this._worker = String(offer["worker"] ?? "");
  }

  /** @param {Record<string, any>} fields of `resumed` */
  resumed(fields) {
    this._token = tokenOf(String(fields["token"]));
    this.inputFrame = Number(fields["input_frame"]);
    this._worker = String(fields["worker"] ?? "");
    this._ackedMs = null;
  }

  /** @param {Record<string, any>} fields of `moved` */
  moved(fields) {
    this._worker = String(fields["worker"] ?? "");
    this.isMoved = true;
  }

  /**
   * The address that resumes the call.
   *
   * @param {string} address the one that began it
   */
  resumingUrl(address) {
    const url = address.replace("resume=1", "resume=again");
    return this._worker ? `${url}&worker=${encodeURIComponent(this._worker)}` : url;
  }

  /**
   * A message of the server without its number; null for one that came before.
   *
   * @param {Uint8Array} bytes
   */
  heed(bytes) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    if (bytes[0] === TAG.STAMPED_AUDIO && bytes.length >= 5) {
      this._frame = Math.max(this._frame, view.getUint32(1, true));
    }
    if (bytes[0] !== NUMBERED) return bytes;
    if (bytes.length < 6) throw new ProtocolError("a numbered message with no message in it");
    const seq = view.getUint32(1, true);
    if (seq <= this._seq) return null;
    if (seq > this._seq + 1) throw new ProtocolError(`message ${seq} follows message ${this._seq}`);
    this._seq = seq;
    return bytes.subarray(5);
  }

  /**
   * What is to be acknowledged now, if it is time; at once on a connection that goes on with a call.
   *
   * @param {number} nowMs
   */
  ack(nowMs) {
    if (this._token === null || (this._ackedMs !== null && nowMs < this._ackedMs + ACK_EVERY_MS)) return null;
    this._ackedMs = nowMs;
    const view = new DataView(new ArrayBuffer(9));
    view.setUint8(0, NUMBERED);
    this._putCounts(view, 1);
    return new Uint8Array(view.buffer);
  }

  /**
   * The first message of another connection.
   *
   * @param {number} inputFrame the first frame of our speech that can still be sent
   */
  claim(inputFrame) {
    const bytes = new Uint8Array(2 + TOKEN_BYTES + 12);
    const view = new DataView(bytes.buffer);
    view.setUint8(0, CLAIM);
    view.setUint8(1, VERSION);
    bytes.set(this._token ?? new Uint8Array(TOKEN_BYTES), 2);
    this._putCounts(view, 2 + TOKEN_BYTES);
    view.setUint32(2 + TOKEN_BYTES + 8, inputFrame, true);
    return bytes;
  }

  /**
   * @param {DataView} view
   * @param {number} at
   */
  _putCounts(view, at) {
    view.setUint32(at, this._seq < 0 ? NONE : this._seq, true);
    view.setUint32(at + 4, this._frame < 0 ? NONE : this._frame, true);
  }
}

/** @param {string} text base64url, without padding */
function tokenOf(text) {
  let token;
  try {
    token = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));
  } catch {
    throw new ProtocolError("a token that is no base64url");
  }
  if (token.length !== TOKEN_BYTES) throw new ProtocolError(`a token of ${token.length} bytes, it has ${TOKEN_BYTES}`);
  return token;
}
