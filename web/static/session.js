/**
 * A conversation with a server as a state machine: who is told what, and when to come back. No audio, no page.
 *
 *     idle -> connecting -> queued -> live -> ended           asked for by us, or said by the server
 *                 ^            |        |
 *                 +-- lost <---+--------+                     comes back by itself, later each time
 *                 +-- full, limited                           comes back when the server said
 *                                  failed                     only a person can change that
 *
 * Sockets, timers, the clock and chance are given, so that every path can be tested. While connected, a ping
 * goes out every two seconds and is answered; eight seconds without a word from the server mean that it is lost.
 */

import { Outbox } from "./outbox.js";
import { CLOSE, decode, encode, ProtocolError } from "./protocol.js";
import { Pulse } from "./pulse.js";
import { Thread } from "./thread.js";
import { ofClose, ofRefusal } from "./verdict.js";

export const FIRST_RETRY_MS = 500;
/** The first try to go on with a call: its words wait. */
export const RESUME_RETRY_MS = 50;
export const LONGEST_RETRY_MS = 15_000;
/** After so long without a conversation we stop trying. */
export const GIVE_UP_MS = 10 * 60_000;
const TICK_MS = 500;

/**
 * @typedef {import("./verdict.js").Verdict} Verdict
 * @typedef {import("./verdict.js").Loss} Loss
 *
 * @typedef {{ name: "idle" }
 *   | { name: "connecting", isReturning: boolean }
 *   | { name: "queued", ahead: number, retryAfterS: number }
 *   | { name: "live", isReturning: boolean, isResumed?: boolean }
 *   | { name: "lost", reason: Loss, retryAtMs: number }
 *   | { name: "full" | "limited", message: string, retryAtMs: number }
 *   | { name: "ended", reason: "us" | "server" }
 *   | { name: "failed", message: string }} State
 *
 * @typedef {{ binaryType: string, readyState: number, bufferedAmount: number, send: (data: Uint8Array) => void,
 *   close: (code?: number) => void, onopen: any, onmessage: any, onclose: any, onerror: any }} SocketLike
 *
 * @typedef {object} Surroundings
 * @property {(url: string) => SocketLike} open
 * @property {() => number} clock milliseconds, monotonic
 * @property {(ms: number, then: () => void) => () => void} after a timer; returns what cancels it
 * @property {() => number} random 0 to 1
 * @property {(url: string) => Promise<import("./refusal.js").Refusal | null>} explain why a server refuses this
 *   address, if it says so
 *
 * @typedef {object} Listener
 * @property {(state: State) => void} onState
 * @property {(facts: Record<string, any>) => void} onReady admitted: a new session, whose frames count from 0
 * @property {(inputFrame: number) => void} onResumed the call goes on, and the server counts on from this frame
 * @property {(atS: number) => void} onSent a packet was handed to the network: the server will count it
 * @property {(audio: import("./protocol.js").StampedAudio) => void} onAudio
 * @property {(text: string) => void} onText
 * @property {(text: string) => void} onWordHeard a voice agent has understood this word of the caller
 * @property {(call: string) => void} onTool a voice agent's text model calls a tool
 * @property {(atFrame: number) => void} onInterrupted
 * @property {(stats: Record<string, any>) => void} onStats
 * @property {(deadlineS: number) => void} onDraining
 * @property {(roundTripMs: number) => void} onRoundTrip
 */

const OPEN = 1;

/** One visitor's wish to talk, for as long as it lasts: over as many connections as that takes. */
export class Session {
  /**
   * @param {() => string} url the address of the next connection
   * @param {Surroundings} around
   * @param {Listener} listener
   */
  constructor(url, around, listener) {
    this._url = url;
    this._around = around;
    this._listener = listener;
    /** @type {State} */
    this.state = { name: "idle" };
    /** @type {SocketLike | null} */
    this._socket = null;
    this._outbox = new Outbox();
    /** Packets that earlier conversations dropped. */
    this._droppedBefore = 0;
    this._thread = new Thread();
    this._isResuming = false;
    /** Whether the server has refused, on this connection, to go on with the call. */
    this._isForgotten = false;
    this._pulse = new Pulse(around.clock());
    this._wasLive = false;
    this._attempts = 0;
    this._openAnswers = 0;
    this._troubleSinceMs = 0;
    /** @type {import("./protocol.js").Event | null} */
    this._lastError = null;
    /** @type {() => void} */
    this._cancel = () => {};
  }

  get isLive() {
    return this.state.name === "live";
  }

  /** Whether somebody wants to talk: connected, waiting or coming back. */
  get isWanted() {
    return !["idle", "ended", "failed"].includes(this.state.name);
  }

  /** Begin. */
  start() {
    if (this.isWanted) return;
    this._attempts = 0;
    this._openAnswers = 0;
    this._wasLive = false;
    this._thread.end();
    this._troubleSinceMs = this._around.clock();
    this._connect();
  }

