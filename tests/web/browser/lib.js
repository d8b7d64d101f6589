// What the browser tests share: a server process, a Chromium with a microphone made of a recording, patience.
import { spawn } from "node:child_process";
import { access, mkdtemp, readFile, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { chromium, firefox } from "playwright-core";

/** Nothing is waited for longer: reached only when something is broken, or the machine very busy. */
export const PATIENCE_MS = 180_000;

/** @param {string} name */
function given(name) {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set: run these tests through pytest tests/web`);
  return value;
}

/** The recording that the microphone hears, over and over: WAV, 24 kHz, mono. */
export const clipPath = () => given("ANTIPHON_TEST_CLIP");

/** A port of this machine that is free, and that connections are not given. @returns {Promise<number>} */
export function freePort() {
  const port = Number(given("ANTIPHON_TEST_FIRST_PORT")) + Math.floor(Math.random() * Number(given("ANTIPHON_TEST_PORTS")));
  return new Promise((resolve) => {
    const server = createServer();
    server.once("error", () => resolve(freePort()));
    server.listen(port, "127.0.0.1", () => server.close(() => resolve(port)));
  });
}

/**
 * Run a Python module of the project to its end.
 *
 * @param {...string} words
 * @returns {Promise<string>} what it printed
 */
export function python(...words) {
  return new Promise((resolve, reject) => {
    const child = spawn(given("ANTIPHON_TEST_PYTHON"), words, { stdio: ["ignore", "pipe", "inherit"] });
    let output = "";
    child.stdout.on("data", (data) => (output += data));
    child.on("exit", (code) => (code === 0 ? resolve(output) : reject(new Error(`${words.join(" ")}: exit ${code}`))));
  });
}

/** `antiphon serve` as a process of its own, which can be ended and started again on the same port. */
export class Server {
  /** @param {number} port @param {string[]} options */
  constructor(port, options) {
    this.port = port;
    this.url = `http://127.0.0.1:${port}`;
    this._options = options;
    /** @type {import("node:child_process").ChildProcess | null} */
    this._child = null;
    this._log = "";
  }

  /** @param {...string} options */
  static async start(...options) {
    const server = new Server(await freePort(), options);
    await server.start();
    return server;
  }

  async start() {
    const command = ["-c", "from antiphon.cli import main; main()", "serve", "--port", String(this.port)];
    const words = [...command, ...given("ANTIPHON_TEST_CALM").split(" "), ...this._options];
    const child = spawn(given("ANTIPHON_TEST_PYTHON"), words, { stdio: ["ignore", "pipe", "pipe"] });
    this._child = child;
    for (const stream of [child.stdout, child.stderr]) stream.on("data", (data) => (this._log += data));
    const isUp = async () => {
      if (child.exitCode !== null) throw new Error(`the server ended:\n${this._log}`);
      return fetch(`${this.url}/healthz`).then((answer) => answer.ok, () => false);
    };
    await eventually("the server is up", isUp);
  }

  /** What it has printed and logged. */
  get log() {
    return this._log;
  }

  /** Stand still, or go on, as a machine without power or network does. @param {boolean} isFrozen */
  freeze(isFrozen) {
    this._child?.kill(isFrozen ? "SIGSTOP" : "SIGCONT");
  }

  /** @param {NodeJS.Signals} signal */
  async stop(signal = "SIGKILL") {
    const child = this._child;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const gone = new Promise((resolve) => child.once("exit", resolve));
    child.kill(signal);
    await gone;
  }
}

/** A browser with a fake microphone. @param {...string} more arguments */
export function openBrowser(...more) {
  return chromium.launch({
    executablePath: process.env["ANTIPHON_TEST_CHROMIUM"] ?? "/usr/bin/chromium",
    timeout: PATIENCE_MS,
    args: [
      ...["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"],
      ...["--disable-component-update", "--disable-sync", "--use-fake-device-for-media-stream"],
      ...["--use-fake-ui-for-media-stream", `--use-file-for-fake-audio-capture=${clipPath()}`, ...more],
    ],
  });
}

/** Firefox as its distribution ships it, with a microphone that hums and a speaker that plays to nothing. */
export async function openFirefox() {
  const sound = await SoundServer.start();
  const browser = await firefox.launch({
    channel: "moz-firefox", // by WebDriver BiDi; without a channel only a patched build is driven
    executablePath: given("ANTIPHON_TEST_FIREFOX"),
    timeout: PATIENCE_MS,
    env: { ...process.env, PULSE_SERVER: sound.address },
    firefoxUserPrefs: {
      "media.navigator.streams.fake": true,
      "media.navigator.permission.disabled": true,
      "media.autoplay.default": 0,
      // PulseAudio through ALSA: Firefox's own way to it now and then waits for itself, and its page with it.
      "media.cubeb.backend": "alsa",
    },
  });
  browser.on("disconnected", () => sound.stop());
  return browser;
}

