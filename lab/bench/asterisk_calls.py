"""Runs calls through a real Asterisk over each kind of line; a null model echoes the caller's speech.

    python -m lab.bench.asterisk_calls /path/to/sbin/asterisk

Asterisk is built from its sources with app_audiosocket, chan_audiosocket, chan_websocket, app_dial,
app_playback, app_mixmonitor, pbx_config and pbx_spool; its callers are local channels. Where it has
chan_pjsip, and sipp is installed (Debian's sip-tester), a SIP telephone calls too, with mu-law over RTP and
the configuration of ``deploy/asterisk``.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from antiphon.audio import g711
from antiphon.audio.files import read_audio
from antiphon.audio.g711 import Law
from antiphon.audio.pcm import FloatArray, s16le_from_float
from lab.bench.harness import BenchError, Values
from tests.support.calm import SERVE
from tests.support.launch import free_port, running_server
from tests.support.stack.composefile import ROOT

CLIP: Final = Path(str(resources.files("antiphon_client") / "clips" / "question-name.ogg"))
LINES: Final = ("audiosocket", "audiosocket_24k", "websocket", "websocket_ulaw")
MODEL: Final = ("--model", "echo", "--backend", "null")
LISTEN_S: Final = 4
RATE: Final = 8_000
FRAME: Final = 640
"""Samples of one frame of the model."""

STAMP: Final = 64 + 2 * 24
"""Samples at the start of each frame that the null backend's stamp overwrites, and the ringing around it."""

DIALPLAN: Final = """
[lines]
exten => audiosocket,1,Answer()
 same => n,AudioSocket({id},127.0.0.1:{tcp})
exten => audiosocket_24k,1,Dial(AudioSocket/127.0.0.1:{tcp}/{id}/c(slin24))
exten => websocket,1,Dial(WebSocket/antiphon/c(slin24)n)
exten => websocket_ulaw,1,Dial(WebSocket/antiphon/c(ulaw))
[caller]
exten => _[a-z].,1,Answer()
 same => n,MixMonitor({folder}/${{EXTEN}}-mix.wav,r({folder}/${{EXTEN}}.wav))
 same => n,Wait(1)
 same => n,Playback({folder}/question)
 same => n,Wait({listen_s})
 same => n,Hangup()
"""
SIP_PLAN: Final = """
[antiphon]
exten => 100,1,MixMonitor({folder}/telephone-mix.wav,t({folder}/telephone.wav))
 same => n,{dial}
"""
CALL: Final = """
Channel: Local/{line}@caller
Context: lines
Extension: {line}
Priority: 1
"""
CLIENT: Final = """
[antiphon]
type = websocket_client
uri = ws://127.0.0.1:{port}/asterisk
protocols = media
connection_type = per_call_config
"""


TELEPHONE: Final = """<?xml version="1.0" encoding="ISO-8859-1" ?>
<scenario name="telephone">
  <send retrans="500"><![CDATA[
INVITE sip:100@[remote_ip]:[remote_port] SIP/2.0
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
From: <sip:telephone@[local_ip]:[local_port]>;tag=[call_number]
To: <sip:100@[remote_ip]:[remote_port]>
Call-ID: [call_id]
CSeq: 1 INVITE
Contact: <sip:telephone@[local_ip]:[local_port]>
Max-Forwards: 70
Content-Type: application/sdp
Content-Length: [len]

v=0
o=telephone 1 1 IN IP4 [local_ip]
s=-
c=IN IP4 [media_ip]
t=0 0
m=audio [rtpstream_audio_port] RTP/AVP 0
a=rtpmap:0 PCMU/8000
]]></send>
  <recv response="100" optional="true"/>
  <recv response="180" optional="true"/>
  <recv response="183" optional="true"/>
  <recv response="200" rrs="true"/>
  <send><![CDATA[
ACK sip:100@[remote_ip]:[remote_port] SIP/2.0
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
From: <sip:telephone@[local_ip]:[local_port]>;tag=[call_number]
To: <sip:100@[remote_ip]:[remote_port]>[peer_tag_param]
Call-ID: [call_id]
CSeq: 1 ACK
Max-Forwards: 70
Content-Length: 0

]]></send>
  <nop><action><exec rtp_stream="{folder}/question.ulaw,1,0,PCMU/8000"/></action></nop>
  <pause milliseconds="{ms}"/>
  <send retrans="500"><![CDATA[
BYE sip:100@[remote_ip]:[remote_port] SIP/2.0
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
From: <sip:telephone@[local_ip]:[local_port]>;tag=[call_number]
To: <sip:100@[remote_ip]:[remote_port]>[peer_tag_param]
Call-ID: [call_id]
CSeq: 2 BYE
Max-Forwards: 70
Content-Length: 0

]]></send>
  <recv response="200"/>
</scenario>
"""
"""A call of sipp, which sends a file as RTP; Asterisk records what the telephone gets."""


