"""Ask a question over OpenAI Realtime and print the answer of the first response.

pip install "openai[realtime]"
python openai_realtime.py question.wav http://127.0.0.1:8998/v1      a WAV file of 24 kHz, mono, 16 bits
"""

import asyncio
import base64
import sys
import wave

from openai import AsyncOpenAI

FRAME_BYTES = 3840  # 80 ms


async def speak(connection, question):
    """Send the question at the pace of speech, then silence, as a microphone does."""
    frames = [question[start : start + FRAME_BYTES] for start in range(0, len(question), FRAME_BYTES)]
    while True:
        frame = frames.pop(0) if frames else bytes(FRAME_BYTES)
        await connection.input_audio_buffer.append(audio=base64.b64encode(frame).decode())
        await asyncio.sleep(0.08)


async def ask(question, url):
    """Hold one session until the first response is complete; return its text."""
    client = AsyncOpenAI(base_url=url, api_key="any key")
    text = ""
    async with client.realtime.connect(model="tiny") as connection:
        await connection.session.update(session={"type": "realtime", "output_modalities": ["audio"]})
        speaking = asyncio.create_task(speak(connection, question))
        async for event in connection:
            if event.type == "response.output_audio_transcript.delta":
                text += event.delta
            elif event.type == "error":
                sys.exit(event.error.message)
            elif event.type == "response.done":
                break
        speaking.cancel()
    return text.strip()


try:
    path, url = sys.argv[1:]
    with wave.open(path) as file:
        form, recording = file.getparams()[:3], file.readframes(file.getnframes())
    if form != (1, 2, 24_000):
        raise ValueError(f"{path} is not 24 kHz, mono, 16 bits")
except (OSError, EOFError, ValueError, wave.Error) as error:
    print(f"usage: python openai_realtime.py QUESTION.wav http://127.0.0.1:8998/v1\n{error}", file=sys.stderr)
    sys.exit(2)
print(asyncio.run(ask(recording, url)))
