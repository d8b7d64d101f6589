// A call on devices and codecs made of nothing: what happens when one of them fails.
import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";

import { Call } from "../../../web/static/call.js";
import { decode, encode } from "../../../web/static/protocol.js";

const READY = { session: "s1", model: "echo", sample_rate: 24_000, frame_samples: 1920, slots: 2, parameters: {} };

/** What a test puts in the browser's place, and what is to be put back. @type {Map<string, PropertyDescriptor | undefined>} */
const replaced = new Map();

/** @param {string} name @param {unknown} value */
function pretend(name, value) {
  if (!replaced.has(name)) replaced.set(name, Object.getOwnPropertyDescriptor(globalThis, name));
  Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
}

/** A microphone's stream. */
class Stream {
  constructor() {
    const track = { isLive: true, onended: null, getSettings: () => ({}), stop: () => void (track.isLive = false) };
    /** @type {any} */
    this.track = track;
  }

  getTracks() {
    return [this.track];
  }

  getAudioTracks() {
    return [this.track];
  }
}

/** Everything that a call touches. */
class World {
  constructor() {
    /** @type {Stream[]} */
    this.streams = [];
    this.hasMicrophone = true;
    /** @type {any[]} */
    this.sockets = [];
    /** @type {string[]} */
    this.news = [];
    /** @type {any[]} */
    this.pushed = [];
    /** @type {any} */
    this.node = null;
    /** @type {any} */
    this.context = null;
    /** @type {any[]} */
    this.codecs = [];
    this._devices();
    this._codecs();
  }

  _devices() {
    const world = this;
    pretend("navigator", {
      mediaDevices: {
        getUserMedia: async () => {
          if (!world.hasMicrophone) throw Object.assign(new Error("gone"), { name: "NotFoundError" });
          const stream = new Stream();
          world.streams.push(stream);
          return stream;
        },
      },
    });
    pretend("AudioContext", function () {
      world.context = this;
      Object.assign(this, { state: "running", sampleRate: 24_000, destination: {}, onstatechange: null });
      this.audioWorklet = { addModule: async () => {} };
      this.resume = async () => {};
      this.close = async () => void (this.state = "closed");
      this.createMediaStreamSource = () => ({ connect: () => {}, disconnect: () => {} });
    });
    pretend("AudioWorkletNode", function () {
      world.node = this;
      this.connect = () => {};
      this.port = { onmessage: null, postMessage: (/** @type {any} */ message) => world.pushed.push(message) };
    });
  }

  _codecs() {
    const world = this;
    const codec = (/** @type {string} */ kind) =>
      Object.assign(
        function (/** @type {any} */ given) {
          Object.assign(this, { kind, given, state: "unconfigured" });
          world.codecs.push(this);
          this.configure = () => void (this.state = "configured");
          this.close = () => void (this.state = "closed");
          this.encode = () => given.output({ byteLength: 3, copyTo: (/** @type {Uint8Array} */ out) => out.set([7, 7, 7]) });
          this.decode = () => {};
        },
        { isConfigSupported: async () => ({ supported: true }) },
      );
    pretend("AudioEncoder", codec("encoder"));
    pretend("AudioDecoder", codec("decoder"));
    pretend("AudioData", function () {
      this.close = () => {};
    });
    pretend("EncodedAudioChunk", function () {});
    pretend("console", { ...console, warn: () => {} });
  }

  /** @param {string} format */
  call(format) {
    const socketOf = (/** @type {string} */ url) => {
      const socket = { url, readyState: 1, bufferedAmount: 0, sent: /** @type {any[]} */ ([]), closedWith: null };
      const fake = /** @type {any} */ (Object.assign(socket, { onopen: null, onmessage: null, onclose: null, onerror: null }));
      fake.send = (/** @type {Uint8Array} */ data) => socket.sent.push(decode(data));
      fake.close = (/** @type {any} */ code) => void (socket.closedWith = code);
      this.sockets.push(fake);
      return fake;
    };
    return new Call(
      { url: (chosen) => `ws://server/${chosen}`, format, deviceId: "", clip: null, prepared: Promise.resolve() },
      { open: socketOf, clock: () => 0, after: () => () => {}, random: () => 0.5, explain: async () => null },
      {
        onState: () => {},
        onReady: () => {},
        onText: () => {},
        onWordHeard: () => {},
        onTool: () => {},
        onLevels: () => {},
        onSaid: () => {},
        onQuestion: () => {},
        onDraining: () => {},
        onDevices: (news) => this.news.push(news),
      },
    );
  }

