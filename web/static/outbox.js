/** Speech on its way to the network: what it does not take in time is dropped, oldest first. */

/** What may wait here: 20 packets of 20 ms. Older audio is not worth sending any more. */
export const STALE_PACKETS = 20;
/** What may wait in the socket itself, in packets and at least in bytes: more is a network that has stopped. */
const SOCKET_PACKETS = 5;
const SOCKET_BYTES = 1000;

/** @typedef {{ packet: Uint8Array, atS: number }} Said an encoded packet, and when it was said */

/** One connection's; `dropped` counts packets. */
export class Outbox {
  constructor() {
    /** @type {Said[]} */
    this._waiting = [];
    this.dropped = 0;
  }

  /** @param {Said} said */
  put(said) {
    this._waiting.push(said);
    if (this._waiting.length > STALE_PACKETS) {
      this._waiting.shift();
      this.dropped += 1;
    }
  }

  /**
   * The packets that a socket takes now.
   *
   * @param {{ bufferedAmount: number }} socket whose buffer grows as they are sent
   * @returns {Generator<Said>}
   */
  *takenBy(socket) {
    for (;;) {
      const next = this._waiting[0];
      if (!next || socket.bufferedAmount > Math.max(SOCKET_BYTES, SOCKET_PACKETS * next.packet.length)) return;
      this._waiting.shift();
      yield next;
    }
  }
}
