/**
 * Between samples and what travels: raw Opus packets through WebCodecs, or 16-bit PCM.
 *
 * Speech goes in as blocks of 480 samples at 24 kHz and comes out as one payload each, in order, with the time
 * it was said. Replies go in as payloads and come out as samples at whatever rate the decoder likes.
 */

import { toInt16 } from "./wav.js";

export const SAMPLE_RATE = 24_000;
export const PACKET_SAMPLES = 480;
const PACKET_US = 20_000;

/** @typedef {"opus" | "pcm_s16le"} Format */

/**
 * @typedef {object} Encoder
 * @property {(samples: Float32Array, atS: number) => void} encode
 * @property {() => void} close
 *
 * @typedef {object} Decoder
 * @property {(payload: Uint8Array, frame: number) => void} decode
 * @property {() => void} close
 */

const OPUS_OUT = /** @type {AudioEncoderConfig} */ ({
  codec: "opus",
  sampleRate: SAMPLE_RATE,
  numberOfChannels: 1,
  bitrate: 32_000,
  opus: { application: "lowdelay", format: "opus", frameDuration: PACKET_US, complexity: 5 },
});
const OPUS_IN = { codec: "opus", sampleRate: SAMPLE_RATE, numberOfChannels: 1 };

/**
 * Opus where the browser can both write and read it, else PCM.
 *
 * @returns {Promise<Format>}
 */
export async function bestFormat() {
  if (typeof AudioEncoder === "undefined" || typeof AudioDecoder === "undefined") return "pcm_s16le";
  try {
    const answers = [AudioEncoder.isConfigSupported(OPUS_OUT), AudioDecoder.isConfigSupported(OPUS_IN)];
    return (await Promise.all(answers)).every((answer) => answer.supported) ? "opus" : "pcm_s16le";
  } catch {
    return "pcm_s16le"; // a browser that does not know one of the words above
  }
}

/**
 * @param {Format} format
 * @param {(payload: Uint8Array, atS: number) => void} onPayload
 * @param {(error: Error) => void} onError the codec cannot go on
 * @returns {Encoder}
 */
export function makeEncoder(format, onPayload, onError) {
  if (format === "opus") return new OpusEncoder(onPayload, onError);
  return { encode: (samples, atS) => onPayload(toPcm(samples), atS), close: () => {} };
}

/**
 * @param {Format} format
 * @param {(frame: number, samples: Float32Array, sampleRate: number) => void} onSamples
 * @param {(error: Error) => void} onError the codec cannot go on
 * @returns {Decoder}
 */
export function makeDecoder(format, onSamples, onError) {
  if (format === "opus") return new OpusDecoder(onSamples, onError);
  return { decode: (payload, frame) => onSamples(frame, fromPcm(payload), SAMPLE_RATE), close: () => {} };
}

class OpusEncoder {
  /**
   * @param {(payload: Uint8Array, atS: number) => void} onPayload
   * @param {(error: Error) => void} onError
   */
  constructor(onPayload, onError) {
    /** When the packets that are being encoded were said. @type {number[]} */
    this._times = [];
    this._count = 0;
    this._encoder = new AudioEncoder({
      output: (chunk) => {
        const payload = new Uint8Array(chunk.byteLength);
        chunk.copyTo(payload);
        onPayload(payload, this._times.shift() ?? 0);
      },
      error: onError,
    });
    this._encoder.configure(OPUS_OUT);
  }

  /**
   * @param {Float32Array} samples
   * @param {number} atS
   */
  encode(samples, atS) {
    if (this._encoder.state !== "configured") return;
    this._times.push(atS);
    const data = new AudioData({
      format: "f32",
      sampleRate: SAMPLE_RATE,
      numberOfChannels: 1,
      numberOfFrames: samples.length,
      timestamp: this._count++ * PACKET_US,
      data: /** @type {Float32Array<ArrayBuffer>} */ (samples),
    });
    this._encoder.encode(data);
    data.close();
  }

  close() {
    if (this._encoder.state !== "closed") this._encoder.close();
  }
}

class OpusDecoder {
  /**
   * @param {(frame: number, samples: Float32Array, sampleRate: number) => void} onSamples
   * @param {(error: Error) => void} onError
   */
  constructor(onSamples, onError) {
    /** The frames of the packets that are being decoded. @type {number[]} */
    this._frames = [];
    this._count = 0;
    this._decoder = new AudioDecoder({
      output: (data) => {
        const samples = new Float32Array(data.numberOfFrames);
        data.copyTo(samples, { planeIndex: 0, format: "f32-planar" });
        onSamples(this._frames.shift() ?? 0, samples, data.sampleRate);
        data.close();
      },
      error: onError,
    });
    this._decoder.configure(OPUS_IN);
  }

  /**
   * @param {Uint8Array} payload
   * @param {number} frame
   */
  decode(payload, frame) {
    if (this._decoder.state !== "configured") return;
    this._frames.push(frame);
    const data = /** @type {Uint8Array<ArrayBuffer>} */ (payload);
    this._decoder.decode(new EncodedAudioChunk({ type: "key", timestamp: this._count++ * PACKET_US, data }));
  }

  close() {
    if (this._decoder.state !== "closed") this._decoder.close();
  }
}

/** @param {Float32Array} samples */
export function toPcm(samples) {
  const view = new DataView(new ArrayBuffer(2 * samples.length));
  for (let index = 0; index < samples.length; index++) view.setInt16(2 * index, toInt16(samples[index]), true);
  return new Uint8Array(view.buffer);
}

/** @param {Uint8Array} payload */
export function fromPcm(payload) {
  const view = new DataView(payload.buffer, payload.byteOffset, payload.byteLength);
  return Float32Array.from({ length: payload.length >> 1 }, (_, index) => view.getInt16(2 * index, true) / 32768);
}

/** Cuts a stream into blocks of PACKET_SAMPLES, each with the time of its first sample. */
export class Chunker {
  /** @param {(samples: Float32Array, atS: number) => void} onChunk */
  constructor(onChunk) {
    this._onChunk = onChunk;
    this._kept = new Float32Array(0);
  }

  /**
   * @param {Float32Array} samples at SAMPLE_RATE
   * @param {number} atS when the first of them was said
   */
  push(samples, atS) {
    const all = new Float32Array(this._kept.length + samples.length);
    all.set(this._kept);
    all.set(samples, this._kept.length);
    const fromS = atS - this._kept.length / SAMPLE_RATE;
    let start = 0;
    for (; start + PACKET_SAMPLES <= all.length; start += PACKET_SAMPLES) {
      this._onChunk(all.slice(start, start + PACKET_SAMPLES), fromS + start / SAMPLE_RATE);
    }
    this._kept = all.slice(start);
  }
}
