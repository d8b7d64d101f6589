"""compose.yaml: its schema, the rules for all services, and no other service in tests."""

from __future__ import annotations

import configparser
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
import yaml

from antiphon.backends.registry import check_options, options_of
from antiphon.limits import Limits
from antiphon.serve.hosting.options import parse_command_line
from antiphon.serve.hosting.uploads import LARGEST_ON_DISK
from antiphon_quantize.advice.families import MIMI_BYTES, MIMI_STATE_BYTES, load_families
from tests.compose.conftest import VALUES
from tests.support.stack.composefile import COMPOSE, ROOT, interpolate, read_compose, services
from tests.support.stack.stack import place

SCHEMA = Path(__file__).parent / "schema" / "compose-spec.json"
NOT_OURS = {
    "asterisk": "Asterisk's own exchange; its configuration is read by tests/compose/test_composefile.py",
    "grafana": "its dashboard's queries are asked of Prometheus in tests/compose/test_watching.py",
    "llm": "llama.cpp's own server, with a model of gigabytes",
    "llm-gpu": "vLLM's own server, with a model of gigabytes",
    "duplex-gpu": "the command of duplex and a device; needs a card",
    "stt-gpu": "the command of stt and a device; needs a card",
    "tts-gpu": "the command of tts and a device; needs a card",
}
STARTED = {"agent", "balancer", "duplex", "echo", "stt", "tts", "graphs", "prometheus"}
"""What tests/compose starts with the very commands of the file; workers with patient.yaml on top."""

OPEN_FILES = 8_223
"""What HAProxy asks for with maxconn 4000: two a connection, and its own."""

GPU_ENV = dict(
    line.split("=", 1)
    for line in (ROOT / "deploy" / "gpu.env").read_text().splitlines()
    if line and not line.startswith("#")
)
"""What the documented command for a machine with GPUs sets."""

ONE_SHOT = {"graphs"}
"""Services that do one thing and end."""


def test_it_is_what_the_published_schema_says() -> None:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    assert [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(read_compose())] == []
    broken = read_compose()
    broken["services"]["balancer"]["depend_on"] = []
    assert list(jsonschema.Draft7Validator(schema).iter_errors(broken)) != []


def test_every_service_is_started_in_tests_or_has_its_reason() -> None:
    assert set(services()) == STARTED | set(NOT_OURS)


WORKERS = sorted(name for name, it in services().items() if it.raw.get("entrypoint") == ["antiphon", "serve"])


@pytest.mark.parametrize("name", WORKERS)
def test_the_recordings_of_two_front_ends_have_room(name: str) -> None:
    (temporary,) = services()[name].raw["tmpfs"]
    match = re.match(r"/tmp:size=(\d+)m,", temporary)
    assert match
    assert int(match[1]) << 20 >= 2 * LARGEST_ON_DISK * Limits().max_upload_bytes


@pytest.mark.parametrize("name", services())
def test_every_service_is_hardened(name: str) -> None:
    raw = services()[name].raw
    assert raw["read_only"] is True
    assert raw["cap_drop"] == ["ALL"]
    assert raw["security_opt"] == ["no-new-privileges:true"]
    assert int(raw["user"].split(":")[0]) > 0
    assert raw["logging"]["options"].keys() >= {"max-size", "max-file"}
    assert raw["mem_limit"]
    assert raw["pids_limit"]
    assert raw["ulimits"]["nofile"]["hard"] >= OPEN_FILES
    assert raw["restart"] == ("no" if name in ONE_SHOT else "unless-stopped")
    assert "privileged" not in raw
    assert name in ONE_SHOT or raw["healthcheck"]["test"][0] == "CMD"
    image = raw["image"].rpartition(":")[2]
    assert image not in {"latest", raw["image"]}  # a version, always


@pytest.mark.parametrize("name", services())
def test_only_the_balancer_is_published(name: str) -> None:
    """Everything else that is published is published to this machine; nothing writes where it could run."""
    raw = services()[name].raw
    published = [port for port in raw.get("ports", []) if not port.startswith("127.0.0.1:")]
    assert published == (["8443:8443"] if name == "balancer" else [])
    from_here = [volume for volume in raw.get("volumes", []) if volume.startswith(".")]
    assert all(volume.endswith(":ro") for volume in from_here)


def test_secrets_are_files() -> None:
    data = read_compose()
    assert all(set(secret) == {"file"} for secret in data["secrets"].values())
    words = re.compile(r"(?i)password|secret|token|key")
    for name, service in services().items():
        for variable, value in service.environment.items():
            assert not words.search(variable) or value.startswith("/run/secrets/"), (name, variable)


