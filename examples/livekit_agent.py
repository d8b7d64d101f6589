"""Run a LiveKit AgentSession on OpenAI Live with a recording as the microphone; print the answer.

pip install livekit-agents livekit-plugins-openai
python livekit_agent.py question.wav http://127.0.0.1:8998/v1      a WAV file of 24 kHz, mono, 16 bits

In a LiveKit room the session gets its audio from the room: pass room=ctx.room to session.start().
"""

import asyncio
import sys
import wave

from livekit import rtc
from livekit.agents import Agent, AgentSession
from livekit.agents.voice.io import AudioInput, AudioOutput, AudioOutputCapabilities
from livekit.plugins.openai.realtime import GPTLiveModel

STEP_BYTES = 960  # 20 ms


class Microphone(AudioInput):
    """Gives the recording at the pace of speech, then silence."""

    def __init__(self, recording):
        super().__init__(label="microphone")
        self._rest = recording

    async def __anext__(self):
        await asyncio.sleep(0.02)
        step, self._rest = self._rest[:STEP_BYTES], self._rest[STEP_BYTES:]
        return rtc.AudioFrame(step.ljust(STEP_BYTES, b"\0"), 24_000, 1, STEP_BYTES // 2)


class Speaker(AudioOutput):
    """Takes the reply and reports it as played."""

    def __init__(self):
        super().__init__(label="speaker", capabilities=AudioOutputCapabilities(pause=True))
        self._played_s = 0.0

    async def capture_frame(self, frame):
        await super().capture_frame(frame)
        self._played_s += frame.duration

    def flush(self):
        super().flush()
        if self._played_s:
            self.on_playback_finished(playback_position=self._played_s, interrupted=False)
            self._played_s = 0.0

    def clear_buffer(self):
        self.flush()


async def ask(recording, url):
    """Run one session until the agent has answered; return its text."""
    live = GPTLiveModel(
        base_url=url,
        api_key="any key",
        model="tiny",
        delegation="client",
    )
    session = AgentSession(llm=live)
    session.input.audio, session.output.audio = Microphone(recording), Speaker()
    answer = asyncio.get_running_loop().create_future()

    @session.on("conversation_item_added")
    def added(event):
        if event.item.type == "message" and event.item.role == "assistant" and not answer.done():
            answer.set_result(event.item.text_content)

    @session.on("error")
    def failed(event):
        if not answer.done():
            answer.set_exception(RuntimeError(str(event.error)))

    await session.start(Agent(instructions=""))
    text = await asyncio.wait_for(answer, 60)
    await session.aclose()
    await live.aclose()
    return text.strip()


try:
    path, url = sys.argv[1:]
    with wave.open(path) as file:
        form, question = file.getparams()[:3], file.readframes(file.getnframes())
    if form != (1, 2, 24_000):
        raise ValueError(f"{path} is not 24 kHz, mono, 16 bits")
except (OSError, EOFError, ValueError, wave.Error) as error:
    print(f"usage: python livekit_agent.py QUESTION.wav http://127.0.0.1:8998/v1\n{error}", file=sys.stderr)
    sys.exit(2)
print(asyncio.run(ask(question, url)))
