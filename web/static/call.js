/**
 * One call: microphone and speaker on one side, the session on the other, codecs and clocks between them.
 *
 *     microphone -> worklet -> 24 kHz -> 20 ms blocks -> encoder -> session
 *     speaker <- worklet <- device's rate <- decoder <- session
 *
 * The worklet's blocks are the heartbeat of everything here: timers may sleep in a hidden tab, sound does not.
 */

import { Clip, readClip } from "./clip.js";
import { bestFormat, Chunker, makeDecoder, makeEncoder, PACKET_SAMPLES, SAMPLE_RATE } from "./codecs.js";
import { FRAME_MS, FRAME_SAMPLES, LatencyMeter } from "./latency.js";
import { loudness } from "./loudness.js";
import { openMicrophone, within } from "./microphone.js";
import { Recorder } from "./recorder.js";
import { Resampler } from "./resample.js";
import { Session } from "./session.js";
import { Sound } from "./sound.js";

/** @typedef {import("./sound.js").Block} Block */

/**
 * What the latency panel shows. Null where there is nothing yet.
 *
 * @typedef {object} Numbers
 * @property {import("./session.js").State["name"]} state
 * @property {number | null} mouthToEarMs
 * @property {number | null} roundTripMs
 * @property {number} jitterMs
 * @property {number} bufferMs
 * @property {number} leadMs
 * @property {number} gaps
 * @property {number | null} stepMs the server's time for the last frame
 * @property {number | null} waitMs how long that frame waited for it
 * @property {number} late frames the server answered after their deadline
 * @property {number} lost frames and replies that were dropped somewhere, and why does not matter here
 * @property {number} silentMs since the last reply
 * @property {string} path the format, and the rates between which is converted
 * @property {boolean} [isTrack] by WebRTC: the delay is not measured
 *
 * @typedef {object} CallOptions
 * @property {(format: string) => string} url the address of the next connection
 * @property {string} format "auto", "opus", "pcm_s16le" or "webrtc"
 * @property {string} deviceId the microphone, "" for the system's choice
 * @property {URL | null} clip a recorded question that speaks instead of a microphone
 * @property {Promise<void>} prepared resolves once the addresses are known
 *
 * @typedef {object} CallListener
 * @property {(state: import("./session.js").State) => void} onState
 * @property {(facts: Record<string, any>) => void} onReady
 * @property {(text: string) => void} onText
 * @property {(text: string) => void} onWordHeard a voice agent has understood this word of the caller
 * @property {(call: string) => void} onTool a voice agent's text model calls a tool
 * @property {(said: number, heard: number) => void} onLevels loudness of the last 20 ms, 0 to 1
 * @property {(samples: Float32Array) => void} onSaid what goes to the server, at 24 kHz
 * @property {(question: URL | null) => void} onQuestion a recorded question begins to speak, or has spoken
 * @property {(deadlineS: number) => void} onDraining
 * @property {(news: "microphone" | "heard" | "clip" | "stopped" | "running") => void} onDevices
 */

/** A microphone that the browser asks about may take its time, but not for ever. */
const MICROPHONE_LIMIT_MS = 60_000;