def test_workers_are_given_time_to_drain() -> None:
    for name, service in services().items():
        if service.argv[:2] == ["antiphon", "serve"] or name == "balancer":
            grace_s = int(service.raw["stop_grace_period"].removesuffix("s"))
            assert grace_s > Limits().drain_timeout_s


@pytest.mark.parametrize("name", ["stt", "tts"])
def test_workers_on_a_cpu_have_room_for_their_model_in_float32(name: str) -> None:
    """On torch, as long as it has no graphs, with eight rows and a fifth for all else; then to make them."""
    raw = services()[name].raw
    (family,) = [it for it in load_families().speech if f"--model={it.model()}" in raw["command"]]
    weights = 4 * family.parameters
    row = 2 * family.kv_bytes("bf16") + MIMI_STATE_BYTES
    assert 1.2 * (weights + MIMI_BYTES + 8 * row) <= limit_bytes(raw)
    assert 1.5 * weights + 4e9 <= limit_bytes(services()["graphs"].raw)


def test_the_agent_finds_its_text_model_whichever_it_is() -> None:
    argv = services({"AGENT_STT_MODEL": "tiny-stt", "AGENT_TTS_MODEL": "tiny-tts"})["agent"].argv
    assert argv[:2] == ["antiphon", "serve"]
    config = parse_command_line(argv[2:])
    (agent,) = config.served_agents
    (text_model,) = agent.text_models
    url = urlsplit(text_model.llm)
    for name in ("llm", "llm-gpu"):
        raw = services()[name].raw
        names = [name] if isinstance(raw["networks"], list) else raw["networks"]["inside"]["aliases"]
        words = raw["command"]
        assert url.hostname in names
        assert words[words.index("--port") + 1] == str(url.port)
        assert set(raw["profiles"]) < set(services()["agent"].raw["profiles"])
        parallel = int(words[words.index("--parallel") + 1]) if name == "llm" else 1
        context = int(words[words.index("--ctx-size" if name == "llm" else "--max-model-len") + 1])
        assert context / parallel >= 1.5 * (agent.max_history_tokens + agent.max_reply_tokens)
    assert list(config.model) == ["tiny-stt", "tiny-tts"]


def test_asterisk_reaches_the_agent_and_has_the_ports_that_it_uses() -> None:
    read = {
        name: configparser.ConfigParser(delimiters=("=",), comment_prefixes=(";",))
        for name in ("pjsip", "rtp", "websocket_client")
    }
    for name, parser in read.items():
        parser.read_string((ROOT / "deploy" / "asterisk" / f"{name}.conf").read_text())
    url = urlsplit(read["websocket_client"]["antiphon"]["uri"])
    assert (url.scheme, url.hostname, url.path) == ("ws", "balancer", "/m/agent/asterisk")
    assert f"127.0.0.1:8080:{url.port}" in services()["balancer"].raw["ports"]
    sip = read["pjsip"]["udp"]["bind"].rpartition(":")[2]
    first, last = (read["rtp"]["general"][name] for name in ("rtpstart", "rtpend"))
    raw = services()["asterisk"].raw
    assert raw["ports"] == [
        f"127.0.0.1:{sip}:{sip}/udp",
        f"127.0.0.1:{first}-{last}:{first}-{last}/udp",
    ]
    directories = (ROOT / "deploy" / "asterisk" / "asterisk.conf").read_text()
    written = set(re.findall(r"=> (/run\S+)", directories))
    assert [f"{it}:size=64m,mode=1777" for it in written] == raw["tmpfs"]


@pytest.mark.parametrize("name", ["agent", "duplex", "echo", "stt", "tts"])
def test_workers_that_share_a_machine_do_not_spin(name: str) -> None:
    argv = services()[name].argv
    assert "--device=cuda" not in argv
    given = [word.partition("=")[2] for word in argv if word.startswith("--backend-option=")]
    assert options_of("onnx", given) == {"spin": False}
    check_options("onnx", options_of("onnx", given))
    assert options_of("torch", given) == options_of("pocket", given) == {}


def limit_bytes(raw: Mapping[str, Any]) -> int:
    """Docker's g is 2^30."""
    return int(raw["mem_limit"].removesuffix("g")) * 2**30