  get socket() {
    return this.sockets.at(-1);
  }

  /** @param {import("../../../web/static/protocol.js").Message} message */
  tell(message) {
    this.socket.onmessage({ data: encode(message).slice().buffer });
  }

  /** The server lets us in. */
  admit() {
    this.socket.onopen();
    this.tell({ kind: "event", type: "ready", fields: READY });
  }

  /** Twenty milliseconds go through the worklet. @param {number} level @param {number} gaps of its playback buffer so far @param {number} droppedMs */
  block(level, gaps = 0, droppedMs = 100) {
    const said = new Float32Array(480).fill(level);
    const numbers = { depthMs: 0, leadMs: 40, gaps, gapMs: 0, droppedMs };
    this.node.port.onmessage({ data: { said, heard: new Float32Array(480), atS: 0, begun: [], ...numbers } });
  }

  get audio() {
    return this.socket.sent.filter((/** @type {any} */ it) => it.kind === "audio").map((/** @type {any} */ it) => it.data);
  }
}

/** @type {World} */
let world;
beforeEach(() => void (world = new World()));
afterEach(() => {
  for (const [name, before] of replaced) {
    if (before) Object.defineProperty(globalThis, name, before);
    else Reflect.deleteProperty(globalThis, name);
  }
  replaced.clear();
});

/** What has been promised comes true. */
const settle = () => new Promise((resolve) => setTimeout(resolve, 0));

for (const kind of ["encoder", "decoder"]) {
  test(`an Opus ${kind} that fails in the middle of a call is gone on without, in PCM`, async () => {
    const call = world.call("auto");
    await call.start();
    world.admit();
    world.block(0.5);
    assert.equal(world.socket.url, "ws://server/opus");
    assert.deepEqual([...world.audio[0]], [7, 7, 7]);
    world.codecs.find((it) => it.kind === kind).given.error(new Error("no more"));
    assert.equal(world.sockets.length, 2);
    assert.equal(world.sockets[0].closedWith, 1000);
    assert.equal(world.socket.url, "ws://server/pcm_s16le");
    world.admit();
    assert.ok(world.codecs.every((it) => it.state === "closed"));
    world.codecs[0].given.error(new Error("again"));
    assert.equal(world.sockets.length, 2, "what is over cannot fail any more");
    world.block(0.5);
    assert.deepEqual([world.audio[0].length, world.audio[0][1]], [960, 0x40]);
    world.tell({ kind: "stamped_audio", frame: 0, step_ms: 1, wait_ms: 1, data: Uint8Array.of(0, 0x40, 0, 0x40) });
    const heard = world.pushed.filter((it) => it.type === "push");
    assert.deepEqual([...heard[0].samples], [0.5, 0.5]);
    await call.end();
  });
}

test("who asks for Opus where there is none speaks PCM, and is not left waiting", async () => {
  pretend("AudioEncoder", undefined);
  const call = world.call("opus");
  await call.start();
  assert.equal(world.socket.url, "ws://server/pcm_s16le");
  world.admit();
  assert.equal(call.session.state.name, "live");
  await call.end();
});

test("an interruption reaches the playback at once, and so does the end of a connection", async () => {
  const call = world.call("pcm_s16le");
  await call.start();
  world.admit();
  world.tell({ kind: "event", type: "interrupted", fields: { at_frame: 9 } });
  assert.deepEqual(world.pushed.at(-1), { type: "flush", atFrame: 9 });
  world.socket.onclose({ code: 1011, reason: "" });
  await settle();
  assert.deepEqual(world.pushed.at(-1), { type: "flush", atFrame: Infinity });
  await call.end();
});

test("muted sends silence, and as much of it", async () => {
  const call = world.call("pcm_s16le");
  await call.start();
  world.admit();
  world.block(0.5);
  call.isMuted = true;
  world.block(0.5);
  assert.equal(world.audio.length, 2);
  assert.equal(world.audio[1].length, 960);
  assert.ok(world.audio[1].every((/** @type {number} */ it) => it === 0));
  await call.end();
});

