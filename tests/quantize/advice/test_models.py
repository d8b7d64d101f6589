"""``antiphon models``: its list, recommendations, and the compose override."""

from __future__ import annotations

import itertools
import json
import re
from datetime import timedelta
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from antiphon.backends.machine import Gpu
from antiphon.backends.registry import options_of
from antiphon.engine.config import EngineConfig
from antiphon.engine.tick_times import tick_limit_s
from antiphon.errors import ConfigError
from antiphon.install import antiphon_command
from antiphon.models.costs import CARDS
from antiphon.serve.hosting.options import parse_command_line
from antiphon_quantize.advice.families import AudioFamily, SpeechFamily, load_families
from antiphon_quantize.advice.fit import (
    FitRequest,
    calls_on,
    card_named,
    frame_on_cpu_ms,
    hub_cache,
    parse_bytes,
    speech_facts,
    speech_that_fits,
    text_that_fits,
)
from antiphon_quantize.advice.main import compose_override, main
from antiphon_quantize.advice.show import speech_advice
from tests.support.stack.composefile import ROOT, read_compose, services

FAMILIES = load_families()
FREE = EngineConfig().memory_reserve_fraction


def test_every_family_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    for family in FAMILIES.speech:
        (line,) = [line for line in text.splitlines() if line.startswith(family.name + " ")]
        assert f"{family.parameters / 1e9:.2f} B" in line
        assert f"; {family.licence}\n" in text
        assert f"antiphon serve --model {family.model()}\n" in text
    for pocket in FAMILIES.pocket:
        (line,) = [line for line in text.splitlines() if line.startswith(pocket.name + " ")]
        assert f" {pocket.parameters / 1e6:.1f} M " in line
        names = [name for names in pocket.configs.values() for name in names]
        assert f"antiphon serve --model pocket://{names[0]}\n" in text
        assert set(names[1:]) <= set(text.split())
    assert "antiphon quantize --target onnx --model MODEL ./pocket-onnx\n" in text
    text = text.replace(str(hub_cache()), "").replace(antiphon_command(""), "antiphon ")
    assert max(map(len, text.splitlines())) <= 80
    assert "Qwen3-30B-A3B" in text


def test_the_table_of_published_models_says_its_day_and_when_it_is_old(
    capsys: pytest.CaptureFixture[str],
) -> None:
    day = FAMILIES.read_on
    assert main([], today=lambda: day + timedelta(days=183)) == 0
    text = capsys.readouterr().out
    assert f"\n\npublished models as of {day.isoformat()}\n\n" in text
    assert "warning" not in text
    assert main([], today=lambda: day + timedelta(days=184)) == 0
    assert (
        f"published models as of {day.isoformat()}\n"
        "warning: this table is 184 days old, over six months: read the licences on the owners' cards, "
        "and update antiphon for a newer table\n"
    ) in capsys.readouterr().out


def test_what_is_here_is_listed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("antiphon_quantize.advice.main.list_gpus", lambda: [Gpu("a card", 12 * 10**9)])
    assert main([]) == 0
    text = capsys.readouterr().out
    head, *built_in = text.partition("\n\n")[0].splitlines()
    assert head.split() == ["built", "in", "does", "parameters", "files"]
    assert [line.split()[:2] for line in built_in if line[0] != " "] == [
        ["tiny", "duplex"], ["tiny-stt", "stt"], ["tiny-tts", "tts"], ["echo", "codec"]
    ]  # fmt: skip
    assert "    trained on synthetic voices. Apache-2.0." in built_in
    assert f"    {antiphon_command('serve --model tiny-stt')}" in built_in
    assert f"in the hub's cache ({tmp_path}): nothing" in text
    assert "in a card of 12.00 GB" in text
    (row,) = [line for line in text.splitlines() if line.startswith("moshiko ")]
    assert row.endswith(" int8, 2 sessions")
    assert re.search(r" bf16, \d+ sessions$", next(it for it in text.splitlines() if it.startswith("stt-1b")))