/** A PulseAudio whose speaker plays to nothing at the pace of one: Firefox plays nothing without a device. */
class SoundServer {
  /** @param {import("node:child_process").ChildProcess} child @param {string} folder */
  constructor(child, folder) {
    this._child = child;
    this._folder = folder;
    this.address = `unix:${folder}/native`;
  }

  static async start() {
    const folder = await mkdtemp(join(tmpdir(), "antiphon-sound-"));
    const loads = ["module-null-sink", `module-native-protocol-unix auth-anonymous=1 socket=${folder}/native`];
    const words = ["-n", "--daemonize=no", "--exit-idle-time=-1", "--use-pid-file=no", "--disable-shm=yes"];
    const env = { ...process.env, HOME: folder, XDG_RUNTIME_DIR: folder };
    const child = spawn("pulseaudio", [...words, ...loads.map((it) => `--load=${it}`)], { env, stdio: "ignore" });
    const server = new SoundServer(child, folder);
    await eventually("the sound server is up", () => {
      if (child.exitCode !== null) throw new Error(`pulseaudio ended with ${child.exitCode}`);
      return access(`${folder}/native`).then(() => true, () => false);
    });
    return server;
  }

  stop() {
    this._child.kill();
    void rm(this._folder, { recursive: true, force: true });
  }
}

/**
 * Open the page, and note everything that goes wrong in it.
 *
 * @param {import("playwright-core").Browser} browser
 * @param {string} url
 * @param {import("playwright-core").BrowserContextOptions} options
 */
export async function openPage(browser, url, options = {}) {
  const context = await browser.newContext({ acceptDownloads: true, reducedMotion: "reduce", ...options });
  context.setDefaultTimeout(PATIENCE_MS);
  const page = await context.newPage();
  /** @type {string[]} */
  const complaints = [];
  page.on("console", (message) => {
    if (["error", "warning", "assert"].includes(message.type())) complaints.push(message.text());
  });
  page.on("pageerror", (error) => complaints.push(String(error)));
  await page.goto(url);
  await page.waitForSelector("body[data-ready]");
  return { page, complaints, close: () => context.close() };
}

/** @typedef {import("playwright-core").Page} Page */

/** Press the button and wait until the call is live. @param {Page} page @param {string} [button] */
export async function call(page, button = "#talk") {
  await page.click(button);
  await inState(page, "live");
}

/** Start again, whatever becomes of the last recording. @param {Page} page */
export async function startAgain(page) {
  await page.click("#talk");
  if (await page.isVisible("#unsaved")) await page.click('#unsaved button[value="discard"]');
}

/** Asked by evaluating: Firefox, driven by BiDi, does not come back from waiting for a selector. @param {Page} page @param {string} state */
export function inState(page, state) {
  const found = () => page.evaluate(() => document.body.dataset["state"]);
  return eventually(`the state ${state}`, async () => (await found()) === state, found);
}

/** Open the settings, which are drawn once the microphones are known. @param {Page} page */
export async function openSettings(page) {
  await page.click("#settings-open");
  await page.waitForSelector("#settings[open]");
}

/** Wait until the page shows that the caller is muted; the headline may say that the model speaks. @param {Page} page */
export async function saysMuted(page) {
  await page.waitForSelector("#mute-label:text-is('Unmute')");
  await says(page, /You are muted|It is speaking/);
}

/** Wait until the headline, or the line below it, says something. @param {Page} page @param {RegExp} words */
export async function says(page, words) {
  const read = async () => `${await page.textContent("#status")} ${await page.textContent("#help")}`;
  await eventually(`the page says ${words}`, async () => words.test(await read()), read);
}

/**
 * The numbers of the latency panel.
 *
 * @param {Page} page
 * @returns {Promise<Record<string, number>>} NaN where there is none yet
 */
export function numbers(page) {
  return page.$$eval("#numbers dd", (cells) =>
    Object.fromEntries(
      cells.map((cell) => (cell instanceof HTMLElement ? [cell.dataset["name"], parseFloat(cell.dataset["value"] ?? "")] : [])),
    ),
  );
}

/** Seconds of the call, as the page shows them. @param {Page} page */
export async function elapsedS(page) {
  const [minutes, seconds] = ((await page.textContent("#elapsed")) ?? "0:0").split(":").map(Number);
  return 60 * (minutes ?? 0) + (seconds ?? 0);
}

/** Wait until a call has lasted so long. @param {Page} page @param {number} seconds */
export async function talkedFor(page, seconds) {
  await eventually(`${seconds} s of talk`, async () => (await elapsedS(page)) >= seconds, () => elapsedS(page));
}

/**
 * Wait until a call was heard without a gap for so long, or for a minute: a busy machine leaves some.
 *
 * @param {Page} page with its numbers in sight
 * @param {number} seconds
 */
export async function heardWhole(page, seconds) {
  const begunS = await elapsedS(page);
  let [gaps, sinceS] = [-1, 0];
  const isWhole = async () => {
    const [nowS, found] = [await elapsedS(page), (await numbers(page))["gaps"] ?? NaN];
    if (found !== gaps) [gaps, sinceS] = [found, nowS];
    return nowS - sinceS > seconds || nowS - begunS > 60;
  };
  await eventually(`${seconds} s without a gap`, isWhole, () => gaps);
}

