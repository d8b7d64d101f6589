/** A call's recording, until it is saved: as Opus where the browser encodes it, as WAV everywhere. */

import { SAMPLE_RATE } from "./codecs.js";
import { OggOpusWriter } from "./oggopus.js";
import { download, fileName, part } from "./page.js";

/** A shorter recording is not asked about. */
const WORTH_ASKING_S = 10;
const PACKET_MS = 20;
const BLOCK_FRAMES = (SAMPLE_RATE * PACKET_MS) / 1000;
const OPUS = /** @type {AudioEncoderConfig} */ ({
  codec: "opus",
  sampleRate: SAMPLE_RATE,
  numberOfChannels: 2,
  bitrate: 64_000,
  opus: { format: "opus", frameDuration: 1000 * PACKET_MS },
});

/** @typedef {import("./recorder.js").Recorder} Recorder */

/** The recording that would be lost with the page, and the question about it. */
export class Saving {
  constructor() {
    /** @type {Recorder | null} */
    this._recorder = null;
    /** Frames of it that are in a file. */
    this._savedFrames = 0;
    this._dialog = part("unsaved", HTMLDialogElement);
    addEventListener("beforeunload", (event) => {
      if (this.isUnsaved) event.preventDefault();
    });
  }

  /** @param {Recorder} recorder of a call that begins */
  begin(recorder) {
    this._recorder = recorder;
    this._savedFrames = 0;
  }

  get isUnsaved() {
    const frames = (this._recorder?.frames ?? 0) - this._savedFrames;
    return frames > WORTH_ASKING_S * SAMPLE_RATE;
  }

  /** Ask about a recording that the next call would replace. @returns {Promise<boolean>} whether to go on */
  async mayGoOn() {
    if (!this.isUnsaved) return true;
    this._dialog.returnValue = "";
    this._dialog.showModal();
    await new Promise((resolve) => this._dialog.addEventListener("close", resolve, { once: true }));
    const answer = this._dialog.returnValue;
    if (answer === "save") await this.save(await canOpus());
    return answer === "save" || answer === "discard";
  }

  /** @param {boolean} isOpus */
  async save(isOpus) {
    const recorder = this._recorder;
    if (!recorder?.frames) return;
    const { frames } = recorder;
    const wav = recorder.wav();
    if (isOpus) download(await opusOf(wav), fileName(".ogg"));
    else download(wav, fileName(".wav"));
    if (recorder === this._recorder) this._savedFrames = frames;
  }
}

/** Whether this browser can write stereo Opus. */
export async function canOpus() {
  if (typeof AudioEncoder === "undefined") return false;
  try {
    return (await AudioEncoder.isConfigSupported(OPUS)).supported === true;
  } catch {
    return false;
  }
}

/** @param {Blob} wav of 16-bit stereo at SAMPLE_RATE, with our header */
async function opusOf(wav) {
  const samples = new Int16Array((await wav.arrayBuffer()).slice(44));
  const writer = new OggOpusWriter({ channels: 2, sampleRate: SAMPLE_RATE, packetMs: PACKET_MS });
  /** @type {Error | null} */
  let broken = null;
  const encoder = new AudioEncoder({
    output: (chunk) => {
      const packet = new Uint8Array(chunk.byteLength);
      chunk.copyTo(packet);
      writer.add(packet);
    },
    error: (error) => void (broken = error),
  });
  encoder.configure(OPUS);
  for (let at = 0; at < samples.length; at += 2 * BLOCK_FRAMES) {
    const block = new Float32Array(2 * BLOCK_FRAMES);
    samples.subarray(at, at + 2 * BLOCK_FRAMES).forEach((it, index) => void (block[index] = it / 32768));
    const timestamp = Math.round((at / 2 / SAMPLE_RATE) * 1e6);
    const shape = { sampleRate: SAMPLE_RATE, numberOfChannels: 2, numberOfFrames: BLOCK_FRAMES, timestamp };
    const data = new AudioData({ ...shape, format: "f32", data: block });
    encoder.encode(data);
    data.close();
  }
  await encoder.flush();
  encoder.close();
  if (broken) throw broken;
  return writer.finish();
}
