/**
 * A call by WebRTC: sound goes by tracks, all else by a data channel. Only who chooses it fetches this.
 *
 * To the session it is a socket: messages with audio become samples of the track, and what the track brings back is
 * played as it comes. The browser orders packets, conceals lost ones, and keeps a buffer as long as they need.
 */

import { fromPcm, SAMPLE_RATE } from "./codecs.js";
import { CLOSE, decode, TAG } from "./protocol.js";
import { explain } from "./refusal.js";

/** The next block of 20 ms is here before the last one has been sent, also when this thread was busy for a moment. */
const LEAD_S = 0.04;
/** What a thread that stood still held back comes at once: more of it would delay all that is said after it. */
const MOST_LEAD_S = 0.2;
const LOOK_MS = 1000;
const [CONNECTING, OPEN, CLOSED] = [0, 1, 3];
/** A connection that ended without a word. */
const BROKEN = 1006;

/**
 * How a session connects by WebRTC, and what there is to measure.
 *
 * @param {import("./sound.js").Sound} sound
 */
export function byPeer(sound) {
  /** @type {PeerSocket | null} */
  let peer = null;
  return {
    open: (/** @type {string} */ url) => (peer = new PeerSocket(url, sound)),
    explain: (/** @type {string} */ url) => explain(url, async () => peer?.answer ?? Response.error()),
    numbers: () => ({ isTrack: true, ...peer?.numbers }),
  };
}

/** One connection, with what the session uses of a WebSocket. */
class PeerSocket {
  /**
   * @param {string} url of a socket
   * @param {import("./sound.js").Sound} sound
   */
  constructor(url, sound) {
    this.binaryType = "arraybuffer";
    this.bufferedAmount = 0; // of audio: none waits
    this.readyState = CONNECTING;
    /** @type {any} */
    this.onopen = null;
    /** @type {any} */
    this.onmessage = null;
    /** @type {any} */
    this.onclose = null;
    /** @type {any} */
    this.onerror = null;
    /** What the server said to the offer. @type {Response | null} */
    this.answer = null;
    /** @type {Partial<import("./call.js").Numbers>} */
    this.numbers = {};
    this._sound = sound;
    this._endS = 0;
    /** The server's last error has the code that a socket would be closed with. @type {number} */
    this._code = CLOSE.DONE;
    /** @type {AudioNode | null} */
    this._far = null;
    this._track = sound.context.createMediaStreamDestination();
    this._connection = new RTCPeerConnection();
    this._channel = this._connection.createDataChannel("events");
    this._timer = setInterval(() => void this._look(), LOOK_MS);
    void this._offer(url).catch(() => this._ended(BROKEN));
  }

  /** @param {string} url */
  async _offer(url) {
    const [connection, channel, { stream }] = [this._connection, this._channel, this._track];
    for (const track of stream.getAudioTracks()) connection.addTrack(track, stream);
    connection.ontrack = ({ track }) => this._hear(new MediaStream([track]));
    connection.onconnectionstatechange = () => connection.connectionState === "failed" && this._ended(BROKEN);
    channel.binaryType = "arraybuffer";
    channel.onopen = () => {
      this.readyState = OPEN;
      this.onopen?.();
    };
    channel.onmessage = (message) => this._received(message);
    channel.onclose = () => this._ended(this._code);
    await connection.setLocalDescription();
    const address = new URL(url.replace(/^ws/, "http"));
    address.searchParams.delete("resume"); // a call by WebRTC cannot be
    const headers = { "Content-Type": "application/sdp" };
    this.answer = await fetch(address, { method: "POST", headers, body: connection.localDescription?.sdp ?? "" });
    if (!this.answer.ok) return this._ended(BROKEN);
    if (this.readyState === CLOSED) {
      // Given up meanwhile: the call would keep its place until it is known not to connect.
      const { pathname } = new URL(this.answer.headers.get("Location") ?? "", address);
      return void fetch(new URL(`${pathname}${address.search}`, address), { method: "DELETE" });
    }
    await connection.setRemoteDescription({ type: "answer", sdp: await this.answer.text() });
  }

  /** @param {Uint8Array} data a message */
  send(data) {
    if (data[0] === TAG.AUDIO) this._speak(fromPcm(data.subarray(1)));
    else this._channel.send(/** @type {Uint8Array<ArrayBuffer>} */ (data));
  }

  close() {
    this.readyState = CLOSED;
    clearInterval(this._timer);
    this._far?.disconnect();
    this._connection.close();
  }

  /** @param {number} code */
  _ended(code) {
    if (this.readyState === CLOSED) return;
    this.close();
    this.onclose?.({ code, reason: "" });
  }

  /** @param {MessageEvent} message */
  _received(message) {
    const bytes = new Uint8Array(message.data);
    if (bytes[0] === TAG.EVENT) {
      const event = decode(bytes);
      if (event.kind === "event" && event.type === "error") this._code = Number(event.fields["code"]);
    }
    this.onmessage?.(message);
  }

  /** @param {Float32Array} samples */
  _speak(samples) {
    const { context } = this._sound;
    if (this._endS > context.currentTime + MOST_LEAD_S) return;
    const buffer = context.createBuffer(1, samples.length, SAMPLE_RATE);
    buffer.getChannelData(0).set(samples);
    const source = context.createBufferSource();
    source.buffer = buffer;
    source.connect(this._track);
    if (this._endS < context.currentTime) this._endS = context.currentTime + LEAD_S;
    source.start(this._endS);
    this._endS += buffer.duration;
  }

  /** @param {MediaStream} stream */
  _hear(stream) {
    const pump = new Audio(); // Chromium takes no sound from a connection that no element plays
    pump.muted = true;
    pump.srcObject = stream;
    this._far = this._sound.context.createMediaStreamSource(stream);
    this._far.connect(this._sound.node, 0, 1);
  }

  /** What the browser knows of the sound that comes. */
  async _look() {
    for (const it of (await this._connection.getStats()).values()) {
      if (it.type !== "inbound-rtp") continue;
      const bufferMs = (1000 * it.jitterBufferDelay) / (it.jitterBufferEmittedCount || 1);
      this.numbers = { gaps: it.concealmentEvents, jitterMs: 1000 * it.jitter, bufferMs };
    }
  }
}