def test_variables_have_defaults_and_take_values() -> None:
    text = COMPOSE.read_text()
    assert re.findall(r"\$(?!\{\w+:-)", text.split("services:", 1)[1]) == []
    assert interpolate("a ${X:-b} ${Y:-}", {"X": "c"}) == "a c "
    assert "--slots=2" in services(VALUES)["duplex"].argv
    assert "--slots=auto" in services()["duplex"].argv


def test_the_balancer_has_every_service_that_serves() -> None:
    config = (ROOT / "deploy" / "haproxy" / "haproxy.cfg").read_text()
    names = {
        name
        for service in services().values()
        if service.argv[:2] == ["antiphon", "serve"] and "ports" not in service.raw  # reached by itself
        for name in service.dns_names
        if name in services() and "gpu" not in name
    }
    for name in names:
        assert f'"${{{name.upper()}_ADDRESS-{name}:8998}}"' in config
        assert f"backend {name} from service" in config
        assert f"backend {name}-queue from queue" in config
        assert services()["balancer"].environment[f"{name.upper()}_MODEL"]


def test_placing_replaces_what_it_should_and_nothing_else() -> None:
    argv = ["serve", "--host=0.0.0.0", "--port=8998"]
    assert place(argv, {"=0.0.0.0": "=127.0.1.1", "=8998": "=4000"}) == [
        "serve",
        "--host=127.0.1.1",
        "--port=4000",
    ]
    with pytest.raises(AssertionError, match="more than hosts, ports and mounts would differ"):
        place(["--port=8998", "--slots=4000"], {"=8998": "=4000"})


def test_the_environment_for_cards_is_an_environment() -> None:
    assert set(GPU_ENV) <= set(re.findall(r"\$\{(\w+):-", COMPOSE.read_text()))
    model = GPU_ENV["DUPLEX_MODEL"]
    assert f"--model={model}" in services(GPU_ENV)["duplex-gpu"].argv
    assert services(GPU_ENV)["balancer"].environment["DUPLEX_MODEL"] == model


def test_the_file_is_yaml_that_repeats_no_key() -> None:
    """PyYAML takes the last of two equal keys, Docker refuses them."""

    class Strict(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
            keys = [key.value for key, _ in node.value if key.value != "<<"]
            assert len(keys) == len(set(keys)), keys
            return dict(super().construct_mapping(node, deep))

    yaml.load(COMPOSE.read_text(), Strict)


@pytest.mark.parametrize(("profile", "values"), [("gpu", {}), ("gpu", GPU_ENV), ("gpu-duplex", GPU_ENV)])
def test_workers_that_take_all_free_memory_share_no_gpu(profile: str, values: Mapping[str, str]) -> None:
    found = {
        name: it.environment["CUDA_VISIBLE_DEVICES"]
        for name, it in services(values).items()
        if profile in it.raw.get("profiles", []) and "--device=cuda" in it.argv and "--slots=auto" in it.argv
    }
    assert (
        found
        == {"gpu-duplex": {"duplex-gpu": "0"}, "gpu": {"duplex-gpu": "0", "stt-gpu": "1", "tts-gpu": "2"}}[
            profile
        ]
    )


def test_the_text_model_has_one_gpu_and_a_stated_share_of_it() -> None:
    for values, wanted in (({}, ("0", "0.9")), ({"LLM_GPU": "3", "LLM_GPU_MEMORY": "0.5"}, ("3", "0.5"))):
        service = services(values)["llm-gpu"]
        (device,) = service.raw["deploy"]["resources"]["reservations"]["devices"]
        assert device == {"driver": "nvidia", "device_ids": [wanted[0]], "capabilities": ["gpu"]}
        assert service.argv[service.argv.index("--gpu-memory-utilization") + 1] == wanted[1]


@pytest.mark.parametrize(("name", "gpu"), [("duplex", "0"), ("stt", "1"), ("tts", "2")])
def test_a_worker_on_a_gpu_sees_one_and_keeps_int8_until_a_variable_says_otherwise(
    name: str, gpu: str
) -> None:
    number = f"{name.upper()}_GPU"
    for values, wanted in (
        ({}, (gpu, "int8")),
        ({number: "3", "GPU_PRECISION": "compute"}, ("3", "compute")),
    ):
        service = services(values)[f"{name}-gpu"]
        given = [word.partition("=")[2] for word in service.argv if word.startswith("--backend-option=")]
        assert (service.environment["CUDA_VISIBLE_DEVICES"], *options_of("torch", given).values()) == (
            *wanted,
            wanted[1],
        )
        assert options_of("torch", given).keys() == {"weights", "kv"}
        assert options_of("onnx", given) == {}
