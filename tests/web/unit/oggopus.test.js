// An Ogg file of Opus packets: its pages, checksums and times.
import assert from "node:assert/strict";
import { test } from "node:test";

import { OggOpusWriter } from "../../../web/static/oggopus.js";

/** @param {Uint8Array} file */
function pagesOf(file) {
  const pages = [];
  for (let at = 0; at < file.length; ) {
    const view = new DataView(file.buffer, at);
    assert.equal(Buffer.from(file.slice(at, at + 4)).toString(), "OggS");
    const count = view.getUint8(26);
    const lacing = [...file.slice(at + 27, at + 27 + count)];
    const size = 27 + count + lacing.reduce((sum, it) => sum + it, 0);
    const page = file.slice(at, at + size);
    const crc = view.getUint32(22, true);
    pages.push({ page, crc, lacing, flags: view.getUint8(5), granule: Number(view.getBigUint64(6, true)), sequence: view.getUint32(18, true) });
    at += size;
  }
  return pages;
}

/** Bit by bit, as RFC 3533 says. @param {Uint8Array} page */
function checksum(page) {
  const zeroed = page.slice();
  zeroed.fill(0, 22, 26);
  let crc = 0;
  for (const byte of zeroed) {
    crc = (crc ^ (byte << 24)) >>> 0;
    for (let bit = 0; bit < 8; bit++) crc = (crc & 0x80000000 ? (crc << 1) ^ 0x04c11db7 : crc << 1) >>> 0;
  }
  return crc;
}

/** @param {number[]} sizes */
async function written(sizes) {
  const writer = new OggOpusWriter({ channels: 2, sampleRate: 24_000, packetMs: 20 });
  for (const size of sizes) writer.add(new Uint8Array(size).fill(7));
  return pagesOf(new Uint8Array(await writer.finish().arrayBuffer()));
}

test("two headers, then a second a page, the last one marked", async () => {
  const pages = await written(Array(120).fill(160));
  assert.deepEqual(pages.map((it) => it.flags), [2, 0, 0, 0, 4]);
  assert.deepEqual(pages.map((it) => it.sequence), [0, 1, 2, 3, 4]);
  assert.deepEqual(pages.map((it) => it.granule), [0, 0, 48_000, 96_000, 115_200]);
  assert.equal(Buffer.from(pages[0]?.page.slice(28, 36) ?? []).toString(), "OpusHead");
});

test("every page has its checksum", async () => {
  for (const { page, crc } of await written([1, 254, 255, 256, 1000])) assert.equal(crc, checksum(page));
});

test("packets keep their lengths, also where a segment is full", async () => {
  const sizes = [0, 1, 254, 255, 256, 510, 1000];
  const pages = (await written(sizes)).slice(2);
  const found = [];
  let size = 0;
  for (const value of pages.flatMap((it) => it.lacing)) {
    size += value;
    if (value < 255) {
      found.push(size);
      size = 0;
    }
  }
  assert.deepEqual(found, sizes);
});
