// Ask a question over OpenAI Realtime and print the answer of the first response.
// The package connects over TLS only: start the server with --tls-cert and --tls-key.
//
// npm install openai ws
// node openai_realtime.mjs question.wav https://localhost:8998/v1      a WAV file of 24 kHz, mono, 16 bits

import { existsSync, readFileSync } from "node:fs";
import OpenAI from "openai";
import { OpenAIRealtimeWS } from "openai/realtime/ws";

const FRAME_BYTES = 3840; // 80 ms
const [recording, baseURL] = process.argv.slice(2);
if (!baseURL || !existsSync(recording)) {
  console.error("usage: node openai_realtime.mjs QUESTION.wav https://localhost:8998/v1");
  process.exit(2);
}
let question = readFileSync(recording).subarray(44); // behind the header of a plain WAV file

const client = new OpenAI({ baseURL, apiKey: "any key" });
const connection = new OpenAIRealtimeWS({ model: "tiny" }, client);

connection.on("session.created", () => {
  // The question at the pace of speech, then silence, as a microphone does.
  setInterval(() => {
    const frame = Buffer.concat([question.subarray(0, FRAME_BYTES), Buffer.alloc(FRAME_BYTES)]).subarray(0, FRAME_BYTES);
    question = question.subarray(FRAME_BYTES);
    connection.send({ type: "input_audio_buffer.append", audio: frame.toString("base64") });
  }, 80);
});
connection.on("response.output_audio_transcript.done", (event) => console.log(event.transcript.trim()));
connection.on("response.done", () => process.exit(0));
connection.on("error", (error) => {
  console.error(error.message);
  process.exit(1);
});