/** From the press of the button until the end. */
export class Call {
  /**
   * @param {CallOptions} options
   * @param {import("./session.js").Surroundings} around
   * @param {CallListener} listener
   */
  constructor(options, around, listener) {
    this._options = options;
    /** How it connects. @type {import("./session.js").Surroundings & { numbers?: () => Partial<Numbers> }} */
    this._around = { ...around };
    this._clock = around.clock;
    this._listener = listener;
    /** @type {import("./codecs.js").Format} */
    this._format = "pcm_s16le";
    this.isMuted = false;
    /** A call that a recorded question began has none. */
    this.hasMicrophone = options.clip === null;
    this.recorder = new Recorder(SAMPLE_RATE);
    /** @type {Sound | null} */
    this._sound = null;
    this._isOver = false;
    /** Whether the microphone has gone and no other one was there. */
    this._isDeaf = false;
    /** @type {Resampler | null} */
    this._saidRate = null;
    /** @type {Resampler | null} */
    this._heardRate = null;
    /** @type {Block | null} */
    this._lastBlock = null;
    /** In what was heard: each conversation has a playback buffer, which counts its own. */
    this._gaps = new Total();
    /** Of the playback, in ms. */
    this._unheardMs = new Total();
    /** What the server says that it dropped, in frames. */
    this._droppedThere = new Total();
    /** Frames that the server answered late. */
    this._late = new Total();
    this._question = options.clip;
    /** What speaks in the microphone's place. @type {Clip | null} */
    this._clip = null;
    /** Samples of this conversation that went to the encoder. */
    this._sent = 0;
    /** What is waited for before there is a session. @type {"microphone" | "sound"} */
    this.stage = options.clip ? "sound" : "microphone";
    /** When the last reply came in; null before the first. @type {number | null} */
    this._repliedMs = null;
    this._stamp = /** @type {{ stepMs: number | null, waitMs: number | null }} */ ({ stepMs: null, waitMs: null });
    /** @type {number | null} */
    this._roundTripMs = null;
    this._meter = new LatencyMeter();
    this._chunker = new Chunker(() => {});
    /** @type {import("./codecs.js").Encoder | null} */
    this._encoder = null;
    /** @type {import("./codecs.js").Decoder | null} */
    this._decoder = null;
    this.session = new Session(() => options.url(this._format), this._around, {
      onState: (state) => this._changed(state),
      onReady: (facts) => this._begin(facts),
      onResumed: (frame) => this._goOn(frame),
      onSent: (atS) => this._meter.said(PACKET_SAMPLES, atS),
      onAudio: (audio) => this._heard(audio),
      onText: listener.onText,
      onWordHeard: listener.onWordHeard,
      onTool: listener.onTool,
      onInterrupted: (atFrame) => this._sound?.flush(atFrame),
      onStats: (stats) => this._counted(stats),
      onDraining: listener.onDraining,
      onRoundTrip: (ms) => void (this._roundTripMs = ms),
    });
  }

  /**
   * Open the devices, then connect. To be called while a press of a button is being handled.
   *
   * @throws {import("./microphone.js").MicrophoneError}
   */
  async start() {
    const { format, clip, deviceId, prepared } = this._options;
    // Who asked for Opus in a browser without it is better off with PCM than without a call.
    this._format = format === "pcm_s16le" || format === "webrtc" ? "pcm_s16le" : await bestFormat();
    const microphone = clip ? null : await within(MICROPHONE_LIMIT_MS, openMicrophone(deviceId), "silent");
    this.stage = "sound";
    try {
      this._sound = await Sound.open((block) => this._took(block));
      if (format === "webrtc") Object.assign(this._around, (await import("./peer.js")).byPeer(this._sound));
      await prepared;
      if (microphone) this._hear(microphone);
    } catch (error) {
      if (microphone) stop(microphone);
      await this._sound?.close();
      throw error;
    }
    this._sound.onStateChange(() => this._listener.onDevices(this._sound?.isRunning ? "running" : "stopped"));
    this._saidRate = new Resampler(this._sound.sampleRate, SAMPLE_RATE);
    this._heardRate = new Resampler(this._sound.sampleRate, SAMPLE_RATE);
    if (this._isOver) await this._sound.close();
    else this.session.start();
  }

  /** Hang up and give the devices back; the recording stays. */
  async end() {
    this._isOver = true;
    this.session.end();
    this._closeCodecs();
    await this._sound?.close();
  }

  /** Try again whatever stands still: the page is looked at, the network is back. */
  hurry() {
    if (this._isOver) return;
    this._sound?.resume().catch(() => {}); // the system still holds the sound: the page goes on saying so
    this.session.hurry();
  }

