// The conversation's state machine, with sockets, time and chance in the test's hands.
import assert from "node:assert/strict";
import { test } from "node:test";

import { STALE_PACKETS } from "../../../web/static/outbox.js";
import { encode } from "../../../web/static/protocol.js";
import { CONNECT_LIMIT_MS, PING_EVERY_MS, SILENCE_LIMIT_MS } from "../../../web/static/pulse.js";
import { GIVE_UP_MS, LONGEST_RETRY_MS } from "../../../web/static/session.js";
import { READY, World } from "./world.js";

test("from nothing to a conversation and its end", () => {
  const world = new World().live();
  assert.deepEqual(world.names, ["connecting", "live"]);
  assert.equal(world.socket.binaryType, "arraybuffer");
  assert.deepEqual(world.heard, [["ready", READY]]);
  world.session.end();
  assert.deepEqual(world.socket.sent.at(-1), { kind: "event", type: "bye", fields: {} });
  assert.equal(world.socket.closedWith, 1000);
  assert.deepEqual(world.session.state, { name: "ended", reason: "us" });
  world.pass(60_000);
  assert.equal(world.sockets.length, 1);
  assert.equal(world.timers.length, 0);
});

test("the queue is told place by place", () => {
  const world = new World();
  world.session.start();
  world.socket.opens();
  for (const ahead of [2, 1, 0]) world.socket.tells("queued", { position: ahead, ahead, retry_after_s: 30 });
  world.socket.tells("ready", READY);
  assert.deepEqual(world.names, ["connecting", "queued", "queued", "queued", "live"]);
  assert.deepEqual(world.states[1], { name: "queued", ahead: 2, retryAfterS: 30 });
});

test("what the server says reaches the listener", () => {
  const world = new World().live();
  world.heard = [];
  const audio = { kind: /** @type {const} */ ("stamped_audio"), frame: 4, step_ms: 1.5, wait_ms: 0.5, data: Uint8Array.of(9) };
  world.socket.says(audio);
  world.socket.says({ kind: "text", text: " hello" });
  world.socket.tells("interrupted", { at_frame: 7 });
  world.socket.tells("stats", { late: 3 });
  world.socket.tells("draining", { deadline_s: 60 });
  world.socket.tells("heard", { text: "what" });
  world.socket.tells("tool", { name: "weather", arguments: "{}" });
  world.socket.tells("something new", {});
  world.socket.says({ kind: "unknown", tag: 99, data: Uint8Array.of(1) });
  world.socket.onmessage({ data: "text means nothing" });
  const expected = [["audio", audio], ["text", " hello"], ["interrupted", 7], ["stats", { late: 3 }], ["draining", 60],
    ["heard", "what"], ["tool", "weather({})"]];
  assert.deepEqual(world.heard, expected);
});

test("bytes that are no message end it, with words", () => {
  const world = new World().live();
  world.socket.onmessage({ data: Uint8Array.of(0x11, 1).buffer });
  assert.match(world.session.state.name === "failed" ? world.session.state.message : "", /cannot be understood/);
});

test("a lost connection comes back, later each time, and says that it is a return", () => {
  const world = new World().live();
  world.socket.ends(1006);
  const waits = [];
  for (let attempt = 0; attempt < 8; attempt++) {
    const state = world.session.state;
    assert.equal(state.name, "lost");
    const waitMs = state.name === "lost" ? state.retryAtMs - world.nowMs : 0;
    waits.push(waitMs);
    world.pass(waitMs);
    assert.deepEqual(world.session.state, { name: "connecting", isReturning: true });
    world.socket.opens();
    world.socket.ends(1006);
  }
  assert.deepEqual(waits, [500, 1000, 2000, 4000, 8000, LONGEST_RETRY_MS, LONGEST_RETRY_MS, LONGEST_RETRY_MS]);
  world.pass(LONGEST_RETRY_MS);
  world.socket.opens();
  world.socket.tells("ready", READY);
  assert.deepEqual(world.session.state, { name: "live", isReturning: true });
  world.session.sendAudio(new Uint8Array(80), 0);
  world.socket.ends(1006);
  const last = /** @type {import("../../../web/static/session.js").State} */ (world.states.at(-1));
  assert.equal(last.name === "lost" && last.retryAtMs - world.nowMs, 500);
});

test("a server that leaves, or fails, is come back to; one that is done is not", () => {
  for (const [code, reason] of /** @type {[number, string][]} */ ([[1001, "leaving"], [1011, "network"], [1006, "network"]])) {
    const world = new World().live();
    world.socket.ends(code);
    assert.equal(world.session.state.name === "lost" && world.session.state.reason, reason);
  }
  const fault = new World().live();
  fault.socket.tells("error", { code: 1011, message: "the device is lost" });
  fault.socket.ends(1011);
  assert.equal(fault.session.state.name === "lost" && fault.session.state.reason, "fault");
  const done = new World().live();
  done.socket.ends(1000);
  assert.deepEqual(done.session.state, { name: "ended", reason: "server" });
});

