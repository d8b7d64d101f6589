/** A socket of /api/asr-streaming: samples go in, words with their times come out. */

import { pack, unpack } from "./kyutai.js";
import { clock } from "./page.js";

const BLOCK = 1920;
/** Audio that may wait for the network: two seconds. */
const MOST_UNSENT_BYTES = 2 * 24_000 * 5;

/**
 * @typedef {object} RecogniserListener
 * @property {() => void} onReady
 * @property {(word: import("./captions.js").Word) => void} onWord
 * @property {(word: import("./captions.js").Word) => void} onWordEnd the same word, with its end
 * @property {(message: string) => void} onEnd "" when it ended as asked
 */

export class Recogniser {
  /**
   * @param {string} url
   * @param {RecogniserListener} listener
   */
  constructor(url, listener) {
    this._listener = listener;
    this._kept = new Float32Array(0);
    /** @type {import("./captions.js").Word | null} */
    this._word = null;
    this._message = "";
    this._isAsked = false;
    this._heardMs = clock();
    this.isReady = false;
    this._socket = new WebSocket(url);
    this._socket.binaryType = "arraybuffer";
    this._socket.onmessage = ({ data }) => this._received(data);
    this._socket.onclose = ({ code, reason }) => {
      const isFine = this._isAsked || code === 1000;
      listener.onEnd(this._message || (isFine ? "" : reason || "the connection was lost"));
    };
  }

  /** @param {Float32Array} samples at 24 kHz */
  push(samples) {
    const all = new Float32Array(this._kept.length + samples.length);
    all.set(this._kept);
    all.set(samples, this._kept.length);
    let at = 0;
    for (; at + BLOCK <= all.length; at += BLOCK) this._send({ type: "Audio", pcm: all.subarray(at, at + BLOCK) });
    this._kept = all.slice(at);
  }

  /** How long the server has said nothing, in ms: while it hears, it says something every frame. */
  get silentMs() {
    return clock() - this._heardMs;
  }

  /** No more is said: the words that are still to come come, then it closes. */
  finish() {
    this._send({ type: "Audio", pcm: this._kept });
    this._kept = new Float32Array(0);
    this._send({ type: "Marker", id: 1 });
  }

  close() {
    this._isAsked = true;
    this._socket.close(1000);
  }

  /** @param {Record<string, any>} message */
  _send(message) {
    const isOpen = this._socket.readyState === WebSocket.OPEN;
    if (isOpen && this._socket.bufferedAmount < MOST_UNSENT_BYTES) this._socket.send(pack(message));
  }

  /** @param {unknown} data */
  _received(data) {
    if (!(data instanceof ArrayBuffer)) return;
    this._heardMs = clock();
    const message = unpack(new Uint8Array(data));
    switch (message.type) {
      case "Ready":
        this.isReady = true;
        this._listener.onReady();
        break;
      case "Word":
        this._word = { text: String(message["text"]), startS: Number(message["start_time"]), stopS: null };
        this._listener.onWord(this._word);
        break;
      case "EndWord":
        if (!this._word) break;
        this._word.stopS = Number(message["stop_time"]);
        this._listener.onWordEnd(this._word);
        break;
      case "Marker":
        this.close();
        break;
      case "Error":
        this._message = String(message["message"]);
        break;
    }
  }
}
