"""Read a text aloud into speech.wav over Kyutai's protocol; print each word with its time.

pip install websockets msgpack
python kyutai_tts.py "my name is robin" ws://127.0.0.1:8998
"""

import array
import asyncio
import sys
import wave

import msgpack
import websockets


async def read_aloud(text, url):
    """Send the words and the end of the text; return the speech as 16-bit samples."""
    samples = array.array("h")
    async with websockets.connect(f"{url}/api/tts_streaming?format=PcmMessagePack") as socket:
        for word in text.split():
            await socket.send(msgpack.packb({"type": "Text", "text": word}))
        await socket.send(msgpack.packb({"type": "Eos"}))
        async for data in socket:
            message = msgpack.unpackb(data)
            if message["type"] == "Audio":
                samples.extend(round(32767 * max(-1.0, min(1.0, sample))) for sample in message["pcm"])
            elif message["type"] == "Text":
                print(f"{message['start_s']:6.2f} {message['text']}")
            elif message["type"] == "Error":
                sys.exit(message["message"])
    return samples


if len(sys.argv) != 3:
    print("usage: python kyutai_tts.py TEXT ws://127.0.0.1:8998", file=sys.stderr)
    sys.exit(2)
speech = asyncio.run(read_aloud(sys.argv[1], sys.argv[2]))
with wave.open("speech.wav", "wb") as file:
    file.setparams((1, 2, 24_000, 0, "NONE", ""))
    file.writeframes(speech.tobytes())
