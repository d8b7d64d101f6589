/**
 * Speech on its way to the network: what it does not take in time is dropped, oldest first.
 *
 * What was sent last is held too: a connection may break with it, and another one sends it again.
 */

/** What is held: 20 packets of 20 ms. Older audio is not worth sending any more. */
export const STALE_PACKETS = 20;
const PACKETS_A_FRAME = 4;
/** What may wait in the socket itself, in packets and at least in bytes: more is a network that has stopped. */
const SOCKET_PACKETS = 5;
const SOCKET_BYTES = 1000;

/** @typedef {{ packet: Uint8Array, atS: number }} Said an encoded packet, and when it was said */

/** One call's; `dropped` counts packets that were never sent. Packets are numbered as they come. */
export class Outbox {
  constructor() {
    /** @type {Said[]} */
    this._held = [];
    this._made = 0;
    this._next = 0;
    this.dropped = 0;
  }

  /** The first frame that can be sent whole. */
  get firstFrame() {
    return Math.ceil((this._made - this._held.length) / PACKETS_A_FRAME);
  }

  /** @param {Said} said */
  put(said) {
    this._held.push(said);
    this._made += 1;
    if (this._held.length > STALE_PACKETS) this._held.shift();
    const first = this._made - this._held.length;
    if (this._next < first) {
      this._next = first;
      this.dropped += 1;
    }
  }

  /** @param {number} frame send from here on, as far as it is held */
  goOnFrom(frame) {
    this._next = Math.min(this._made, Math.max(this._made - this._held.length, frame * PACKETS_A_FRAME));
  }

  /**
   * The packets that a socket takes now.
   *
   * @param {{ bufferedAmount: number }} socket whose buffer grows as they are sent
   * @returns {Generator<Said>}
   */
  *takenBy(socket) {
    for (;;) {
      const next = this._held[this._next - (this._made - this._held.length)];
      if (!next || socket.bufferedAmount > Math.max(SOCKET_BYTES, SOCKET_PACKETS * next.packet.length)) return;
      this._next += 1;
      yield next;
    }
  }
}
