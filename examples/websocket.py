"""Ask a question over a plain WebSocket and print the answer: /api/chat with PCM audio.

pip install websockets
python websocket.py question.wav ws://127.0.0.1:8998      a WAV file of 24 kHz, mono, 16 bits
"""

import asyncio
import json
import sys
import wave

import websockets

AUDIO, TEXT, EVENT = 0x01, 0x02, 0x10  # the first byte of a message
FRAME_BYTES = 3840  # 80 ms
LISTEN_S = 4


async def speak(socket, question):
    """Send the question at the pace of speech, then silence while the model answers, then say goodbye."""
    audio = question + bytes(48_000 * LISTEN_S)
    for start in range(0, len(audio), FRAME_BYTES):
        await socket.send(bytes([AUDIO]) + audio[start : start + FRAME_BYTES])
        await asyncio.sleep(0.08)
    await socket.send(bytes([EVENT]) + json.dumps({"type": "bye"}).encode())


async def ask(question, url):
    """Hold one call; return its text."""
    text = ""
    query = "ext=1&format=pcm_s16le&text_temperature=0&audio_temperature=0"
    async with websockets.connect(f"{url}/api/chat?{query}") as socket:
        async for message in socket:
            kind, body = message[0], message[1:]
            if kind == TEXT:
                text += body.decode()
            elif kind == EVENT:
                event = json.loads(body)
                if event["type"] == "ready":  # a row is free: audio counts from now on
                    speaking = asyncio.create_task(speak(socket, question))
                elif event["type"] == "error":
                    sys.exit(event["message"])
        await speaking
    return text.strip()


try:
    path, url = sys.argv[1:]
    with wave.open(path) as file:
        form, recording = file.getparams()[:3], file.readframes(file.getnframes())
    if form != (1, 2, 24_000):
        raise ValueError(f"{path} is not 24 kHz, mono, 16 bits")
except (OSError, EOFError, ValueError, wave.Error) as error:
    print(f"usage: python websocket.py QUESTION.wav ws://127.0.0.1:8998\n{error}", file=sys.stderr)
    sys.exit(2)
print(asyncio.run(ask(recording, url)))
