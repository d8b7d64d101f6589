"""Transcribe a recording word by word over Kyutai's protocol.

pip install websockets msgpack
python kyutai_stt.py question.wav ws://127.0.0.1:8998      a WAV file of 24 kHz, mono, 16 bits
"""

import array
import asyncio
import sys
import wave

import msgpack
import websockets


async def transcribe(samples, url):
    """Send all audio and a marker; print each word with its time until the marker comes back."""
    async with websockets.connect(f"{url}/api/asr-streaming") as socket:
        for start in range(0, len(samples), 1920):
            pcm = [sample / 32768 for sample in samples[start : start + 1920]]
            await socket.send(msgpack.packb({"type": "Audio", "pcm": pcm}, use_single_float=True))
        await socket.send(msgpack.packb({"type": "Marker", "id": 1}))
        async for data in socket:
            message = msgpack.unpackb(data)
            if message["type"] == "Word":
                print(f"{message['start_time']:6.2f} {message['text']}")
            elif message["type"] == "Error":
                sys.exit(message["message"])
            elif message["type"] == "Marker":
                return


try:
    path, url = sys.argv[1:]
    with wave.open(path) as file:
        form, recording = file.getparams()[:3], file.readframes(file.getnframes())
    if form != (1, 2, 24_000):
        raise ValueError(f"{path} is not 24 kHz, mono, 16 bits")
except (OSError, EOFError, ValueError, wave.Error) as error:
    print(f"usage: python kyutai_stt.py RECORDING.wav ws://127.0.0.1:8998\n{error}", file=sys.stderr)
    sys.exit(2)
asyncio.run(transcribe(array.array("h", recording), url))
