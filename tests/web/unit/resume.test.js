// A call that goes on through another connection, on the same worker or another one.
import assert from "node:assert/strict";
import { test } from "node:test";

import { READY, World } from "./world.js";

const OFFER = { token: "AAECAwQFBgcICQoLDA0ODw", window_s: 30, replay_ms: 400 };

/** A conversation that is live and can be gone on with, whose address says so. */
function resumable() {
  const world = new World();
  world.session._url = () => "ws://server/api/chat?ext=1&resume=1";
  world.session.start();
  world.socket.opens();
  world.socket.tells("ready", { ...READY, resume: OFFER });
  for (let packet = 0; packet < 6; packet++) world.session.sendAudio(Uint8Array.of(packet), packet);
  return world;
}

test("a call whose connection breaks goes on through another, with what was said meanwhile", async () => {
  const world = resumable();
  await world.socket.ends(1006);
  assert.equal(world.session.state.name, "lost");
  world.session.sendAudio(Uint8Array.of(6), 6); // is held
  world.pass(100);
  assert.equal(world.socket.url, "ws://server/api/chat?ext=1&resume=again");
  world.socket.opens();
  const [claim] = world.socket.sent;
  assert.equal(claim?.kind === "unknown" && claim.tag, 0x13);
  world.socket.tells("resumed", { ...{ session: "s1", token: OFFER.token }, input_frame: 1, missed_frames: 0, replay_from: 0 });
  assert.deepEqual(world.session.state, { name: "live", isReturning: true, isResumed: true });
  assert.deepEqual(world.heard.filter(([what]) => what === "resumed"), [["resumed", 1]]);
  world.session.sendAudio(Uint8Array.of(7), 7);
  const audio = world.socket.sent.flatMap((message) => (message.kind === "audio" ? [...message.data] : []));
  assert.deepEqual(audio, [4, 5, 6, 7]); // from frame 1 on
});

test("a call that cannot be gone on with begins anew, at once, and only once so", async () => {
  const world = resumable();
  await world.socket.ends(1006);
  world.pass(100);
  world.socket.opens();
  world.socket.tells("resume_failed", { reason: "expired" });
  await world.socket.ends(4404);
  assert.equal(world.socket.url, "ws://server/api/chat?ext=1&resume=1");
  assert.equal(world.session.state.name, "connecting");
  world.socket.opens();
  world.socket.tells("resume_failed", { reason: "no claim was made" });
  await world.socket.ends(4404);
  assert.equal(world.states.at(-1)?.name, "lost", "a server that goes on refusing is asked later each time");
});

test("after a goodbye, or too late, nothing is gone on with", async () => {
  const world = resumable();
  world.session.end();
  world.session.start();
  assert.equal(world.socket.url, "ws://server/api/chat?ext=1&resume=1");
  const late = resumable();
  await late.socket.ends(1006);
  late.timers = [];
  late.pass(31_000);
  late.session.hurry();
  assert.equal(late.socket.url, "ws://server/api/chat?ext=1&resume=1");
});

test("a call that goes to another worker is gone on with there, at once", async () => {
  const world = resumable();
  const stateName = () => world.session.state.name;
  world.socket.tells("moved", { worker: "b 2" });
  await world.socket.ends(4307);
  assert.equal(world.socket.url, "ws://server/api/chat?ext=1&resume=again&worker=b%202");
  assert.equal(stateName(), "connecting");
  await world.socket.ends(1006); // that worker does not answer: like any other loss
  assert.equal(stateName(), "lost");
  world.pass(100);
  world.socket.opens();
  world.socket.tells("resumed", { session: "s1", token: OFFER.token, input_frame: 1, missed_frames: 0, replay_from: 0, worker: "c" });
  assert.equal(stateName(), "live");
  await world.socket.ends(1006);
  world.pass(100);
  assert.equal(world.socket.url, "ws://server/api/chat?ext=1&resume=again&worker=c");
});
