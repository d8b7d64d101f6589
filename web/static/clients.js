/** Lines that call a server: clients of OpenAI Live, those of examples/, which the tests run; and curl. Pure. */

import { modelsOf, PATHS } from "./parameters.js";

/**
 * @typedef {object} Place
 * @property {string} base the address of the server, without a slash at its end
 * @property {string} model the name of a model
 * @property {boolean} hasKeys whether the server asks for a key; the lines have a place for it, never the key
 */

/** The kinds of model that OpenAI Live reaches. */
const LIVE_KINDS = Object.freeze(["duplex", "codec"]);

/**
 * Lines for the models of a server, those of the view that is open first.
 *
 * @param {import("./parameters.js").Model[]} models
 * @param {{base: string, hasKeys: boolean}} server
 * @param {keyof typeof PATHS} view
 * @returns {{name: string, lines: string}[]}
 */
export function linesFor(models, server, view) {
  const talker = models.find(({ kind }) => LIVE_KINDS.includes(kind));
  const [recogniser] = modelsOf(models, PATHS.transcribe);
  const [synthesiser] = modelsOf(models, PATHS.read);
  const blocks = {
    talk: talker ? clientLines({ ...server, model: talker.name }) : [],
    transcribe: recogniser ? [{ name: "curl, to write down", lines: transcription({ ...server, model: recogniser.name }) }] : [],
    read: synthesiser ? [{ name: "curl, to read aloud", lines: speech({ ...server, model: synthesiser.name }) }] : [],
  };
  const { [view]: first, ...others } = blocks;
  return [first, ...Object.values(others)].flat();
}

/** @param {Place} place */
const transcription = ({ base, model, hasKeys }) => `curl ${base}/v1/audio/transcriptions${bearer(hasKeys)} \\
  -F model=${model} -F file=@speech.wav`;

/** @param {Place} place */
const speech = ({ base, model, hasKeys }) => `curl ${base}/v1/audio/speech${bearer(hasKeys)} \\
  -H 'content-type: application/json' \\
  -d '{"model":"${model}","input":"the sky is blue"}' -o out.mp3`;

/** @param {boolean} hasKeys */
const bearer = (hasKeys) => (hasKeys ? " \\\n  -H 'authorization: Bearer your key'" : "");

/** @param {Place} place @returns {{name: string, lines: string}[]} */
export function clientLines({ base, model, hasKeys }) {
  const key = hasKeys ? "your key" : "any key";
  return [
    { name: "openai", lines: openai(base, model, key) },
    { name: "pipecat", lines: pipecat(base.replace("http", "ws"), model, key) },
    { name: "LiveKit", lines: livekit(base, model, key) },
  ];
}

/** @param {string} base @param {string} model @param {string} key */
const openai = (base, model, key) => `from openai import AsyncOpenAI

client = AsyncOpenAI(base_url="${base}/v1", api_key="${key}")
# client.live or client.realtime, with model="${model}"`;

/** @param {string} base @param {string} model @param {string} key */
const pipecat = (base, model, key) => `from pipecat.services.openai.live.llm import OpenAILiveLLMService

service = OpenAILiveLLMService(
    api_key="${key}",
    base_url="${base}/v1/live/sessions",
    settings=OpenAILiveLLMService.Settings(model="${model}"),
)`;

/** @param {string} base @param {string} model @param {string} key */
const livekit = (base, model, key) => `from livekit.agents import Agent, AgentSession
from livekit.plugins.openai.realtime import GPTLiveModel

live = GPTLiveModel(
    base_url="${base}/v1",
    api_key="${key}",
    model="${model}",
    delegation="client",
)
session = AgentSession(llm=live)`;
