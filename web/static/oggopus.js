/** Opus packets in an Ogg file (RFC 3533, RFC 7845): what a recording becomes where the browser encodes Opus. */

/** Granule positions count samples at this rate, whatever the rate of the input. */
const GRANULE_RATE = 48_000;
/** What a decoder throws away first: libopus's usual look-ahead. */
const PRE_SKIP = 312;
/** A page of one second at 20 ms. */
const PACKETS_A_PAGE = 50;
const MAX_SEGMENTS = 255;

const CRC = Uint32Array.from({ length: 256 }, (_, index) => {
  let value = index << 24;
  for (let bit = 0; bit < 8; bit++) value = (value << 1) ^ (value & 0x80000000 ? 0x04c11db7 : 0);
  return value >>> 0;
});

/** @param {Uint8Array} bytes */
function checksum(bytes) {
  let crc = 0;
  for (const byte of bytes) crc = ((crc << 8) ^ /** @type {number} */ (CRC[((crc >>> 24) ^ byte) & 255])) >>> 0;
  return crc;
}

/** Writes pages one after the other. */
export class OggOpusWriter {
  /** @param {{ channels: number, sampleRate: number, packetMs: number }} format */
  constructor({ channels, sampleRate, packetMs }) {
    this._granulesAPacket = (packetMs * GRANULE_RATE) / 1000;
    this._granule = 0;
    this._sequence = 0;
    /** @type {Uint8Array[]} */
    this._waiting = [];
    /** @type {Uint8Array<ArrayBuffer>[]} */
    this.pages = [];
    this._page([head(channels, sampleRate)], 0, 2);
    this._page([tags()], 0, 0);
  }

  /** @param {Uint8Array} packet */
  add(packet) {
    this._waiting.push(packet);
    const segments = this._waiting.reduce((sum, it) => sum + Math.floor(it.length / 255) + 1, 0);
    if (this._waiting.length >= PACKETS_A_PAGE || segments > MAX_SEGMENTS - 8) this._flush(0);
  }

  /** The last page, and the whole file. */
  finish() {
    this._flush(4);
    return new Blob(this.pages, { type: "audio/ogg" });
  }

  /** @param {number} flags */
  _flush(flags) {
    this._granule += this._waiting.length * this._granulesAPacket;
    this._page(this._waiting, this._granule, flags);
    this._waiting = [];
  }

  /**
   * @param {Uint8Array[]} packets
   * @param {number} granule
   * @param {number} flags 2 begins the stream, 4 ends it
   */
  _page(packets, granule, flags) {
    const lacing = packets.flatMap((it) => [...Array(Math.floor(it.length / 255)).fill(255), it.length % 255]);
    const size = packets.reduce((sum, it) => sum + it.length, 0);
    const page = new Uint8Array(27 + lacing.length + size);
    const view = new DataView(page.buffer);
    page.set([0x4f, 0x67, 0x67, 0x53, 0, flags]);
    view.setBigUint64(6, BigInt(granule), true);
    view.setUint32(14, 1, true);
    view.setUint32(18, this._sequence++, true);
    view.setUint8(26, lacing.length);
    page.set(lacing, 27);
    let at = 27 + lacing.length;
    for (const packet of packets) {
      page.set(packet, at);
      at += packet.length;
    }
    view.setUint32(22, checksum(page), true);
    this.pages.push(page);
  }
}

/** @param {number} channels @param {number} sampleRate */
function head(channels, sampleRate) {
  const view = new DataView(new ArrayBuffer(19));
  new Uint8Array(view.buffer).set(new TextEncoder().encode("OpusHead"));
  view.setUint8(8, 1);
  view.setUint8(9, channels);
  view.setUint16(10, PRE_SKIP, true);
  view.setUint32(12, sampleRate, true);
  return new Uint8Array(view.buffer);
}

function tags() {
  const vendor = new TextEncoder().encode("antiphon");
  const view = new DataView(new ArrayBuffer(8 + 4 + vendor.length + 4));
  const bytes = new Uint8Array(view.buffer);
  bytes.set(new TextEncoder().encode("OpusTags"));
  view.setUint32(8, vendor.length, true);
  bytes.set(vendor, 12);
  return bytes;
}