def telephone_call(folder: Path, question: FloatArray, sip: int) -> Values:
    """Make a SIP call, send the question, and compare what the telephone receives with the question.

    Raises:
        BenchError: the call failed.
    """
    quiet = np.zeros(RATE, np.float32)
    said = np.concatenate([quiet, question, *[quiet] * LISTEN_S])  # a telephone sends silence too
    (folder / "question.ulaw").write_bytes(g711.encode(said, Law.MU))
    scenario = folder / "telephone.xml"
    milliseconds = round(1000 * said.size / RATE)
    scenario.write_text(TELEPHONE.replace("{folder}", str(folder)).replace("{ms}", str(milliseconds)))
    command = ["sipp", f"127.0.0.1:{sip}", "-sf", str(scenario), "-i", "127.0.0.1", "-p", str(free_port())]
    done = subprocess.run(
        [*command, "-m", "1", "-nostdin", "-timeout", "60", "-trace_err"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        errors = [file.read_text() for file in folder.glob("*errors.log")]
        raise BenchError(f"sipp ended with {done.returncode}: {''.join(errors)[-2000:]}")
    time.sleep(1.0)  # the recording is closed
    return likeness(read_audio(folder / "telephone.wav", RATE), question)


def has_telephone(binary: Path) -> bool:
    """Whether this Asterisk supports SIP, and the SIP telephone (sipp) is installed."""
    module = binary.parents[1] / "lib/asterisk/modules/chan_pjsip.so"
    return module.exists() and shutil.which("sipp") is not None


@contextmanager
def asterisk_running(binary: Path, folder: Path, port: int, tcp: int, sip: int) -> Iterator[list[str]]:
    """Run a separate Asterisk; yields the command that controls it."""
    own = folder / "etc"
    own.mkdir()
    library = binary.parents[1]
    shared = library / "var/lib/asterisk"
    directories = {"astetcdir": own, "astmoddir": library / "lib/asterisk/modules"}
    directories |= {"astvarlibdir": shared, "astdatadir": shared, "astspooldir": folder / "spool"}
    directories |= {"astlogdir": folder / "log", "astrundir": folder, "astdbdir": folder, "astkeydir": folder}
    for name in ("spool/outgoing", "log"):
        (folder / name).mkdir(parents=True)
    lines = "\n".join(f"{name} => {path}" for name, path in directories.items())
    (own / "asterisk.conf").write_text(f"[directories]\n{lines}\n")
    (own / "modules.conf").write_text("[modules]\nautoload=yes\n")
    (own / "logger.conf").write_text("[logfiles]\nmessages => notice,warning,error\n")
    plan = DIALPLAN.format(id=uuid.uuid4(), tcp=tcp, folder=folder, listen_s=LISTEN_S)
    (own / "extensions.conf").write_text(plan)
    (own / "websocket_client.conf").write_text(CLIENT.format(port=port))
    deployed = ROOT / "deploy" / "asterisk"
    (own / "pjsip.conf").write_text((deployed / "pjsip.conf").read_text().replace(":5060", f":{sip}"))
    (own / "rtp.conf").write_text((deployed / "rtp.conf").read_text())
    dial = re.search(r"Dial\(.*\)", (deployed / "extensions.conf").read_text())
    assert dial is not None
    with (own / "extensions.conf").open("a") as file:
        file.write(SIP_PLAN.format(folder=folder, dial=dial[0]))
    command = [str(binary), "-C", str(own / "asterisk.conf")]
    with subprocess.Popen([*command, "-f", "-q"]) as process:
        try:
            subprocess.run([*command, "-rx", "core waitfullybooted"], check=False, timeout=60)
            for _ in range(100):
                if subprocess.run([*command, "-rx", "core waitfullybooted"], check=False).returncode == 0:
                    break
            yield command
        finally:
            subprocess.run([*command, "-rx", "core stop now"], check=False, timeout=30)
            process.wait(30)


def likeness(heard: FloatArray, said: FloatArray) -> Values:
    """Measure the position of the question in the received audio, and its similarity, 1 if equal.

    The null backend writes a stamp over the start of each frame: these samples are excluded, and ``share`` is
    the rest. The last two frames are not compared: they wait for audio that Asterisk no longer sends.
    """
    said = said[: -2 * FRAME]
    size = 1 << (heard.size + said.size).bit_length()
    spectrum = np.fft.rfft(heard, size) * np.conj(np.fft.rfft(said, size))
    at = int(np.argmax(np.fft.irfft(spectrum)[: heard.size]))
    back = heard[at : at + said.size]
    asked = said[: back.size]
    is_stamp = stamped(back - asked)
    back, asked = back[~is_stamp], asked[~is_stamp]
    like = float(back @ asked / np.sqrt((back @ back) * (asked @ asked)))
    return {"from_s": round(at / RATE, 2), "likeness": round(like, 4), "share": round(1 - is_stamp.mean(), 2)}


def stamped(difference: FloatArray) -> NDArray[np.bool_]:
    """Find the samples that the null backend's stamps cover, bool ``[N]``.

    In every frame they are at the same place: where the difference is largest.
    """
    whole = difference[: difference.size // FRAME * FRAME].reshape(-1, FRAME)
    around = np.convolve(np.tile(np.median(np.abs(whole), 0), 3), np.ones(STAMP), "same")
    middle = int(np.argmax(around[FRAME : 2 * FRAME]))
    away = (np.arange(difference.size) - middle + FRAME // 2) % FRAME - FRAME // 2
    is_stamp: NDArray[np.bool_] = np.abs(away) <= STAMP // 2
    return is_stamp


def measure(binary: Path) -> Values:
    """Run a call over each line; returns for each the comparison of the echo with the question."""
    (port, tcp, sip), found = (free_port(), free_port(), free_port()), Values()
    question = read_audio(CLIP, RATE)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "question.sln").write_bytes(s16le_from_float(question))
        options = ("--port", str(port), "--tcp", f"audiosocket://:{tcp}/echo", "--slots", "2")
        with (
            running_server([*SERVE, *options, *MODEL], port, folder / "server.log"),
            asterisk_running(binary, folder, port, tcp, sip),
        ):
            for line in LINES:
                call = folder / f"{line}.call"
                call.write_text(CALL.format(line=line))
                call.rename(folder / "spool" / "outgoing" / call.name)
                time.sleep(LISTEN_S + 6)  # the length of a call
                found[line] = likeness(read_audio(folder / f"{line}.wav", RATE), question)
            if has_telephone(binary):
                found["telephone"] = telephone_call(folder, question, sip)
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(Path(sys.argv[1])), indent=1) + "\n")
