"""Dockerfiles, manifests and the workflow, checked by their own tools and against compose.yaml."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
import warnings
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from antiphon.backends.registry import options_of
from tests.support.stack.composefile import ROOT, read_compose, services

DOCKER = ROOT / "deploy" / "docker"
DEBIAN = ROOT / "deploy" / "debian.yaml"
KUBERNETES = ROOT / "deploy" / "kubernetes"
MANIFESTS = [file for file in sorted(KUBERNETES.glob("*.yaml")) if file.name != "kustomization.yaml"]


@pytest.mark.parametrize("name", sorted(file.name for file in DOCKER.iterdir()))
def test_hadolint_finds_nothing(name: str) -> None:
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert program is not None
    command = [program, str(DOCKER / name)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert (run.returncode, run.stdout) == (0, ""), run.stderr


@pytest.mark.parametrize("name", ["cpu.Dockerfile", "cuda.Dockerfile"])
def test_images_are_small_pinned_and_nobodys(name: str) -> None:
    text = (DOCKER / name).read_text()
    bases = [line.split()[1] for line in text.splitlines() if line.startswith("FROM ")]
    assert bases == ["python:3.11.10-slim-bookworm"] * 2  # built in one, run in another
    assert "USER 10001:10001" in text
    assert 'ENTRYPOINT ["antiphon"]' in text
    assert "-c constraints.txt" in text
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for source in " ".join(line[5:] for line in text.splitlines() if line.startswith("COPY ")).split():
        if (ROOT / source).exists() and not source.startswith("."):
            assert f"!{source}" in ignored


@pytest.mark.parametrize("name", ["haproxy", "prometheus"])
def test_images_of_debian_run_what_compose_starts(name: str) -> None:
    """With the users of compose.yaml, under the names that deploy/debian.yaml gives them."""
    text = (DOCKER / f"{name}.Dockerfile").read_text()
    (service,) = [item for item in services({}, [DEBIAN]).values() if f"{name}:debian" in item.raw["image"]]
    assert service.raw["build"]["dockerfile"] == f"deploy/docker/{name}.Dockerfile"
    assert f"USER {service.raw['user']}\n" in text
    assert f'ENTRYPOINT ["{service.argv[0]}"]' in text
    assert "FROM debian:bookworm-slim\n" in text


def test_debians_override_is_what_the_published_schema_says() -> None:
    schema = json.loads((Path(__file__).parent / "schema" / "compose-spec.json").read_text())
    merged = read_compose({}, [DEBIAN])
    assert [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(merged)] == []
    environment = merged["services"]["balancer"]["environment"]
    network = merged["networks"]["inside"]["ipam"]["config"][0]["subnet"]
    assert ip_address(environment["DNS_ADDRESS"].split(":")[0]) == next(ip_network(network).hosts())
    assert set(environment) > {"DNS_ADDRESS", "DUPLEX_MODEL"}


def test_torch_is_in_the_images_of_what_needs_it() -> None:
    """Built-in models have graphs; published ones have none, and the service graphs makes them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name, service in services().items():
        raw = service.raw
        if "cpu.Dockerfile" not in raw.get("build", {}).get("dockerfile", ""):
            continue
        extras = raw["build"]["args"]["EXTRAS"].split(",")
        assert project["optional-dependencies"].keys() >= set(extras), name
        assert ("torch" in extras) == (name in {"agent", "stt", "tts", "graphs"}), name
        assert raw["image"] == ("antiphon:cpu-torch" if "torch" in extras else "antiphon:cpu"), name
    text = (DOCKER / "cpu.Dockerfile").read_text()
    assert f"ARG EXTRAS={services()['duplex'].raw['build']['args']['EXTRAS']}\n" in text


def documents() -> list[dict[str, Any]]:
    return [item for file in MANIFESTS for item in yaml.safe_load_all(file.read_text())]