  /** @param {string} deviceId take this microphone from now on */
  async changeMicrophone(deviceId) {
    this._options = { ...this._options, deviceId };
    if (this._isOver || this._options.clip || !this._sound) return;
    try {
      const stream = await openMicrophone(deviceId);
      if (this._isOver) stop(stream);
      else this._hear(stream);
      if (this._isDeaf && !this._isOver) this._listener.onDevices("heard");
      this._isDeaf = false;
    } catch {
      if (!this._isDeaf) this._listener.onDevices("microphone");
      this._isDeaf = true;
    }
  }

  /** Microphones came or went: a call that lost its own takes one that is there. */
  devicesChanged() {
    if (this._isDeaf) void this.changeMicrophone("");
  }

  /**
   * Hear the microphone from now on, in a call that a recorded question began.
   *
   * @throws {import("./microphone.js").MicrophoneError}
   */
  async openMicrophone() {
    const stream = await within(MICROPHONE_LIMIT_MS, openMicrophone(this._options.deviceId), "silent");
    if (this._isOver) return stop(stream);
    this._hear(stream);
    this._options = { ...this._options, clip: null };
    this.hasMicrophone = true;
  }

  /** Speak a recorded question into the call. @param {URL} question */
  async ask(question) {
    this._listener.onQuestion(question);
    try {
      const samples = await readClip(question);
      if (!this._isOver) this._clip = new Clip(samples, this._sent);
    } catch {
      this._listener.onQuestion(null);
      if (!this._isOver) this._listener.onDevices("clip"); // the server went away meanwhile, or the call did
    }
  }

  /** How long no reply has come in this conversation, in ms; 0 before the first. */
  get silentMs() {
    return this.session.isLive && this._repliedMs !== null ? this._clock() - this._repliedMs : 0;
  }

  /** @returns {Numbers} */
  numbers() {
    const block = this._lastBlock;
    const rates = this._sound ? `${this._sound.sampleRate / 1000} kHz` : "";
    return {
      state: this.session.state.name,
      mouthToEarMs: this._meter.mouthToEarMs,
      roundTripMs: this._roundTripMs,
      jitterMs: this._meter.jitterMs,
      bufferMs: block?.depthMs ?? 0,
      leadMs: block?.leadMs ?? 0,
      gaps: this._gaps.value,
      stepMs: this._stamp.stepMs,
      waitMs: this._stamp.waitMs,
      late: this._late.value,
      lost: this._lostFrames(),
      silentMs: this.silentMs,
      path: `${this._options.format === "webrtc" ? "WebRTC" : this._format === "opus" ? "Opus" : "PCM"}, ${rates}`,
      ...this._around.numbers?.(),
    };
  }

  /** What the server says it dropped, what never left here, and what was cut from the playback. */
  _lostFrames() {
    const unsent = (this.session.droppedPackets * PACKET_SAMPLES) / FRAME_SAMPLES;
    return this._droppedThere.value + Math.ceil(unsent) + Math.ceil(this._unheardMs.value / FRAME_MS);
  }

  // The session's side.

  /** @param {import("./session.js").State} state */
  _changed(state) {
    if (state.name !== "live") this._sound?.flush(Infinity); // nothing goes on speaking that is not there
    if (state.name === "failed" || state.name === "ended") {
      this._isOver = true;
      this._closeCodecs();
      void this._sound?.close();
    }
    this._listener.onState(state);
  }