test("what only a person can change is told in the server's words", () => {
  for (const code of [1007, 1008]) {
    const world = new World();
    world.session.start();
    world.socket.opens();
    world.socket.tells("error", { code, message: "no audio for 60 s, the limit is 60 s" });
    world.socket.ends(code, "short");
    assert.deepEqual(world.session.state, { name: "failed", message: "no audio for 60 s, the limit is 60 s" });
    world.pass(GIVE_UP_MS);
    assert.equal(world.sockets.length, 1);
  }
});

test("who slept is let in again, but not for ever", () => {
  const world = new World().live();
  world.session.sendAudio(new Uint8Array(80), 0);
  world.socket.ends(1008, "no sign of life for 20 s");
  assert.equal(world.session.state.name === "lost" && world.session.state.reason, "silent");
  world.session.hurry();
  world.socket.opens();
  world.socket.tells("ready", READY);
  world.socket.ends(1008, "no first audio for 15 s");
  assert.deepEqual(world.session.state, { name: "failed", message: "no first audio for 15 s" });
});

test("a connection is left for another one", () => {
  const world = new World().live();
  const old = world.socket;
  world.session.reopen();
  assert.equal(old.closedWith, 1000);
  assert.deepEqual(world.session.state, { name: "connecting", isReturning: true });
});

test("a full server is asked again when it said", () => {
  const world = new World();
  world.session.start();
  world.socket.opens();
  world.socket.tells("error", { code: 1013, message: "full: 2 of 2", retry_after_s: 20 });
  world.socket.ends(1013);
  const state = world.session.state;
  assert.ok(state.name === "full" && state.message === "full: 2 of 2" && state.retryAtMs - world.nowMs === 22_000);
  world.pass(21_999);
  assert.equal(world.sockets.length, 1);
  world.pass(1);
  assert.equal(world.sockets.length, 2);
  assert.deepEqual(world.session.state, { name: "connecting", isReturning: false });
});

test("a refused upgrade is explained, an unreachable server tried again", async () => {
  const refused = new World({ refusal: { kind: "never", message: "no model 'x' here" } });
  refused.session.start();
  await refused.socket.ends(1006);
  assert.deepEqual(refused.session.state, { name: "failed", message: "no model 'x' here" });
  const away = new World();
  away.session.start();
  await away.socket.ends(1006);
  assert.equal(away.session.state.name === "lost" && away.session.state.reason, "unreachable");
  const gone = new World();
  gone.session.start();
  const ending = gone.socket.ends(1006);
  gone.session.end();
  await ending;
  assert.equal(gone.session.state.name, "ended");
});

/** @param {World} world */
function loss(world) {
  return world.session.state.name === "lost" && world.session.state.reason;
}

test("a full server is asked at once when the visitor wants it, and only then", () => {
  const world = new World();
  world.session.start();
  world.socket.opens();
  world.socket.tells("error", { code: 1013, message: "full: 2 of 2", retry_after_s: 20 });
  world.socket.ends(1013);
  const before = world.sockets.length;
  world.session.hurry(); // the page is looked at: no reason to come before the server said
  assert.equal(world.sockets.length, before);
  world.session.tryNow();
  assert.equal(world.sockets.length, before + 1);
  assert.equal(world.session.state.name, "connecting");
  world.session.tryNow(); // once is enough
  assert.equal(world.sockets.length, before + 1);
});

test("what refuses WebSockets alone does it twice: a full server may just have got room", async () => {
  const world = new World({ refusal: { kind: "open" } });
  world.session.start();
  await world.socket.ends(1006);
  assert.equal(loss(world), "unreachable");
  world.pass(1000);
  assert.equal(world.sockets.length, 2);
  await world.socket.ends(1006);
  assert.equal(loss(world), "blocked");
  world.pass(2000);
  world.socket.opens();
  world.socket.ends(1006);
  assert.equal(loss(world), "network");
  world.pass(4000);
  await world.socket.ends(1006);
  assert.equal(loss(world), "unreachable"); // the first of a row again
});

test("a worker that leaves and one that is not there are come back to, no sooner than was said", async () => {
  for (const kind of /** @type {const} */ (["leaving", "absent"])) {
    const world = new World({ refusal: { kind, retryAfterS: 5 } });
    world.session.start();
    await world.socket.ends(1006);
    assert.deepEqual(world.session.state, { name: "lost", reason: kind, retryAtMs: world.nowMs + 5500 });
    world.pass(5499);
    assert.equal(world.sockets.length, 1);
    world.pass(1);
    assert.equal(world.sockets.length, 2);
  }
});

test("who has as many calls as one may is let in when another has ended", async () => {
  const said = "the key 'alice' has 1 of 1 sessions";
  const refused = new World({ refusal: { kind: "limited", message: said, retryAfterS: 20 } });
  refused.session.start();
  await refused.socket.ends(1006);
  const closed = new World();
  closed.session.start();
  closed.socket.opens();
  closed.socket.tells("error", { code: 1008, message: said, retry_after_s: 20 });
  await closed.socket.ends(1008);
  for (const world of [refused, closed]) {
    const state = world.session.state;
    assert.deepEqual(state, { name: "limited", message: said, retryAtMs: world.nowMs + 22_000 });
    world.pass(22_000);
    assert.equal(world.sockets.length, 2);
  }
});