  /** Hang up. */
  end() {
    if (!this.isWanted) return;
    this._send({ kind: "event", type: "bye", fields: {} });
    this._thread.end();
    this._letGo(CLOSE.DONE);
    this._enter({ name: "ended", reason: "us" });
  }

  /** Leave this connection for another one, at once: something about it has to change. */
  reopen() {
    if (!this.isWanted) return;
    this._thread.end();
    this._letGo(CLOSE.DONE);
    this._connect();
  }

  /** Try now what was to be tried later: the network is back, or the page is looked at again. */
  hurry() {
    if (this.state.name === "lost") {
      this._troubleSinceMs = this._around.clock(); // a laptop that slept for an hour has not tried for an hour
      this._connect();
    } else {
      this.tick();
    }
  }

  /** Connect now, whatever the server said of when. */
  tryNow() {
    if (this.state.name === "lost" || this.state.name === "full" || this.state.name === "limited") {
      this._troubleSinceMs = this._around.clock();
      this._connect();
    }
  }

  /**
   * Twenty milliseconds of speech, encoded. What the network does not take in time is dropped, oldest first.
   *
   * @param {Uint8Array} packet
   * @param {number} atS when it was said; given to `onSent` once the network has it
   */
  sendAudio(packet, atS) {
    if (!this.isLive && !this._thread.isResumable) return;
    this._outbox.put({ packet, atS });
    if (this.isLive) this._drain();
  }

  /** How many packets were dropped, in all conversations. */
  get droppedPackets() {
    return this._droppedBefore + this._outbox.dropped;
  }

  /** @param {Record<string, any>} parameters */
  set(parameters) {
    if (this.isLive) this._send({ kind: "event", type: "set", fields: { parameters } });
  }

  /** Look at the time. Timers call this, and events that arrive while timers sleep. */
  tick() {
    if (!this._socket) return;
    const finding = this._pulse.look(this._around.clock());
    if (finding === "ask") {
      this._send({ kind: "ping" });
    } else if (finding !== null) {
      this._letGo(CLOSE.COMING_BACK);
      this._lose(finding);
    }
  }

  // Coming and going.

  _connect() {
    this._cancel();
    this._isResuming = this._thread.isInTime(this._around.clock());
    const address = this._url();
    const url = this._isResuming ? this._thread.resumingUrl(address) : address;
    this._lastError = null;
    this._isForgotten = false;
    if (!this._isResuming) {
      this._thread = new Thread();
      this._droppedBefore += this._outbox.dropped;
      this._outbox = new Outbox();
    }
    this._pulse = new Pulse(this._around.clock());
    this._enter({ name: "connecting", isReturning: this._wasLive });
    const socket = this._around.open(url);
    this._socket = socket;
    socket.binaryType = "arraybuffer";
    socket.onopen = () => this._opened(socket);
    socket.onmessage = (/** @type {{ data: unknown }} */ message) => this._received(socket, message.data);
    socket.onclose = (/** @type {{ code: number, reason: string }} */ close) => this._closed(socket, url, close);
    this._keepTime();
  }

  _keepTime() {
    this._cancel = this._around.after(TICK_MS, () => {
      this.tick();
      if (this._socket) this._keepTime();
    });
  }

  /** @param {SocketLike} socket */
  _opened(socket) {
    if (socket !== this._socket) return;
    this._openAnswers = 0;
    this._pulse.opened(this._around.clock());
    if (this._isResuming) socket.send(this._thread.claim(this._outbox.firstFrame));
  }

  /**
   * @param {SocketLike} socket
   * @param {string} url
   * @param {{ code: number, reason: string }} close
   */
  async _closed(socket, url, close) {
    if (socket !== this._socket) return;
    this._letGo();
    if (this._thread.isMoved) {
      this._thread.isMoved = false; // once: a worker that does not answer is asked later each time
      this._thread.lost(this._around.clock());
      this._connect();
      return;
    }
    if (this._isForgotten) {
      this._connect(); // the server answers: there is nothing to wait for
      return;
    }
    if (this._pulse.hasOpened) {
      // A caller without speech is cut off again: only after speech is a first try one.
      this._obey(ofClose(close, this._lastError, this._wasLive && this._attempts === 0));
      return;
    }
    this._enter({ name: "connecting", isReturning: this._wasLive });
    const refusal = await this._around.explain(url);
    // Meanwhile the visitor may have hung up.
    if (this.state.name !== "connecting" || this._socket) return;
    this._openAnswers = refusal?.kind === "open" ? this._openAnswers + 1 : 0;
    this._obey(ofRefusal(refusal, this._openAnswers));
  }

  /** @param {Verdict} verdict */
  _obey(verdict) {
    if (verdict.name === "lost") this._lose(verdict.reason, verdict.retryAfterS);
    else if (verdict.name === "ended" || verdict.name === "failed") this._enter(verdict);
    else this._comeAgain(verdict);
  }

