/** This machine's microphone and speaker: one audio context, one worklet between them. */

import { within } from "./microphone.js";

/** @typedef {import("./worklets/duplex.js").Block} Block */

/** The worklet comes from the server: one that says nothing for so long is not there. */
const SERVER_LIMIT_MS = 8000;
/** A browser without a sound device never begins, and does not say so. */
const SPEAKER_LIMIT_MS = 5000;

/** The open audio devices of one call. */
export class Sound {
  /**
   * @param {AudioContext} context
   * @param {(block: Block) => void} onBlock
   */
  constructor(context, onBlock) {
    this.context = context;
    this.node = new AudioWorkletNode(context, "duplex", {
      numberOfInputs: 2,
      numberOfOutputs: 1,
      outputChannelCount: [1],
      channelCount: 1,
      channelCountMode: "explicit",
    });
    this.node.port.onmessage = ({ data }) => onBlock(data);
    this.node.connect(context.destination);
    /** @type {AudioNode | null} */
    this._source = null;
    /** @type {MediaStream | null} */
    this._stream = null;
  }

  /**
   * Open the speaker; to be called while a press of a button is being handled, or browsers refuse.
   *
   * @param {(block: Block) => void} onBlock twenty milliseconds of both sides
   */
  static async open(onBlock) {
    const context = new AudioContext({ latencyHint: "interactive" });
    try {
      const module = new URL("./worklets/duplex.js", import.meta.url);
      await within(SERVER_LIMIT_MS, context.audioWorklet.addModule(module), "unreachable");
      await within(SPEAKER_LIMIT_MS, context.resume(), "soundless");
      return new Sound(context, onBlock);
    } catch (error) {
      await context.close();
      throw error;
    }
  }

  get sampleRate() {
    return this.context.sampleRate;
  }

  get isRunning() {
    return this.context.state === "running";
  }

  /** What the devices add to the delay, as far as the browser knows it, in seconds. */
  get devicesS() {
    const track = this._stream?.getAudioTracks()[0];
    const settings = /** @type {{ latency?: number } | undefined} */ (track?.getSettings());
    return (this.context.outputLatency || this.context.baseLatency || 0) + (settings?.latency ?? 0);
  }

  /** @param {() => void} then called when the system stops or starts the audio */
  onStateChange(then) {
    this.context.onstatechange = then;
  }

  /** Start again what the system stopped; nothing where it is running. */
  async resume() {
    if (this.context.state !== "running" && this.context.state !== "closed") await this.context.resume();
  }

  /**
   * Hear a microphone from now on.
   *
   * @param {MediaStream} stream
   */
  useMicrophone(stream) {
    this._disconnect();
    this._stream = stream;
    this._source = this.context.createMediaStreamSource(stream);
    this._source.connect(this.node);
  }

  /**
   * @param {number} frame
   * @param {Float32Array} samples at the device's rate
   */
  push(frame, samples) {
    this.node.port.postMessage({ type: "push", frame, samples }, [samples.buffer]);
  }

  /** @param {number} atFrame */
  flush(atFrame) {
    this.node.port.postMessage({ type: "flush", atFrame });
  }

  /** A new conversation begins: what is left of the last one is forgotten. */
  restart() {
    this.node.port.postMessage({ type: "restart" });
  }

  async close() {
    this._disconnect();
    this.node.port.onmessage = null;
    this.context.onstatechange = null;
    if (this.context.state !== "closed") await this.context.close();
  }

  _disconnect() {
    this._source?.disconnect();
    for (const track of this._stream?.getTracks() ?? []) {
      track.onended = null;
      track.stop();
    }
    this._source = null;
    this._stream = null;
  }
}