def test_a_model_that_a_cpu_cannot_run_in_time_is_called_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The 7B model takes 173 ms a frame on two cores (docs/benchmarks/cpu-7b.md)."""
    moshiko = next(family for family in FAMILIES.speech if family.name == "moshiko")
    assert frame_on_cpu_ms(moshiko, 2) == pytest.approx(173, rel=0.05)
    monkeypatch.setattr("antiphon_quantize.advice.main.list_gpus", list)
    monkeypatch.setattr("antiphon_quantize.advice.main.host_bytes", lambda: 32 * 10**9)
    monkeypatch.setattr("antiphon_quantize.advice.main.usable_cores", lambda: 2)
    assert main([]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^moshiko .* too slow on this CPU$", text, re.MULTILINE)
    assert re.search(r"^stt-1b-en_fr .* runs, as INT4$", text, re.MULTILINE)
    assert "\nhere: computed, with 2 cores and memory of 32.00 GB" in text


def test_what_is_cached_is_listed_with_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    blobs = tmp_path / "models--kyutai--stt-1b-en_fr" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "abc").write_bytes(bytes(2_500_000))
    assert main([]) == 0
    text = capsys.readouterr().out
    assert "  hf://kyutai/stt-1b-en_fr  2.5 MB\n" in text
    assert re.search(r"^stt-1b-en_fr .*\n    en fr; CC-BY-4.0, cached$", text, re.MULTILINE)


def test_the_arithmetic_is_shown_and_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    command = "--fits 24GB --modality duplex --license commercial --sessions 8"
    assert main(command.split()) == 0
    text = capsys.readouterr().out
    assert text.startswith("moshiko in int8, 8 sessions, in 24.00 GB\n")
    numbers = {
        word: float(value)
        for word, value in re.findall(r"^  (?:kept )?(\w+) +([\d.]+) GB", text, re.MULTILINE)
    }
    together = numbers["weights"] + numbers["codec"] + numbers["sessions"]
    assert numbers["free"] == pytest.approx(FREE * 24, abs=0.01)
    assert numbers["needed"] == pytest.approx(together + FREE * 24, abs=0.02)
    assert numbers["needed"] <= 24


@given(st.integers(10**9, 200 * 10**9), st.integers(1, 64), st.sampled_from([None, "duplex", "stt", "tts"]))
def test_what_is_recommended_fits_and_what_is_not_does_not(memory: int, sessions: int, modality: str) -> None:
    fits = speech_that_fits(FAMILIES.audio, FitRequest(memory, sessions, modality))
    for fit in fits:
        assert fit.facts.needed(sessions) <= memory * (1 - FREE)
        assert fit.rows >= sessions
        assert modality in (None, fit.family.modality)
    found = {(fit.family.name, fit.precision) for fit in fits}
    for family in FAMILIES.audio:
        for precision in family.precisions:
            needed = speech_facts(family, precision, memory).needed(sessions)
            if modality in (None, family.modality) and needed < memory * (1 - FREE) - 1:
                assert (family.name, precision) in found


def test_language_and_licence_narrow_the_choice() -> None:
    wish = FitRequest(80 * 10**9, 1, "translation", language="fr")
    assert {fit.family.name for fit in speech_that_fits(FAMILIES.speech, wish)} == {"hibiki-1b", "hibiki-2b"}


def test_nobody_who_wants_to_talk_is_given_a_translator() -> None:
    assert speech_that_fits(FAMILIES.speech, FitRequest(8 * 10**9, 1, "duplex")) == []
    assert speech_that_fits(FAMILIES.speech, FitRequest(80 * 10**9, 1, "duplex", language="fr")) == []


def test_a_translator_takes_the_place_of_a_duplex_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--fits", "8GB", "--modality", "translation", "--compose", "-"]) == 0
    override = yaml.safe_load(capsys.readouterr().out)
    assert override["services"].keys() == {"balancer", "duplex", "duplex-gpu"}
    assert override["services"]["balancer"]["environment"] == {
        "DUPLEX_MODEL": "hf://kyutai/hibiki-2b-pytorch-bf16"
    }


def test_pocket_is_what_a_small_machine_speaks_with(capsys: pytest.CaptureFixture[str]) -> None:
    command = "--fits 1GB --modality tts --language fr --sessions 4"
    assert main(command.split()) == 0
    text = capsys.readouterr().out
    assert text.startswith(
        "pocket-tts in float32, 4 sessions, in 1.00 GB\n    fr; CC-BY-4.0\n"
        f"    {antiphon_command('serve --model pocket://french')}\n"
    )
    assert "antiphon quantize --target onnx --model pocket://french ./pocket-onnx\n" in text
    terms = re.findall(r"^  (?:kept )?(\w+) +([\d.]+) (GB|MB)", text, re.MULTILINE)
    numbers = {word: float(value) * {"GB": 1e9, "MB": 1e6}[unit] for word, value, unit in terms}
    assert numbers["weights"] == pytest.approx(4 * 99.7e6, rel=0.02)
    together = numbers["weights"] + numbers["codec"] + numbers["sessions"]
    assert numbers["needed"] == pytest.approx(together + FREE * 1e9, rel=0.02)
    best = speech_that_fits(FAMILIES.audio, FitRequest(100 * 10**6, modality="tts"))[0]
    assert best.family.name == "pocket-tts-2m"


def test_pocket_takes_the_place_of_the_text_to_speech_on_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    command = "--fits 1GB --modality tts --language fr --sessions 4 --compose -"
    assert main(command.split()) == 0
    override = yaml.safe_load(capsys.readouterr().out)
    assert override["services"].keys() == {"balancer", "tts"}
    assert override["services"]["balancer"]["environment"] == {"TTS_MODEL": "pocket://french"}
    config = parse_command_line(override["services"]["tts"]["command"])
    assert (config.model, config.backend, config.engine.slots) == (("pocket://french",), "pocket", 4)


@pytest.mark.parametrize("family", FAMILIES.audio, ids=lambda family: family.name)
def test_compose_has_a_service_for_every_family(family: AudioFamily) -> None:
    wish = FitRequest(80 * 10**9)
    override = yaml.safe_load(compose_override(speech_that_fits([family], wish)[0], wish))
    assert override["services"].keys() <= read_compose()["services"].keys()
    (variable,) = override["services"]["balancer"]["environment"]
    assert variable in read_compose()["services"]["balancer"]["environment"]
    for name, service in override["services"].items():
        if name != "balancer":  # a list takes the place of the one before
            options = {word.partition("=")[0] for word in service["command"]}
            assert {word.partition("=")[0] for word in services()[name].raw["command"]} <= options


def test_conditions_that_have_to_be_accepted_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--fits", "80GB", "--modality", "duplex"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("moshiko")
    assert "HF_TOKEN" not in text
    assert re.search(r"personaplex-7b bf16 \(\d+ sessions, gated\)", text)
    gated = [family for family in FAMILIES.speech if family.is_gated]
    request = FitRequest(80 * 10**9)
    (fit, *_) = speech_that_fits(gated, request)
    assert "accept its licence on Hugging Face first, and set HF_TOKEN" in speech_advice(fit, request, [])


def test_a_text_model_for_each_envelope(capsys: pytest.CaptureFixture[str]) -> None:
    best = [text_that_fits(FAMILIES.text, FitRequest(gb * 10**9))[0].family.name for gb in (4, 10, 20, 80)]
    assert best == ["Qwen2.5-1.5B-Instruct", "Qwen2.5-7B-Instruct", "Qwen3-30B-A3B", "Qwen2.5-32B-Instruct"]
    assert main(["--fits", "16GB", "--modality", "text", "--sessions", "4"]) == 0
    assert "keys and values" in capsys.readouterr().out


def test_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--fits", "1GB", "--modality", "duplex"]) == 1
    assert re.fullmatch(
        r"nothing fits: 1 session in 1,000,000,000 bytes; memory is the limit: the minimum is "
        r"[\d,]+ bytes, and 10% stays free; see '.*antiphon models'\n",
        capsys.readouterr().err,
    )
    assert main(["--fits", "80GB", "--language", "xx"]) == 1
    assert "; no model is of that kind, language and licence; " in capsys.readouterr().err
    assert main(["--fits", "1KB", "--modality", "text"]) == 1
    assert "; memory is the limit; " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GB", 24 * 10**9),
        ("24 GiB", 24 * 2**30),
        ("1.5g", 15 * 10**8),
        ("512b", 512),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (
            ["--fits", "rtx 4091"],
            "24GiB, and no known GPU; did you mean 'RTX 4090'?",
        ),
        (["--fits", "plenty"], "24GiB, and no known GPU; there are: A100, "),
        (["--fits", "24"], "memory '24' has no unit; for gigabytes write 24GB"),
        (["--fits", "24GB", "--sessions", "0"], "sessions is 0, at least 1 is needed"),
        (["--compose", "x.yaml"], "compose is given without fits"),
        (["--fits", "24GB", "--gpus", "0"], "gpus is 0, at least 1 is needed"),
        (["--fits", "24GB", "--modality", "text", "--compose", "-"], "LLM_MODEL"),
        (["--fits", "24GB", "--modality", "text", "--language", "fr"], "language is for speech models"),
        (["--modality", "smell"], "invalid choice: 'smell'"),
    ],
)
def test_what_cannot_be_asked(argv: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        main(argv)


def test_the_override_fits_the_file_it_overrides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "compose.override.yaml"
    command = f"--fits 24GB --modality duplex --sessions 8 --compose {file}".split()
    assert main(command) == 0
    override = yaml.safe_load(file.read_text())
    assert override["services"].keys() <= read_compose()["services"].keys()
    raw = services(overrides=[file])
    for key in ("image", "build"):
        assert raw["duplex"].raw[key] == services()["stt"].raw[key]
    assert raw["duplex-gpu"].raw["image"] == services()["duplex-gpu"].raw["image"]
    model = "hf://kyutai/moshiko-pytorch-bf16"
    assert override["services"]["balancer"]["environment"] == {"DUPLEX_MODEL": model}
    for service in ("duplex", "duplex-gpu"):
        argv = override["services"][service]["command"]
        config = parse_command_line(argv)  # every option is one of the server's
        assert config.model == (model,)
        assert config.engine.slots == 8
        assert options_of("torch", config.backend_option) == {"weights": "int8", "kv": "int8"}
        assert (config.port, config.free_rows_port) == (8998, 8999)
    with pytest.raises(ConfigError, match=f"cannot write {file}: File exists"):
        main(command)
    capsys.readouterr()
    assert main([*command[:-1], "-"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == override


def test_each_gpu_of_a_machine_has_a_worker_that_sees_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "compose.override.yaml"
    assert main(f"--fits H100 --modality duplex --sessions 40 --gpus 8 --compose {file}".split()) == 0
    capsys.readouterr()
    found = yaml.safe_load(file.read_text())["services"]
    workers = ["duplex-gpu", *(f"duplex-gpu-{number}" for number in range(1, 8))]
    assert [name for name in found if "gpu" in name] == workers
    assert {tuple(found[name]["command"]) for name in workers} == {tuple(found["duplex-gpu"]["command"])}
    for number, name in enumerate(workers[1:], start=1):
        assert found[name]["extends"] == {"file": "compose.yaml", "service": "duplex-gpu"}
        assert found[name]["environment"] == {"CUDA_VISIBLE_DEVICES": str(number)}
    schema = json.loads((ROOT / "tests" / "compose" / "schema" / "compose-spec.json").read_text())
    jsonschema.Draft7Validator(schema).validate(yaml.safe_load(file.read_text()))


def test_what_fits_has_computed_milliseconds_and_sessions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--fits", "141GB", "--modality", "duplex", "--sessions", "64"]) == 0
    text = capsys.readouterr().out
    assert "  H100 " not in text  # 64 calls in bfloat16 need more than its memory
    assert "\na tick of 64 sessions at full context (computed, not measured):\n" in text
    (found,) = re.findall(r"^  H200 +([\d.]+) ms  time would hold (\d+) sessions$", text, re.MULTILINE)
    family = next(one for one in FAMILIES.speech if one.name == "moshiko")
    assert float(found[0]) == pytest.approx(family.work("bf16").tick_ms(64, CARDS[0]), abs=0.05)
    assert int(found[1]) > 64
    assert main(["--fits", "16GB", "--modality", "text", "--sessions", "4"]) == 0
    assert "computed" not in capsys.readouterr().out


@pytest.mark.parametrize("family", FAMILIES.speech, ids=lambda family: family.name)
def test_calls_on_a_card_are_in_its_memory_and_in_time(family: SpeechFamily) -> None:
    limit_ms = 1000 * tick_limit_s(0.08, reserve_fraction=EngineConfig().tick_reserve_fraction)
    for card, precision in itertools.product(CARDS, family.precisions):
        calls, work = calls_on(card, family, precision), family.work(precision)
        memory = speech_facts(family, precision, round(card.memory_bytes))
        assert memory.needed(calls) <= (1 - FREE) * card.memory_bytes or calls == 0
        if family.kind.has_deadlines and calls:  # ticks of T ms meet calls x T / 80 rows
            assert work.tick_ms(int(calls * limit_ms / 80) or 1, card) <= limit_ms
        is_large = memory.needed(1) > (1 - FREE) * card.memory_bytes
        assert calls > 0 or is_large or work.tick_ms(1, card) > limit_ms


def test_a_gpu_by_its_name_bounds_calls_by_time_too(capsys: pytest.CaptureFixture[str]) -> None:
    """In bfloat16 an L40S holds 17 calls and answers 7 in time."""
    assert main(["--fits", "L40S", "--modality", "duplex", "--sessions", "10"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("moshiko in int8, 10 sessions, in 47.70 GB\n")
    assert re.findall(r"^  (.*?) +[\d.]+ ms ", text, re.MULTILINE) == ["L40S"]
    command = (
        "antiphon serve --model hf://kyutai/moshiko-pytorch-bf16 \\\n      --backend-option weights=int8 "
    )
    assert command in text
    assert max(map(len, text.replace(antiphon_command(""), "antiphon ").splitlines())) <= 80
    assert card_named("rtx4090") is card_named("RTX 4090") is not None
    assert main(["--fits", "L4", "--modality", "duplex"]) == 1
    assert re.fullmatch(
        r"nothing fits: 1 session in 23,600,000,000 bytes; time is the limit: memory holds \d+ sessions? of "
        r"moshiko in int8, of which 0 are in time on L4; a tick of 1 session takes 3[4-9]\.\d ms "
        r"and may take 34 ms; see '.*antiphon models'\n",
        capsys.readouterr().err,
    )
    assert main(["--fits", "24GB", "--modality", "duplex", "--language", "en"]) == 0
    assert main(["--fits", "L40S", "--modality", "duplex", "--sessions", "90"]) == 1


def test_a_card_that_is_too_slow_for_one_call_holds_none(capsys: pytest.CaptureFixture[str]) -> None:
    """Two ticks of Moshi 7B in bfloat16 on an L4 do not fit in a frame, though its memory holds the model."""
    assert main(["--fits", "23GB", "--modality", "duplex"]) == 0
    text = capsys.readouterr().out
    assert re.search(
        r"^  L4 +\d+\.\d ms  too slow for one call, whose ticks may take 34 ms$", text, re.MULTILINE
    )
