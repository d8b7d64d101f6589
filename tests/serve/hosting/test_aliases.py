"""Aliases of models: valid ones, and their use in every protocol."""

from __future__ import annotations

import json

import pytest

from antiphon.errors import ConfigError, UnknownModelError
from antiphon.models.spec import PipelineKind
from antiphon.protocol import kyutai
from antiphon.serve.hosting.model_names import name_models, read_aliases
from tests.serve.asr_client import scribe, sentence, spoken
from tests.serve.harness import Server
from tests.serve.hostile_bodies import FORM, form_of
from tests.serve.live_client import PATH as LIVE
from tests.serve.live_client import beside_a_talker, live_client
from tests.serve.realtime_client import MANUAL, PATH, dictate, realtime_client

ALIASES = ("gpt-live-1=null-echo", "openai/whisper-1=scribe")
ANY = ("*=null-echo", "*=scribe")
KINDS = {"echo": PipelineKind.CODEC, "stt": PipelineKind.STT, "stt-2": PipelineKind.STT}


def test_aliases_are_read_with_any_name_once_a_kind() -> None:
    texts = ["whisper-1=stt", "*=echo", "*=stt-2", "a:b/c_d.e-f=stt"]
    assert read_aliases(texts, KINDS) == [
        ("whisper-1", "stt"),
        ("*", "echo"),
        ("*", "stt-2"),
        ("a:b/c_d.e-f", "stt"),
    ]


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["whisper-1"], "alias = 'whisper-1': write NAME=MODEL"),
        (["a=sst"], "alias = 'a=sst': no model 'sst' is served; did you mean 'stt'?"),
        (
            ["a b=stt"],
            "alias = 'a b=stt': a name has 1 to 100 letters, digits and . _ : / -, or is * for any",
        ),
        (["=stt"], "alias = '=stt': a name has 1 to 100"),
        (["stt-2=stt"], "alias = 'stt-2=stt': stt-2 is a model here"),
        (["a=stt", "a=echo"], "alias = 'a=echo': a is the model stt already"),
        (["*=stt", "*=echo", "*=stt-2"], "alias = '*=stt-2': * is the model stt already"),
    ],
)
def test_aliases_that_cannot_be(texts: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_aliases(texts, KINDS)
    assert str(refused.value).startswith(words)


def test_an_alias_is_looked_at_before_any_engine_starts() -> None:
    with pytest.raises(ConfigError, match="no model 'tiny' is served"):
        name_models([], ["a=tiny"])


async def test_aliases_are_listed_with_the_model_they_stand_for() -> None:
    async with beside_a_talker(alias=ALIASES) as (server, _):
        listed = json.loads((await server.get("/v1/models"))[1])["data"]
        roots = {it["id"]: it.get("root") for it in listed}
        assert roots == {
            "null-echo": None,
            "gpt-live-1": "null-echo",
            "scribe": None,
            "openai/whisper-1": "scribe",
        }
        one = json.loads((await server.get("/v1/models/openai/whisper-1"))[1])
        assert (one["id"], one["root"]) == ("openai/whisper-1", "scribe")
        models = json.loads((await server.get("/api/models"))[1])["models"]
        assert [it["aliases"] for it in models] == [["gpt-live-1"], ["openai/whisper-1"]]


@pytest.mark.parametrize(
    ("aliases", "talker", "writer"),
    [(ALIASES, "gpt-live-1", "openai/whisper-1"), (ANY, "gpt-4o-realtime", "whisper-1")],
)
async def test_every_protocol_takes_an_alias(aliases: tuple[str, ...], talker: str, writer: str) -> None:
    async with beside_a_talker(alias=aliases) as (server, _):
        for query, path in ((f"ext=1&model={talker}", "/api/chat"), ("ext=1", f"/m/{talker}/api/chat")):
            async with server.call(query, path=path) as client:
                assert (await client.event("ready")).fields["model"] == "null-echo"
        async with live_client(server, LIVE) as live:
            assert (await live.start(model=talker))["model"] == talker
        async with realtime_client(server, f"{PATH}?model={talker}") as talking:
            assert (await talking.event("session.created"))["session"]["model"] == "null-echo"
        async with realtime_client(server, f"{PATH}?intent=transcription&model={writer}") as writing:
            await writing.update(audio={"input": {**MANUAL, "transcription": {"model": writer}}})
            assert (await dictate(writing, 1))[0]["transcript"] == sentence(1)[1][0]
        async with scribe(server, f"model={writer}") as kyutais:
            await kyutais.until(kyutai.Ready)
        form = form_of(model=writer.encode(), file=b"RIFF")
        url = server.url("/v1/audio/transcriptions")
        async with server.http.post(url, data=form, headers={"Content-Type": FORM}) as answer:
            assert (await answer.json())["error"]["param"] == "file"  # the model was found


async def test_two_names_of_one_model_are_no_contradiction() -> None:
    async with beside_a_talker(alias=ALIASES) as (server, _):
        body = json.dumps({"session": {"type": "realtime", "model": "gpt-live-1"}})
        async with server.http.post(server.url(f"{PATH}/client_secrets"), data=body) as answer:
            key = (await answer.json())["value"]
        headers = {"Authorization": f"Bearer {key}"}
        async with realtime_client(server, f"{PATH}?model=null-echo", **headers) as client:
            await client.event("session.created")
        form = form_of(model=b"scribe", file=b"RIFF")
        url = server.url("/v1/audio/transcriptions?model=openai/whisper-1")
        async with server.http.post(url, data=form, headers={"Content-Type": FORM}) as answer:
            assert (await answer.json())["error"]["param"] == "file"


def no_model(server: Server, name: str, *kinds: PipelineKind) -> str:
    """The words of a refusal."""
    with pytest.raises(UnknownModelError) as refused:
        server.services.models.find(name, kinds or tuple(PipelineKind))
    return str(refused.value)


async def test_a_refusal_names_the_models_and_the_option() -> None:
    async with beside_a_talker(alias=ANY[1:]) as (server, _):
        models = server.services.models
        assert models.find("whisper-1", (PipelineKind.STT,)).name == "scribe"
        assert no_model(server, "gpt-realtime", PipelineKind.CODEC) == (
            "no model 'gpt-realtime' here; there is: null-echo (codec); to serve it under this name: "
            "--alias gpt-realtime=null-echo"
        )
        assert no_model(server, "a b", PipelineKind.CODEC).endswith("there is: null-echo (codec)")
        assert no_model(server, "scribe", PipelineKind.CODEC).endswith("there is: null-echo (codec)")


async def test_a_conversation_that_names_an_unknown_recogniser_gets_the_one_served_and_reads_so() -> None:
    heard = {"turn_detection": None, "transcription": {"model": "gpt-4o-mini-transcribe", "language": "en"}}
    async with beside_a_talker() as (server, _), realtime_client(server) as client:
        updated = await client.update(audio={"input": heard})
        assert updated["audio"]["input"]["transcription"] == {"model": "scribe", "language": "en"}
        tokens, texts = sentence(2)
        await client.speak(spoken([*tokens, 0]))
        await client.send("input_audio_buffer.commit")
        completed = await client.event("conversation.item.input_audio_transcription.completed")
        assert completed["transcript"] == " ".join(texts)
