// Speech, transcripts and models by the npm package `openai`, unchanged; prints JSON.
//
// node openai_rest.mjs BASE_URL RECORDING       in a folder with node_modules

import fs from "node:fs";
import OpenAI from "openai";

const [baseURL, recording] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "any key" });

const models = [];
for await (const model of client.models.list()) models.push(model.id);
const model = await client.models.retrieve("tiny-tts");

const speech = await client.audio.speech.create({ model: "tiny-tts", voice: "alloy", input: "what is your name" });
const sizes = [];
for await (const piece of speech.body) sizes.push(piece.length);

const file = () => fs.createReadStream(recording);
const transcript = await client.audio.transcriptions.create({ model: "tiny-stt", file: file() });
const verbose = await client.audio.transcriptions.create({
  model: "tiny-stt",
  file: file(),
  response_format: "verbose_json",
  timestamp_granularities: ["word"],
});
const stream = await client.audio.transcriptions.create({ model: "tiny-stt", file: file(), stream: true });
const events = [];
for await (const event of stream) events.push(event);

let refused = null;
try {
  await client.audio.transcriptions.create({ model: "whisper-1", file: file() });
} catch (error) {
  refused = { name: error.constructor.name, status: error.status, code: error.code, param: error.param };
}
const type = speech.headers.get("content-type");
console.log(JSON.stringify({ models, model, type, sizes, transcript, verbose, events, refused }));
