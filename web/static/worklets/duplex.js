/**
 * Both ends of the audio in one worklet, so that what was said and what was heard share one clock.
 *
 * From the page, as messages:
 *   { type: "push", frame, samples }   audio at the device's rate that answers input frame `frame`
 *   { type: "flush", atFrame }         forget what answers earlier frames
 *   { type: "restart" }                a new conversation: forget everything, count from 0
 * To the page, every BLOCK_MS: a Block. Its buffers are given away, not copied.
 *
 * Underruns, overruns and the start level are the playback buffer's business: see jitter.js. While nothing is
 * connected to the first input, silence is what was said; what a track brings comes by the second, and is played.
 *
 * @typedef {{ said: Float32Array, heard: Float32Array, atS: number, begun: { frame: number, atS: number }[],
 *   depthMs: number, leadMs: number, gaps: number, gapMs: number, droppedMs: number }} Block
 */

import { JitterBuffer } from "../jitter.js";

const BLOCK_MS = 20;
const QUANTUM = 128;

class DuplexProcessor extends AudioWorkletProcessor {
  constructor() {
    super();
    this._buffer = new JitterBuffer(sampleRate);
    this._blockSamples = QUANTUM * Math.round((BLOCK_MS * sampleRate) / 1000 / QUANTUM);
    this._block = this._open(currentFrame);
    this._filled = 0;
    this.port.onmessage = ({ data }) => this._obey(data);
  }

  /** @param {{ type: string, frame: number, samples: Float32Array, atFrame: number }} message */
  _obey(message) {
    if (message.type === "push") this._buffer.push(message.frame, message.samples);
    else if (message.type === "flush") this._buffer.flush(message.atFrame);
    else if (message.type === "restart") this._buffer = new JitterBuffer(sampleRate);
  }

  /**
   * @param {number} frame the context's, of the block's first sample
   * @returns {Block}
   */
  _open(frame) {
    const [said, heard] = [new Float32Array(this._blockSamples), new Float32Array(this._blockSamples)];
    return { said, heard, atS: frame / sampleRate, begun: [], depthMs: 0, leadMs: 0, gaps: 0, gapMs: 0, droppedMs: 0 };
  }

  /**
   * @param {Float32Array[][]} inputs
   * @param {Float32Array[][]} outputs
   */
  process(inputs, outputs) {
    const said = inputs[0]?.[0];
    const heard = outputs[0]?.[0] ?? new Float32Array(QUANTUM);
    for (const { frame, offset } of this._buffer.pull(heard)) {
      this._block.begun.push({ frame, atS: (currentFrame + offset) / sampleRate });
    }
    inputs[1]?.[0]?.forEach((sample, index) => (heard[index] += sample));
    if (said) this._block.said.set(said, this._filled);
    this._block.heard.set(heard, this._filled);
    this._filled += heard.length;
    if (this._filled >= this._blockSamples) this._post();
    return true;
  }

  _post() {
    const { depthMs, leadMs, gaps, gapMs, droppedMs } = this._buffer;
    const block = { ...this._block, depthMs, leadMs, gaps, gapMs, droppedMs };
    this.port.postMessage(block, [block.said.buffer, block.heard.buffer]);
    this._block = this._open(currentFrame + QUANTUM);
    this._filled = 0;
  }
}

registerProcessor("duplex", DuplexProcessor);
