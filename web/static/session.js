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

import { CLOSE, decode, encode, ProtocolError } from "./protocol.js";
import { UNSAID_RETRY_S } from "./refusal.js";

export const PING_EVERY_MS = 2000;
export const SILENCE_LIMIT_MS = 8000;
export const CONNECT_LIMIT_MS = 10_000;
export const FIRST_RETRY_MS = 500;
export const LONGEST_RETRY_MS = 15_000;
/** After so long without a conversation we stop trying. */
export const GIVE_UP_MS = 10 * 60_000;
/** A clock that jumped so far means that this page slept, not that the server was silent. */
const SLEPT_MS = 4000;
const TICK_MS = 500;
/** What may wait here for the network: 20 packets of 20 ms. Older audio is not worth sending any more. */
export const STALE_PACKETS = 20;
/** What may wait in the socket itself, in packets and at least in bytes: more is a network that has stopped. */
const SOCKET_PACKETS = 5;
const SOCKET_BYTES = 1000;

/** So often in a row a server would take the call that was not taken: once, it may just have had no room. */
const OPEN_ANSWERS = 2;

/**
 * Why there is no connection; `blocked` is one that something on the way does not let through, `absent` one for
 * which a proxy has no worker.
 *
 * @typedef {"network" | "silent" | "leaving" | "unreachable" | "absent" | "blocked" | "fault"} Loss
 *
 * @typedef {{ name: "idle" }
 *   | { name: "connecting", isReturning: boolean }
 *   | { name: "queued", ahead: number, retryAfterS: number }
 *   | { name: "live", isReturning: boolean }
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
 * @property {(atS: number) => void} onSent a packet was handed to the network: the server will count it
 * @property {(audio: import("./protocol.js").StampedAudio) => void} onAudio
 * @property {(text: string) => void} onText
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
    /** @type {{ packet: Uint8Array, atS: number }[]} */
    this._outbox = [];
    this.droppedPackets = 0;
    this._wasLive = false;
    this._attempts = 0;
    this._openAnswers = 0;
    this._troubleSinceMs = 0;
    this._heardMs = 0;
    this._pingMs = 0;
    this._pingSentMs = 0;
    this._tickMs = 0;
    this._hasOpened = false;
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
    this._troubleSinceMs = this._around.clock();
    this._connect();
  }

  /** Hang up. */
  end() {
    if (!this.isWanted) return;
    this._send({ kind: "event", type: "bye", fields: {} });
    this._letGo(CLOSE.DONE);
    this._enter({ name: "ended", reason: "us" });
  }

  /** Leave this connection for another one, at once: something about it has to change. */
  reopen() {
    if (!this.isWanted) return;
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

  /**
   * Twenty milliseconds of speech, encoded. What the network does not take in time is dropped, oldest first.
   *
   * @param {Uint8Array} packet
   * @param {number} atS when it was said; given to `onSent` once the network has it
   */
  sendAudio(packet, atS) {
    if (!this.isLive) return;
    this._outbox.push({ packet, atS });
    if (this._outbox.length > STALE_PACKETS) {
      this._outbox.shift();
      this.droppedPackets += 1;
    }
    this._drain();
  }

  /** How many packets wait for the network. */
  get waitingPackets() {
    return this._outbox.length;
  }

  /** @param {Record<string, any>} parameters */
  set(parameters) {
    if (this.isLive) this._send({ kind: "event", type: "set", fields: { parameters } });
  }

  /** Look at the time. Timers call this, and whoever is awake while timers sleep. */
  tick() {
    const nowMs = this._around.clock();
    const hasSlept = nowMs - this._tickMs > SLEPT_MS;
    this._tickMs = nowMs;
    if (!this._socket) return;
    if (hasSlept) {
      // What the server sent meanwhile may still wait to be read: ask first, judge later.
      this._heardMs = Math.max(this._heardMs, nowMs - SILENCE_LIMIT_MS / 2);
      this._pingMs = 0;
    }
    const limitMs = this._hasOpened ? SILENCE_LIMIT_MS : CONNECT_LIMIT_MS;
    if (nowMs - this._heardMs > limitMs) {
      this._letGo();
      this._lose(this._hasOpened ? "silent" : "unreachable");
    } else if (this._hasOpened && nowMs - this._pingMs >= PING_EVERY_MS) {
      this._pingMs = nowMs;
      this._pingSentMs = this._pingSentMs || nowMs;
      this._send({ kind: "ping" });
    }
  }

  // Coming and going.

  _connect() {
    this._cancel();
    const url = this._url();
    const nowMs = this._around.clock();
    this._hasOpened = false;
    this._lastError = null;
    this._outbox = [];
    this.droppedPackets = 0;
    this._heardMs = this._tickMs = nowMs;
    this._pingMs = nowMs;
    this._pingSentMs = 0;
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
    this._hasOpened = true;
    this._openAnswers = 0;
    this._heardMs = this._around.clock();
  }

  /**
   * @param {SocketLike} socket
   * @param {string} url
   * @param {{ code: number, reason: string }} close
   */
  async _closed(socket, url, close) {
    if (socket !== this._socket) return;
    const hadOpened = this._hasOpened;
    this._letGo();
    if (!hadOpened) {
      this._enter({ name: "connecting", isReturning: this._wasLive });
      const refusal = await this._around.explain(url);
      // Meanwhile the visitor may have hung up.
      if (this.state.name === "connecting" && !this._socket) this._obey(refusal);
      return;
    }
    this._judge(close.code, String(this._lastError?.fields["message"] ?? close.reason));
  }

  /**
   * What a connection that never stood means.
   *
   * @param {import("./refusal.js").Refusal | null} refusal
   */
  _obey(refusal) {
    this._openAnswers = refusal?.kind === "open" ? this._openAnswers + 1 : 0;
    switch (refusal?.kind) {
      case "never":
        this._enter({ name: "failed", message: refusal.message });
        break;
      case "full":
      case "limited":
        this._comeAgain(refusal.kind, refusal.message, refusal.retryAfterS);
        break;
      case "leaving":
      case "absent":
        this._lose(refusal.kind, refusal.retryAfterS);
        break;
      default:
        this._lose(this._openAnswers >= OPEN_ANSWERS ? "blocked" : "unreachable");
    }
  }

  /**
   * What a close of a connection that stood means.
   *
   * @param {number} code
   * @param {string} message
   */
  _judge(code, message) {
    const retryAfterS = Number(this._lastError?.fields["retry_after_s"] ?? 0);
    switch (code) {
      case CLOSE.DONE:
        this._enter({ name: "ended", reason: "server" });
        break;
      case CLOSE.LEAVING:
        this._lose("leaving");
        break;
      case CLOSE.FULL:
        this._comeAgain("full", message, retryAfterS || UNSAID_RETRY_S);
        break;
      case CLOSE.NOT_ALLOWED:
        // In the middle of a call it means that nothing came from us: this machine slept, or its audio did.
        if (retryAfterS) this._comeAgain("limited", message, retryAfterS);
        else if (this._attempts === 0 && this._wasLive) this._lose("silent");
        else this._enter({ name: "failed", message });
        break;
      case CLOSE.BAD_DATA:
        this._enter({ name: "failed", message });
        break;
      default:
        this._lose(this._lastError ? "fault" : "network");
    }
  }

  /**
   * When the server said.
   *
   * @param {"full" | "limited"} name
   * @param {string} message
   * @param {number} seconds
   */
  _comeAgain(name, message, seconds) {
    const waitMs = Math.max(1, seconds) * 1000 * (1 + 0.2 * this._around.random());
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
    const backoffMs = Math.min(FIRST_RETRY_MS * 2 ** this._attempts, LONGEST_RETRY_MS);
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
    this._outbox = [];
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
    while (socket?.readyState === OPEN) {
      const next = this._outbox[0];
      if (!next || socket.bufferedAmount > Math.max(SOCKET_BYTES, SOCKET_PACKETS * next.packet.length)) break;
      this._outbox.shift();
      socket.send(encode({ kind: "audio", data: next.packet }));
      this._attempts = 0; // not before: whoever has nothing to say is thrown out again
      this._listener.onSent(next.atS);
    }
  }

  /**
   * @param {SocketLike} socket
   * @param {unknown} data
   */
  _received(socket, data) {
    if (socket !== this._socket) return;
    this._heardMs = this._around.clock();
    if (!(data instanceof ArrayBuffer)) return; // text messages mean nothing
    try {
      this._handle(decode(new Uint8Array(data)));
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
    else if (message.kind === "ping" && this._pingSentMs) {
      this._listener.onRoundTrip(this._heardMs - this._pingSentMs);
      this._pingSentMs = 0;
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
        this._listener.onReady(fields);
        this._enter({ name: "live", isReturning });
        break;
      }
      case "interrupted":
        this._listener.onInterrupted(Number(fields["at_frame"]));
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