test("a server that cannot be reached for ten minutes is given up", async () => {
  const world = new World();
  world.session.start();
  for (let round = 0; round < 200 && world.session.state.name !== "failed"; round++) {
    await world.socket.ends(1006);
    world.pass(LONGEST_RETRY_MS);
  }
  assert.equal(world.session.state.name, "failed");
  world.session.start();
  assert.equal(world.session.state.name, "connecting");
});

test("who slept through ten minutes of trouble has not been trying for ten minutes", async () => {
  const world = new World();
  world.session.start();
  await world.socket.ends(1006);
  world.sleep(GIVE_UP_MS + 1);
  world.session.hurry();
  await world.socket.ends(1006);
  assert.equal(world.session.state.name, "lost");
});

test("pings go out, answers are timed, and eight seconds of silence are a loss", () => {
  const world = new World().live();
  world.pass(PING_EVERY_MS);
  assert.deepEqual(world.socket.sent, [{ kind: "ping" }]);
  world.nowMs += 30;
  world.socket.says({ kind: "ping" });
  assert.deepEqual(world.heard.at(-1), ["roundTrip", 30]);
  world.pass(SILENCE_LIMIT_MS - 500);
  assert.equal(world.session.state.name, "live");
  assert.ok(world.socket.sent.length >= 4);
  const socket = world.socket;
  world.pass(1000);
  assert.equal(socket.readyState, 3);
  assert.ok(world.states.some((it) => it.name === "lost" && it.reason === "silent"));
});

test("a connection that does not open is given up", () => {
  const world = new World();
  world.session.start();
  world.pass(CONNECT_LIMIT_MS + 600);
  assert.ok(world.states.some((it) => it.name === "lost" && it.reason === "unreachable"));
});

test("after a sleep the server gets a chance to answer first", () => {
  const world = new World().live();
  world.sleep(60_000);
  world.pass(500);
  assert.equal(world.session.state.name, "live");
  assert.deepEqual(world.socket.sent.at(-1), { kind: "ping" });
  world.socket.says({ kind: "ping" });
  world.pass(5000);
  assert.equal(world.session.state.name, "live");
  const dead = new World().live();
  dead.sleep(60_000);
  dead.pass(SILENCE_LIMIT_MS / 2 + 1000);
  assert.ok(dead.states.some((it) => it.name === "lost"));
});

test("who comes back to the page, or to the network, does not wait for the next try", () => {
  const world = new World().live();
  for (let round = 0; round < 5; round++) {
    world.socket.ends(1006);
    world.session.hurry();
    assert.equal(world.session.state.name, "connecting");
    world.socket.opens();
  }
  assert.equal(world.sockets.length, 6);
});

test("a network that has stopped costs what is older than 400 ms", () => {
  const world = new World().live();
  const packet = /** @param {number} index */ (index) => new Uint8Array(80).fill(index);
  world.session.sendAudio(packet(0), 0);
  assert.deepEqual(world.heard.at(-1), ["sent", 0]);
  world.socket.bufferedAmount = 10_000;
  for (let index = 1; index <= 50; index++) world.session.sendAudio(packet(index), index);
  assert.deepEqual(world.heard.at(-1), ["sent", 0]);
  assert.equal(world.session.droppedPackets, 50 - STALE_PACKETS);
  world.socket.bufferedAmount = 0;
  world.session.sendAudio(packet(51), 51);
  assert.deepEqual(world.heard.at(-1), ["sent", 51]);
  const audio = world.socket.sent.flatMap((it) => (it.kind === "audio" ? [it.data[0]] : []));
  assert.deepEqual(audio, [0, ...Array.from({ length: STALE_PACKETS }, (_, index) => 52 - STALE_PACKETS + index)]);
});

test("nothing is sent before there is somebody to hear it", () => {
  const world = new World();
  world.session.set({ text_topk: 10 });
  world.session.sendAudio(new Uint8Array(1), 0);
  world.session.start();
  world.socket.opens();
  world.session.sendAudio(new Uint8Array(1), 0);
  assert.deepEqual(world.socket.sent, []);
  world.socket.tells("ready", READY);
  world.session.set({ text_topk: 10 });
  assert.deepEqual(world.socket.sent, [{ kind: "event", type: "set", fields: { parameters: { text_topk: 10 } } }]);
});

test("an old socket's last words change nothing", () => {
  const world = new World().live();
  const old = world.socket;
  world.session.end();
  world.session.start();
  old.onmessage?.({ data: encode({ kind: "text", text: "late" }).buffer });
  old.onclose?.({ code: 1006, reason: "" });
  assert.deepEqual(world.session.state, { name: "connecting", isReturning: false });
});