test("a microphone that goes is said once, and the next one is taken by itself", async () => {
  const call = world.call("pcm_s16le");
  await call.start();
  world.admit();
  world.hasMicrophone = false;
  world.streams[0]?.track.onended();
  await settle();
  call.devicesChanged();
  await settle();
  assert.deepEqual(world.news, ["microphone"]);
  world.hasMicrophone = true;
  call.devicesChanged();
  await settle();
  assert.deepEqual(world.news, ["microphone", "heard"]);
  assert.equal(world.streams.length, 2);
  call.devicesChanged();
  await settle();
  assert.equal(world.streams.length, 2, "a microphone that works is left alone");
  await call.end();
  assert.ok(world.streams.every((it) => !it.track.isLive));
});

test("devices that cannot be used are given back", async () => {
  const call = world.call("pcm_s16le");
  const starting = call.start();
  const refuse = () => {
    throw new Error("another rate");
  };
  for (let turn = 0; turn < 20 && !world.context; turn++) await Promise.resolve();
  world.context.createMediaStreamSource = refuse;
  await assert.rejects(starting, /another rate/);
  assert.equal(world.context.state, "closed");
  assert.equal(world.streams[0]?.track.isLive, false);
  assert.equal(world.sockets.length, 0);
});

test("what was cut from the playback counts as lost", async () => {
  const call = world.call("pcm_s16le");
  await call.start();
  world.admit();
  world.block(0);
  world.tell({ kind: "event", type: "stats", fields: { lost: 1, dropped: 2, dropped_out: 3 } });
  assert.equal(call.numbers().lost, 6 + 2);
  await call.end();
});

test("the gaps of a call are those of all its conversations", async () => {
  const call = world.call("pcm_s16le");
  await call.start();
  world.admit();
  for (const gaps of [0, 1, 3]) world.block(0, gaps);
  world.socket.onclose({ code: 1011, reason: "" });
  call.hurry();
  world.block(0, 3); // on its way when the buffer is made anew
  for (const gaps of [0, 0, 1, 2]) world.block(0, gaps);
  assert.equal(call.numbers().gaps, 5);
  await call.end();
});

test("the end of a call counts no gap and loses nothing", async () => {
  const call = world.call("pcm_s16le");
  await call.start();
  world.admit();
  world.block(0, 1);
  const { gaps, lost } = call.numbers();
  assert.equal(gaps, 1);
  const { onmessage } = world.node.port;
  await call.end();
  world.node.port.onmessage = onmessage;
  world.block(0, 2); // on its way when the call ended
  assert.deepEqual([call.numbers().gaps, call.numbers().lost], [gaps, lost]);
});

test("what was lost never falls, however often the call comes back", async () => {
  const call = world.call("pcm_s16le");
  await call.start();
  const stats = (/** @type {number} */ lost) => world.tell({ kind: "event", type: "stats", fields: { lost, late: lost } });
  let before = 0;
  const lost = (/** @type {number} */ now) => {
    assert.ok(before <= now);
    before = now;
    return now;
  };
  world.admit();
  world.block(0, 0, 80);
  stats(3);
  assert.equal(lost(call.numbers().lost), 3 + 1);
  for (let packet = 0; packet < 28; packet++) {
    world.socket.bufferedAmount = 1e9; // the network takes nothing
    world.block(0, 0, 80);
  }
  assert.equal(lost(call.numbers().lost), 3 + 1 + 2); // 8 packets of 20 ms
  for (const conversation of [1, 2]) {
    world.socket.onclose({ code: 1011, reason: "" });
    call.hurry();
    world.admit();
    assert.ok(lost(call.numbers().lost) >= 5 + conversation);
    for (const droppedMs of [0, 0, 80]) world.block(0, 0, droppedMs);
    stats(1);
    assert.equal(lost(call.numbers().lost), 6 + 2 * conversation);
    assert.equal(call.numbers().late, 3 + conversation);
  }
  await call.end();
});

test("a microphone that joins a call leaves it muted", async () => {
  const call = world.call("pcm_s16le");
  await call.start();
  world.admit();
  call.isMuted = true;
  await call.openMicrophone();
  assert.equal(call.isMuted, true);
  await call.end();
});
