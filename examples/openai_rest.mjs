// Read a text aloud into speech.mp3 and transcribe a recording, over OpenAI's REST API.
//
// npm install openai
// node openai_rest.mjs question.wav http://127.0.0.1:8998/v1

import { createReadStream, existsSync, writeFileSync } from "node:fs";
import OpenAI from "openai";

const [recording, baseURL] = process.argv.slice(2);
if (!baseURL || !existsSync(recording)) {
  console.error("usage: node openai_rest.mjs RECORDING http://127.0.0.1:8998/v1");
  process.exit(2);
}
const client = new OpenAI({ baseURL, apiKey: "any key" });

const speech = await client.audio.speech.create({ model: "tiny-tts", voice: "will", input: "what is five plus four" });
writeFileSync("speech.mp3", Buffer.from(await speech.arrayBuffer()));

const file = createReadStream(recording);
const transcript = await client.audio.transcriptions.create({ model: "tiny-stt", file });
console.log(transcript.text);
