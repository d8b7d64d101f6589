// A session's surroundings in a test's hands: sockets, timers, the clock and chance.
import { decode, encode } from "../../../web/static/protocol.js";
import { Session } from "../../../web/static/session.js";

export const READY = { session: "s1", model: "echo", sample_rate: 24_000, frame_samples: 1920, slots: 2, parameters: {} };

class FakeSocket {
  /** @param {string} url */
  constructor(url) {
    this.url = url;
    this.binaryType = "blob";
    this.readyState = 0;
    this.bufferedAmount = 0;
    /** @type {import("../../../web/static/protocol.js").Message[]} */
    this.sent = [];
    /** @type {number | undefined | null} */
    this.closedWith = null;
    /** @type {any} */ this.onopen = null;
    /** @type {any} */ this.onmessage = null;
    /** @type {any} */ this.onclose = null;
    /** @type {any} */ this.onerror = null;
  }

  /** @param {Uint8Array} data */
  send(data) {
    this.sent.push(decode(data));
  }

  /** @param {number} [code] */
  close(code) {
    this.closedWith = code;
    this.readyState = 3;
  }

  opens() {
    this.readyState = 1;
    this.onopen();
  }

  /** @param {import("../../../web/static/protocol.js").Message} message */
  says(message) {
    const bytes = encode(message);
    this.onmessage?.({ data: bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength) });
  }

  /** @param {string} type @param {Record<string, any>} fields */
  tells(type, fields) {
    this.says({ kind: "event", type, fields });
  }

  /** @param {number} code @param {string} reason */
  ends(code, reason = "") {
    this.readyState = 3;
    return this.onclose?.({ code, reason });
  }
}

/** A session in a world of its own. */
export class World {
  /** @param {{ refusal?: import("../../../web/static/refusal.js").Refusal | null }} options */
  constructor({ refusal = null } = {}) {
    this.nowMs = 1000;
    /** @type {{ dueMs: number, then: () => void }[]} */
    this.timers = [];
    /** @type {FakeSocket[]} */
    this.sockets = [];
    /** @type {import("../../../web/static/session.js").State[]} */
    this.states = [];
    /** @type {[string, any][]} */
    this.heard = [];
    const note = /** @param {string} what */ (what) => /** @param {any} it */ (it) => void this.heard.push([what, it]);
    this.session = new Session(
      () => `ws://server/${this.sockets.length}`,
      {
        open: (url) => {
          const socket = new FakeSocket(url);
          this.sockets.push(socket);
          return socket;
        },
        clock: () => this.nowMs,
        after: (ms, then) => {
          const timer = { dueMs: this.nowMs + ms, then };
          this.timers.push(timer);
          return () => void (this.timers = this.timers.filter((it) => it !== timer));
        },
        random: () => 0.5,
        explain: async () => refusal,
      },
      {
        onState: (state) => this.states.push(state),
        onReady: note("ready"),
        onResumed: note("resumed"),
        onSent: note("sent"),
        onAudio: note("audio"),
        onText: note("text"),
        onWordHeard: note("heard"),
        onTool: note("tool"),
        onInterrupted: note("interrupted"),
        onStats: note("stats"),
        onDraining: note("draining"),
        onRoundTrip: note("roundTrip"),
      },
    );
  }

  get socket() {
    return /** @type {FakeSocket} */ (this.sockets.at(-1));
  }

  /** @param {number} ms */
  pass(ms) {
    const endMs = this.nowMs + ms;
    for (;;) {
      const due = this.timers.filter((it) => it.dueMs <= endMs).sort((a, b) => a.dueMs - b.dueMs)[0];
      if (!due) break;
      this.nowMs = Math.max(this.nowMs, due.dueMs);
      this.timers = this.timers.filter((it) => it !== due);
      due.then();
    }
    this.nowMs = endMs;
  }

  /** Sleep: time passes and no timer runs until the end. @param {number} ms */
  sleep(ms) {
    this.nowMs += ms;
  }

  live() {
    this.session.start();
    this.socket.opens();
    this.socket.says({ kind: "handshake", protocol_version: 0, model_version: 0 });
    this.socket.tells("ready", READY);
    return this;
  }

  get names() {
    return this.states.map((it) => it.name);
  }
}
