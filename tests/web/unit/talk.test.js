// Leaving the view of a conversation ends the call, at whatever stage it is.
import assert from "node:assert/strict";
import { test } from "node:test";

import { Talk } from "../../../web/static/talk.js";

for (const [name, isWanted, ends] of /** @type {const} */ ([["idle", false, 1], ["live", true, 1], ["ended", false, 0]])) {
  test(`a call that is ${name} when the view is left`, async () => {
    let ended = 0;
    const talk = Object.create(Talk.prototype);
    talk._call = { session: { state: { name }, isWanted }, end: async () => void (ended += 1) };
    talk._over = () => {};
    await talk.leave();
    assert.equal(ended, ends);
    assert.equal(talk._call === null, name === "idle");
  });
}
