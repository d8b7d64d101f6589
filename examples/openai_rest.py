"""Read a text aloud into speech.mp3 and transcribe a recording, over OpenAI's REST API.

pip install openai
python openai_rest.py question.wav http://127.0.0.1:8998/v1      any WAV, FLAC, MP3, Ogg, MP4 or WebM file
"""

import sys
from pathlib import Path

from openai import OpenAI

if len(sys.argv) != 3 or not Path(sys.argv[1]).is_file():
    print("usage: python openai_rest.py RECORDING http://127.0.0.1:8998/v1", file=sys.stderr)
    sys.exit(2)
client = OpenAI(base_url=sys.argv[2], api_key="any key")
with client.audio.speech.with_streaming_response.create(
    model="tiny-tts", voice="will", input="what is five plus four", response_format="mp3"
) as speech:
    speech.stream_to_file("speech.mp3")
transcript = client.audio.transcriptions.create(model="tiny-stt", file=Path(sys.argv[1]))
print(transcript.text)