  /** @param {Record<string, any>} facts */
  _begin(facts) {
    this._closeCodecs();
    this._meter = new LatencyMeter();
    this._counted({});
    this._repliedMs = null;
    this._sound?.restart();
    const broken = (/** @type {Error} */ error) => this._useless(error);
    const encoder = makeEncoder(this._format, (payload, atS) => this.session.sendAudio(payload, atS), broken);
    this._encoder = encoder;
    this._chunker = new Chunker((samples, atS) => encoder.encode(samples, atS));
    /** @type {Resampler | null} */
    let resampler = null;
    this._decoder = makeDecoder(
      this._format,
      (frame, samples, rate) => {
        if (!this._sound) return;
        if (resampler?.inRate !== rate) resampler = new Resampler(rate, this._sound.sampleRate);
        this._sound.push(frame, resampler.feed(samples).slice());
      },
      broken,
    );
    if (this._clip) this._listener.onQuestion(null); // cut off with the last conversation
    this._clip = null;
    this._sent = 0;
    const question = this._question;
    this._question = null; // once, and not again after a return
    if (question) void this.ask(question);
    this._listener.onReady(facts);
  }

  /** @param {Record<string, any>} stats of this conversation, as far as the server has said them */
  _counted(stats) {
    this._late.see(Number(stats["late"] ?? 0));
    this._droppedThere.see(["lost", "dropped", "dropped_out"].reduce((sum, name) => sum + Number(stats[name] ?? 0), 0));
  }

  /** @param {number} frame the first that is said on another connection of the same call */
  _goOn(frame) {
    this._meter.goOnFrom(frame);
    this._repliedMs = null;
    this._sound?.restart();
  }

  /** @param {import("./protocol.js").StampedAudio} audio */
  _heard(audio) {
    this._repliedMs = this._clock();
    this._meter.arrived(audio.frame, this._repliedMs);
    this._stamp = { stepMs: audio.step_ms, waitMs: audio.wait_ms };
    this._decoder?.decode(audio.data, audio.frame);
  }

  /** @param {Error} error of a codec: PCM needs none */
  _useless(error) {
    if (this._isOver || this._format === "pcm_s16le") return;
    console.warn(`Opus failed (${error.message}); continuing with PCM`);
    this._format = "pcm_s16le";
    this.session.reopen();
  }

  _closeCodecs() {
    this._encoder?.close();
    this._decoder?.close();
    this._encoder = this._decoder = null;
  }

  // The devices' side.

  /** @param {MediaStream} stream */
  _hear(stream) {
    this._sound?.useMicrophone(stream);
    for (const track of stream.getAudioTracks()) {
      // Unplugged, or taken away: whatever the system offers now is better than silence.
      track.onended = () => void this.changeMicrophone("");
    }
  }

  /** @param {Block} block */
  _took(block) {
    if (this._isOver || !this._saidRate || !this._heardRate) return;
    this._gaps.see(block.gaps);
    this._unheardMs.see(block.droppedMs);
    this._lastBlock = block;
    if (this.isMuted) block.said.fill(0); // silence is sent: without frames in there is no speech out
    const devicesS = this._sound?.devicesS ?? 0;
    for (const { frame, atS } of block.begun) this._meter.heard(frame, atS, devicesS);
    const said = this._saidRate.feed(block.said);
    if (this._encoder) {
      this._speak(said);
      this._chunker.push(said, block.atS);
      this._listener.onSaid(said);
    }
    if (this.session.isLive || this.recorder.frames) this.recorder.push(said, this._heardRate.feed(block.heard));
    this._listener.onLevels(loudness(said), loudness(block.heard));
    this.session.tick();
  }

  /** A recorded question in the microphone's place, as long as it lasts. @param {Float32Array} said */
  _speak(said) {
    const isOver = this._clip?.speak(said, this._sent) === false;
    this._sent += said.length;
    if (!isOver) return;
    this._clip = null;
    this._listener.onQuestion(null);
  }
}

/** The sum of a counter that begins anew with a connection: it never falls. */
class Total {
  constructor() {
    this._before = 0;
    this._now = 0;
  }

  get value() {
    return this._before + this._now;
  }

  /** @param {number} count as the counter stands */
  see(count) {
    if (count < this._now) this._before += this._now;
    this._now = count;
  }
}

/** @param {MediaStream} stream */
function stop(stream) {
  for (const track of stream.getTracks()) track.stop();
}