/**
 * Wait until something holds, asking again and again.
 *
 * @param {string} what
 * @param {() => Promise<boolean> | boolean} isSo
 * @param {() => Promise<unknown> | unknown} [found] what there is instead, for the error
 */
export async function eventually(what, isSo, found = () => "") {
  const endMs = Date.now() + PATIENCE_MS;
  while (!(await isSo())) {
    if (Date.now() > endMs) throw new Error(`not within ${PATIENCE_MS / 1000} s: ${what}; found ${await found()}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

/** Save the recording and read it. @param {Page} page */
export async function saveRecording(page) {
  const [download] = await Promise.all([page.waitForEvent("download"), page.click("#save")]);
  return { name: download.suggestedFilename(), ...readWav(await readFile(await download.path())) };
}

/**
 * A WAV file of 16-bit samples.
 *
 * @param {Buffer} bytes
 */
export function readWav(bytes) {
  const word = /** @param {number} at */ (at) => bytes.toString("latin1", at, at + 4);
  if (word(0) !== "RIFF" || word(8) !== "WAVE") throw new Error(`not a WAV file: ${word(0)} ${word(8)}`);
  const format = { channels: 0, sampleRate: 0, bits: 0 };
  for (let at = 12; at + 8 <= bytes.length; ) {
    const size = bytes.readUInt32LE(at + 4);
    if (word(at) === "fmt ") {
      format.channels = bytes.readUInt16LE(at + 10);
      format.sampleRate = bytes.readUInt32LE(at + 12);
      format.bits = bytes.readUInt16LE(at + 22);
    } else if (word(at) === "data") {
      if (at + 8 + size !== bytes.length) throw new Error(`${bytes.length - at - 8} bytes of audio, said ${size}`);
      const frames = size / 2 / format.channels;
      const sides = Array.from({ length: format.channels }, (_, channel) =>
        Float32Array.from({ length: frames }, (_, frame) => bytes.readInt16LE(at + 8 + 2 * (frame * format.channels + channel)) / 32768),
      );
      return { ...format, frames, sides };
    }
    at += 8 + size;
  }
  throw new Error("a WAV file without audio");
}

const ENVELOPE_MS = 10;

/** How loud it is, every 10 ms. @param {Float32Array} samples at 24 kHz */
export function envelope(samples) {
  const size = 24 * ENVELOPE_MS;
  return Array.from({ length: Math.floor(samples.length / size) }, (_, index) => {
    const part = samples.subarray(index * size, (index + 1) * size);
    return Math.sqrt(part.reduce((sum, it) => sum + it * it, 0) / size);
  });
}

/** @param {number[]} a @param {number[]} b as long */
function correlation(a, b) {
  const mean = /** @param {number[]} it */ (it) => it.reduce((sum, value) => sum + value, 0) / it.length;
  const [meanA, meanB] = [mean(a), mean(b)];
  let [ab, aa, bb] = [0, 0, 0];
  a.forEach((value, index) => {
    const [da, db] = [value - meanA, (b[index] ?? 0) - meanB];
    ab += da * db;
    aa += da * da;
    bb += db * db;
  });
  return aa * bb > 0 ? ab / Math.sqrt(aa * bb) : 0;
}

/**
 * How well three seconds of `said` are found again in `heard`, at the best place and delay.
 *
 * @param {Float32Array} said
 * @param {Float32Array} heard
 * @param {number} longestMs the longest delay that is looked at
 */
export function bestEcho(said, heard, longestMs) {
  const [a, b] = [envelope(said), envelope(heard)];
  const window = 3000 / ENVELOPE_MS;
  let best = { correlation: 0, delayMs: 0 };
  for (let start = 0; start + window <= a.length; start += 25) {
    const piece = a.slice(start, start + window);
    for (let lag = 0; lag <= longestMs / ENVELOPE_MS && start + lag + window <= b.length; lag++) {
      const found = correlation(piece, b.slice(start + lag, start + lag + window));
      if (found > best.correlation) best = { correlation: found, delayMs: lag * ENVELOPE_MS };
    }
  }
  return best;
}

/** Where the documents have their pictures, when they are to be taken anew. */
export const IMAGES = process.env["ANTIPHON_TEST_IMAGES"];

/**
 * Take a picture, and keep it where the documents show it when {@link IMAGES} names that folder.
 *
 * @param {import("playwright-core").Page} page
 * @param {string} name
 */
export async function picture(page, name) {
  const shot = await page.screenshot(IMAGES ? { path: `${IMAGES}/${name}.png` } : {});
  if (shot.length < 5000) throw new Error(`the picture ${name} has ${shot.length} bytes: there is nothing on it`);
}

/** @param {Float32Array} samples */
export function rms(samples) {
  return Math.sqrt(samples.reduce((sum, it) => sum + it * it, 0) / Math.max(1, samples.length));
}
