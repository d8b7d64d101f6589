// A call by WebRTC in a socket's place, on connections and sound made of nothing.
import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import { toPcm } from "../../../web/static/codecs.js";
import { byPeer } from "../../../web/static/peer.js";
import { encode } from "../../../web/static/protocol.js";

const ADDRESS = "ws://server/api/chat?ext=1&resume=1&auth_id=k";

/** What was asked of the server. @type {{ url: string, method: string }[]} */
let asked = [];
/** The last connection. @type {any} */
let connection;
/** Answers the offer. @type {(answer: Response) => void} */
let answer;
/** When each piece of speech is played into the track. @type {number[]} */
let starts = [];

const turn = () => new Promise((resolve) => setTimeout(resolve));

class Connection {
  constructor() {
    connection = this;
    this.localDescription = { sdp: "v=0" };
    this.connectionState = "new";
    /** @type {any} */
    this.channel = { readyState: "connecting", sent: /** @type {Uint8Array[]} */ ([]) };
    this.channel.send = (/** @type {Uint8Array} */ data) => this.channel.sent.push(data);
    this.isClosed = false;
    this.remote = "";
  }

  createDataChannel() {
    return this.channel;
  }

  addTrack() {}

  async setLocalDescription() {}

  /** @param {{ sdp: string }} answered */
  async setRemoteDescription({ sdp }) {
    this.remote = sdp;
  }

  async getStats() {
    return new Map();
  }

  close() {
    this.isClosed = true;
  }
}

/** @type {any} */
const sound = {
  context: {
    currentTime: 10,
    createMediaStreamDestination: () => ({ stream: { getAudioTracks: () => [{}] } }),
    createBuffer: (/** @type {number} */ _channels, /** @type {number} */ length, /** @type {number} */ rate) => ({
      duration: length / rate,
      getChannelData: () => new Float32Array(length),
    }),
    createBufferSource: () => ({ connect: () => {}, start: (/** @type {number} */ atS) => starts.push(atS) }),
  },
};

beforeEach(() => {
  [asked, starts] = [[], []];
  Object.assign(globalThis, {
    RTCPeerConnection: Connection,
    fetch: (/** @type {URL} */ url, /** @type {{ method: string }} */ { method }) => {
      asked.push({ url: String(url), method });
      return method === "POST" ? new Promise((resolve) => (answer = resolve)) : Promise.resolve(new Response());
    },
  });
});

const accepted = () => new Response("v=0 answer", { status: 201, headers: { Location: "/api/chat/rtc_1" } });

/** A call whose channel is open. */
async function opened() {
  const socket = byPeer(sound).open(ADDRESS);
  const closes = /** @type {number[]} */ ([]);
  socket.onclose = (/** @type {{ code: number }} */ { code }) => closes.push(code);
  await turn();
  answer(accepted());
  await turn();
  connection.channel.onopen();
  return { socket, closes };
}

test("an offer goes to the address without resumption, and speech to the track", async () => {
  const { socket } = await opened();
  assert.deepEqual(asked, [{ url: "http://server/api/chat?ext=1&auth_id=k", method: "POST" }]);
  assert.equal(connection.remote, "v=0 answer");
  assert.equal(socket.readyState, 1);
  const [audio, ping] = [encode({ kind: "audio", data: toPcm(new Float32Array(480)) }), encode({ kind: "ping" })];
  for (const data of [audio, ping, audio]) socket.send(data);
  assert.deepEqual(connection.channel.sent, [ping]);
  assert.deepEqual(starts.map((it) => Math.round(1000 * (it - 10))), [40, 60]);
  sound.context.currentTime = 11; // this thread stood still: what is late is not played all at once
  socket.send(audio);
  assert.equal(Math.round(1000 * ((starts.at(-1) ?? 0) - 11)), 40);
  sound.context.currentTime = 10;
  socket.close();
});

test("an end has the code of the server's last error, or is one asked for", async () => {
  const plain = await opened();
  connection.channel.onclose();
  assert.deepEqual(plain.closes, [1000]);
  const failed = await opened();
  const error = encode({ kind: "event", type: "error", fields: { code: 1012, message: "the server is shutting down" } });
  connection.channel.onmessage({ data: error.buffer });
  connection.channel.onclose();
  assert.deepEqual(failed.closes, [1012]);
  const broken = await opened();
  connection.connectionState = "failed";
  connection.onconnectionstatechange();
  assert.deepEqual(broken.closes, [1006]);
  assert.ok(connection.isClosed);
});

test("a refused offer says why, and one given up meanwhile frees its place", async () => {
  const around = byPeer(sound);
  const socket = around.open(ADDRESS);
  const closes = /** @type {number[]} */ ([]);
  socket.onclose = (/** @type {{ code: number }} */ { code }) => closes.push(code);
  await turn();
  const headers = { "Retry-After": "7", "Content-Type": "application/json" };
  answer(new Response(JSON.stringify({ error: "1 of 1 calls by WebRTC", code: 1013 }), { status: 503, headers }));
  await turn();
  assert.deepEqual(closes, [1006]);
  assert.deepEqual(await around.explain(ADDRESS), { kind: "full", message: "1 of 1 calls by WebRTC", retryAfterS: 7 });
  const given = around.open(ADDRESS);
  await turn();
  given.close();
  answer(accepted());
  await turn();
  assert.deepEqual(asked.at(-1), { url: "http://server/api/chat/rtc_1?ext=1&auth_id=k", method: "DELETE" });
});

test("a page that stood still is not behind for the rest of the call", async () => {
  const { socket } = await opened();
  const audio = encode({ kind: "audio", data: toPcm(new Float32Array(480)) });
  for (let block = 0; block < 100; block++) socket.send(audio); // two seconds of speech at once
  for (let block = 1; block <= 100; block++) {
    sound.context.currentTime = 10 + 0.02 * block;
    socket.send(audio);
  }
  const leadS = (starts.at(-1) ?? 0) - sound.context.currentTime;
  assert.ok(leadS >= 0 && leadS < 0.221, `${leadS} s`);
  assert.ok(starts.every((atS, place) => place === 0 || Math.abs(atS - (starts[place - 1] ?? 0) - 0.02) < 1e-9));
  sound.context.currentTime = 10;
  socket.close();
});
