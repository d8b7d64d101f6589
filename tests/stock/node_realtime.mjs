// A spoken exchange by the npm package openai over Realtime, unchanged; prints JSON.
//
// node node_realtime.mjs BASE_URL QUESTION.pcm MODEL KEY      the question as PCM of 24 kHz
//
// It asks as a server does, with its key, then as a browser does, with an ephemeral key.

import { readFileSync } from "node:fs";

import OpenAI from "openai";
import { OpenAIRealtimeWebSocket } from "openai/realtime/websocket";
import { OpenAIRealtimeWS } from "openai/realtime/ws";
import { WebSocket } from "ws";

const STEP_BYTES = 4800; // 100 ms
const [, , baseURL, questionFile, model, apiKey] = process.argv;
const question = readFileSync(questionFile);
const second = Buffer.alloc(48_000);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function say(connection, pcm) {
  for (let start = 0; start < pcm.length; start += STEP_BYTES) {
    const audio = pcm.subarray(start, start + STEP_BYTES).toString("base64");
    connection.send({ type: "input_audio_buffer.append", audio });
    await sleep(100);
  }
}

async function ask(connection) {
  const met = { answers: [], errors: [], status: [] };
  connection.on("error", (error) => met.errors.push(error.message));
  connection.on("response.output_audio_transcript.done", (event) => met.answers.push(event.transcript));
  connection.on("response.done", (event) => met.status.push(event.response.status));
  const created = await new Promise((resolve) => connection.on("session.created", resolve));
  met.instructions = created.session.instructions;
  await say(connection, Buffer.concat([question, second, second, second, second]));
  for (let more = 0; more < 120 && !met.status.length; more++) await say(connection, second); // a server that is behind
  const closed = new Promise((resolve) => connection.socket.addEventListener("close", resolve));
  connection.close();
  met.closed = (await closed).code;
  return met;
}

const client = new OpenAI({ baseURL, apiKey });
const server = await ask(new OpenAIRealtimeWS({ model }, client));

const session = { type: "realtime", model, instructions: "Be kind." };
const secret = await client.realtime.clientSecrets.create({ session });
globalThis.WebSocket = WebSocket; // what a browser has by itself
const page = new OpenAI({ baseURL, apiKey: secret.value, dangerouslyAllowBrowser: true });
const browser = await ask(new OpenAIRealtimeWebSocket({ model, dangerouslyAllowBrowser: true }, page));
console.log(JSON.stringify({ server, browser }));
process.exit(0);
