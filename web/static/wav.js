/** WAV files of 16-bit samples: the header, and floats as its samples. Pure. */

export const HEADER_BYTES = 44;

/**
 * @param {{ sampleRate: number, channels: number, frames: number }} audio a frame is one sample of each channel
 * @returns {Uint8Array}
 */
export function wavHeader({ sampleRate, channels, frames }) {
  const view = new DataView(new ArrayBuffer(HEADER_BYTES));
  const dataBytes = frames * channels * 2;
  const words = /** @type {const} */ ([
    [0, "RIFF"],
    [8, "WAVE"],
    [12, "fmt "],
    [36, "data"],
  ]);
  for (const [offset, word] of words) {
    for (let index = 0; index < 4; index++) view.setUint8(offset + index, word.charCodeAt(index));
  }
  view.setUint32(4, HEADER_BYTES - 8 + dataBytes, true);
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, channels, true);
  view.setUint32(24, sampleRate, true);
  view.setUint32(28, sampleRate * channels * 2, true);
  view.setUint16(32, channels * 2, true);
  view.setUint16(34, 16, true);
  view.setUint32(40, dataBytes, true);
  return new Uint8Array(view.buffer);
}

/**
 * A float sample as 16 bits, clipped: the sample times 32768, as the server reads and writes it.
 *
 * @param {number} sample
 */
export function toInt16(sample) {
  return Math.max(-32768, Math.min(32767, Math.round(sample * 32768)));
}

/**
 * Two channels, sample by sample; the shorter one is filled up with silence.
 *
 * @param {Float32Array} left
 * @param {Float32Array} right
 * @returns {Int16Array}
 */
export function interleave(left, right) {
  const frames = Math.max(left.length, right.length);
  const out = new Int16Array(2 * frames);
  for (let index = 0; index < frames; index++) {
    out[2 * index] = toInt16(left[index] ?? 0);
    out[2 * index + 1] = toInt16(right[index] ?? 0);
  }
  return out;
}