@pytest.mark.parametrize(
    "document", documents(), ids=lambda item: f"{item['kind']}-{item['metadata']['name']}"
)
def test_manifests_are_what_kubernetes_schemas_say(document: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of its own imports
        import kubernetes_validate

        kubernetes_validate.validate(document, "1.30", strict=True)
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate({**document, "spce": {}}, "1.30", strict=True)


def test_every_manifest_is_named() -> None:
    kustomization = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    assert sorted(kustomization["resources"]) == sorted(file.name for file in MANIFESTS)
    for generator in kustomization["configMapGenerator"]:
        assert all((KUBERNETES / file).is_file() for file in generator["files"])


def test_pods_are_as_hardened_as_services_and_drain() -> None:
    pods = [item["spec"]["template"]["spec"] for item in documents() if item["kind"] == "Deployment"]
    assert len(pods) == 2
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["terminationGracePeriodSeconds"] == 75
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["lifecycle"]["preStop"]
    balancer, duplex = sorted((pod["containers"][0] for pod in pods), key=lambda container: container["name"])
    assert balancer["image"] == services()["balancer"].raw["image"]
    assert [*balancer["command"], *balancer["args"]] == services()["balancer"].argv
    wanted = [
        word for word in services()["duplex-gpu"].argv if word.startswith(("--host", "--port", "--free-rows"))
    ]
    assert set(wanted) <= set(duplex["args"])


def test_the_autoscaler_asks_for_a_recorded_number() -> None:
    (scaler,) = [item for item in documents() if item["kind"] == "HorizontalPodAutoscaler"]
    name = scaler["spec"]["metrics"][0]["external"]["metric"]["name"]
    recorded = (ROOT / "deploy" / "prometheus" / "rules" / "recorded.yml").read_text()
    assert f"record: {name.replace('_', ':', 1)}\n" in recorded


KEDA = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "keda.sh/v1alpha1"},
        "kind": {"const": "ScaledObject"},
        "spec": {
            "type": "object",
            "required": ["scaleTargetRef", "triggers"],
            "properties": {
                "scaleTargetRef": {"type": "object", "required": ["name"]},
                "pollingInterval": {"type": "integer"},
                "minReplicaCount": {"type": "integer"},
                "maxReplicaCount": {"type": "integer"},
                "fallback": {"type": "object", "required": ["failureThreshold", "replicas"]},
                "advanced": {"type": "object"},
                "triggers": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "required": ["type", "metadata"],
                        "properties": {
                            "type": {"const": "prometheus"},
                            "metricType": {"enum": ["AverageValue", "Value"]},
                            "metadata": {
                                "type": "object",
                                "required": ["serverAddress", "query", "threshold"],
                                "additionalProperties": {"type": "string"},
                            },
                        },
                        "additionalProperties": False,
                    },
                },
            },
            "additionalProperties": False,
        },
    },
}
"""What is used of KEDA's ScaledObject; its own schema is in no package."""


def test_keda_scales_as_the_autoscaler_does() -> None:
    (scaled,) = yaml.safe_load_all((KUBERNETES / "keda" / "duplex.yaml").read_text())
    validator = jsonschema.Draft7Validator(KEDA)
    assert [error.message for error in validator.iter_errors(scaled)] == []
    assert list(validator.iter_errors({**scaled, "spec": {**scaled["spec"], "trigger": []}})) != []
    (scaler,) = [item for item in documents() if item["kind"] == "HorizontalPodAutoscaler"]
    spec, (trigger,) = scaled["spec"], scaled["spec"]["triggers"]
    assert spec["scaleTargetRef"] == scaler["spec"]["scaleTargetRef"]
    assert spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == scaler["spec"]["behavior"]
    limits = (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"])
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == limits
    external = scaler["spec"]["metrics"][0]["external"]
    service = external["metric"]["selector"]["matchLabels"]["service"]
    name = external["metric"]["name"].replace("_", ":", 1)
    assert trigger["metadata"]["query"] == f'{name}{{service="{service}"}}'
    assert trigger["metadata"]["threshold"] == external["target"]["averageValue"]


def test_the_workflow_starts_what_compose_has() -> None:
    extras = read_compose()["x-torch"]["build"]["args"]["EXTRAS"]
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "images.yml").read_text())
    steps = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    text = "\n".join(steps)
    for name in ("cpu.Dockerfile", "cuda.Dockerfile"):
        assert f"deploy/docker/{name}" in text
    assert f"--build-arg EXTRAS={extras} -t antiphon:cpu-torch" in text
    assert f"EXTRAS={extras} " in (DOCKER / "cpu.Dockerfile").read_text()  # the command in its head
    for secret in read_compose()["secrets"].values():
        assert Path(secret["file"]).name in text
    assert "--profile edge up" in text


@pytest.mark.parametrize("name", ["duplex-gpu", "stt-gpu", "tts-gpu"])
def test_compiled_kernels_outlast_a_container(name: str) -> None:
    """In a volume that takes its owner from a folder of the image, which the server's user may write."""
    raw = services()[name].raw
    folder = raw["environment"]["TRITON_CACHE_DIR"]
    assert f"kernels:{folder}" in raw["volumes"]
    assert re.search(rf"install -d -o antiphon .*{folder}\b", (DOCKER / "cuda.Dockerfile").read_text())


def test_a_pod_has_one_gpu_keeps_kernels_and_int8_until_a_variable_says_otherwise() -> None:
    (pod,) = [
        item["spec"]["template"]["spec"]
        for item in documents()
        if item["kind"] == "Deployment" and item["metadata"]["name"] == "duplex"
    ]
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    values = {entry["name"]: entry["value"] for entry in container["env"]}
    (kernels,) = [it for it in container["volumeMounts"] if it["mountPath"] == values["TRITON_CACHE_DIR"]]
    assert kernels["name"] in {it["name"] for it in pod["volumes"] if "persistentVolumeClaim" in it}
    given = [re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], word) for word in container["args"]]
    kept = options_of(
        "torch", [word.partition("=")[2] for word in given if word.startswith("--backend-option=")]
    )
    assert kept == {"weights": "int8", "kv": "int8"}
