/** Lines that connect clients of OpenAI Live with a server. Those of examples/, which the tests run. Pure. */

/**
 * @typedef {object} Place
 * @property {string} base the address of the server, without a slash at its end
 * @property {string} model the name of a model
 * @property {boolean} hasKeys whether the server asks for a key; the lines have a place for it, never the key
 */

/** The kinds of model that OpenAI Live reaches. */
export const LIVE_KINDS = Object.freeze(["duplex", "codec"]);

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
# client.live, client.realtime or client.audio, with model="${model}"`;

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

live = GPTLiveModel(base_url="${base}/v1", api_key="${key}", model="${model}", delegation="client")
session = AgentSession(llm=live)`;