  /**
   * When the server said.
   *
   * @param {{ name: "full" | "limited", message: string, retryAfterS: number }} verdict
   */
  _comeAgain({ name, message, retryAfterS }) {
    const waitMs = Math.max(1, retryAfterS) * 1000 * (1 + 0.2 * this._around.random());
    this._enter({ name, message, retryAtMs: this._around.clock() + waitMs });
    this._cancel = this._around.after(waitMs, () => this._connect());
  }

  /**
   * Later each time, and no sooner than the server said.
   *
   * @param {Loss} reason
   * @param {number} retryAfterS
   */
  _lose(reason, retryAfterS = 0) {
    const nowMs = this._around.clock();
    if (this._attempts === 0) this._troubleSinceMs = nowMs;
    if (nowMs - this._troubleSinceMs > GIVE_UP_MS) {
      this._enter({ name: "failed", message: "The server could not be reached for ten minutes." });
      return;
    }
    if (this.state.name === "live") this._thread.lost(nowMs);
    const firstMs = this._thread.isInTime(nowMs) ? RESUME_RETRY_MS : FIRST_RETRY_MS;
    const backoffMs = Math.min(firstMs * 2 ** this._attempts, LONGEST_RETRY_MS);
    const waitMs = 1000 * retryAfterS + backoffMs * (0.75 + 0.5 * this._around.random());
    this._attempts += 1;
    this._enter({ name: "lost", reason, retryAtMs: nowMs + waitMs });
    this._cancel = this._around.after(waitMs, () => this._connect());
  }

  /** @param {number} [code] */
  _letGo(code) {
    this._cancel();
    const socket = this._socket;
    this._socket = null;
    if (!socket) return;
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.onerror = () => {};
    socket.close(code);
  }

  /** @param {State} state */
  _enter(state) {
    this.state = state;
    this._listener.onState(state);
  }

  // What is said.

  /** @param {import("./protocol.js").Message} message */
  _send(message) {
    if (this._socket?.readyState === OPEN) this._socket.send(encode(message));
  }

  _drain() {
    const socket = this._socket;
    if (socket?.readyState !== OPEN) return;
    for (const { packet, atS } of this._outbox.takenBy(socket)) {
      socket.send(encode({ kind: "audio", data: packet }));
      this._attempts = 0; // not before: a caller without speech is cut off again
      this._listener.onSent(atS);
    }
  }

  /**
   * @param {SocketLike} socket
   * @param {unknown} data
   */
  _received(socket, data) {
    if (socket !== this._socket) return;
    this._pulse.heard(this._around.clock());
    if (!(data instanceof ArrayBuffer)) return; // text messages mean nothing
    try {
      const bytes = this._thread.heed(new Uint8Array(data));
      if (bytes) this._handle(decode(bytes));
      const ack = this._thread.ack(this._around.clock());
      if (ack && socket.readyState === OPEN) socket.send(ack);
    } catch (error) {
      if (!(error instanceof ProtocolError)) throw error;
      this._letGo(CLOSE.DONE);
      this._enter({ name: "failed", message: `The server sent what cannot be understood: ${error.message}.` });
    }
  }

  /** @param {import("./protocol.js").Message} message */
  _handle(message) {
    if (message.kind === "stamped_audio") this._listener.onAudio(message);
    else if (message.kind === "text" || message.kind === "coloured_text") this._listener.onText(message.text);
    else if (message.kind === "event") this._handleEvent(message);
    else if (message.kind === "ping") {
      const tookMs = this._pulse.answered();
      if (tookMs !== null) this._listener.onRoundTrip(tookMs);
    }
  }

  /** @param {import("./protocol.js").Event} event */
  _handleEvent(event) {
    const { fields } = event;
    switch (event.type) {
      case "queued":
        this._enter({
          name: "queued",
          ahead: Number(fields["ahead"]),
          retryAfterS: Number(fields["retry_after_s"]),
        });
        break;
      case "ready": {
        const isReturning = this._wasLive;
        this._wasLive = true;
        this._thread.offered(fields["resume"]);
        this._listener.onReady(fields);
        this._enter({ name: "live", isReturning });
        break;
      }
      case "resumed":
        this._thread.resumed(fields);
        this._outbox.goOnFrom(this._thread.inputFrame);
        this._listener.onResumed(this._thread.inputFrame);
        this._enter({ name: "live", isReturning: true, isResumed: true });
        break;
      case "moved":
        this._thread.moved(fields);
        break;
      case "resume_failed":
        this._isForgotten = this._isResuming;
        this._thread.end();
        break;
      case "replaced":
        this._thread.end();
        break;
      case "interrupted":
        this._listener.onInterrupted(Number(fields["at_frame"]));
        break;
      case "heard":
        this._listener.onWordHeard(String(fields["text"]));
        break;
      case "tool":
        this._listener.onTool(`${fields["name"]}(${fields["arguments"]})`);
        break;
      case "stats":
        this._listener.onStats(fields);
        break;
      case "draining":
        this._listener.onDraining(Number(fields["deadline_s"]));
        break;
      case "error":
        this._lastError = event;
        break;
    }
  }
}
