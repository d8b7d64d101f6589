"""Ask a question over OpenAI Live: print the answer and write the reply to reply.wav.

pip install "openai[realtime]"
python openai_live.py question.wav http://127.0.0.1:8998/v1      a WAV file of 24 kHz, mono, 16 bits
"""

import asyncio
import base64
import sys
import wave

from openai import AsyncOpenAI

FRAME_BYTES = 3840  # 80 ms
LISTEN_S = 4


async def speak(connection, question):
    """Send the question at the pace of speech, then silence while the model answers, then close."""
    audio = question + bytes(48_000 * LISTEN_S)
    for start in range(0, len(audio), FRAME_BYTES):
        frame = base64.b64encode(audio[start : start + FRAME_BYTES]).decode()
        await connection.session.input_audio.append(audio=frame)
        await asyncio.sleep(0.08)
    await connection.session.close()


async def ask(question, url):
    """Hold one session; return the text and the audio of the reply."""
    client = AsyncOpenAI(base_url=url, api_key="any key")
    text, audio = "", b""
    async with client.live.connect() as connection:
        await connection.session.start(session={"model": "tiny"})
        async for event in connection:
            if event.type == "session.started":
                speaking = asyncio.create_task(speak(connection, question))
            elif event.type == "session.output_audio.delta":
                audio += base64.b64decode(event.delta)
            elif event.type == "session.output_transcript.delta":
                text += event.delta
            elif event.type == "error":
                sys.exit(event.error.message)
            elif event.type == "session.closed":
                break
        await speaking
    return text.strip(), audio


try:
    path, url = sys.argv[1:]
    with wave.open(path) as file:
        form, recording = file.getparams()[:3], file.readframes(file.getnframes())
    if form != (1, 2, 24_000):
        raise ValueError(f"{path} is not 24 kHz, mono, 16 bits")
except (OSError, EOFError, ValueError, wave.Error) as error:
    print(f"usage: python openai_live.py QUESTION.wav http://127.0.0.1:8998/v1\n{error}", file=sys.stderr)
    sys.exit(2)
answer, reply = asyncio.run(ask(recording, url))
print(answer)
with wave.open("reply.wav", "wb") as file:
    file.setparams((1, 2, 24_000, 0, "NONE", ""))
    file.writeframes(reply)
