"""Print the subtitles of a recording as SRT.

pip install openai
python subtitles.py question.wav http://127.0.0.1:8998/v1 > question.srt
"""

import sys
from pathlib import Path

from openai import OpenAI

if len(sys.argv) != 3 or not Path(sys.argv[1]).is_file():
    print("usage: python subtitles.py RECORDING http://127.0.0.1:8998/v1", file=sys.stderr)
    sys.exit(2)
recording, url = sys.argv[1:]
client = OpenAI(base_url=url, api_key="any key")
print(client.audio.transcriptions.create(model="tiny-stt", file=Path(recording), response_format="srt"))
