"""deploy/keys.yaml with compose.yaml: every worker requires a key, and one command makes one."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml

from antiphon.serve.access import new_key
from antiphon.serve.hosting.options import parse_command_line
from tests.compose.conftest import VALUES
from tests.compose.test_composefile import SCHEMA
from tests.support.stack.composefile import KEYS, ROOT, read_compose, services
from tests.support.stack.stack import Stack, running_stack

SERVE = ["antiphon", "serve"]
MODELS = "/m/echo/api/models"


def test_it_is_what_the_published_schema_says() -> None:
    validator = jsonschema.Draft7Validator(json.loads(SCHEMA.read_text()))
    assert list(validator.iter_errors(yaml.safe_load(KEYS.read_text()))) == []


def test_every_worker_asks_for_a_key_and_nothing_else_changes() -> None:
    plain, keyed = services(), services(overrides=[KEYS])
    assert keyed.keys() == plain.keys()
    for name, service in keyed.items():
        before, after = dict(plain[name].raw), dict(service.raw)
        if plain[name].argv[:2] == SERVE:
            config = parse_command_line(service.argv[2:])
            assert config.api_keys == "/run/keys/api-keys"
            assert after.pop("entrypoint") == [*before.pop("entrypoint"), "--api-keys=/run/keys/api-keys"]
            # The file's folder: a file that is replaced on its host is not seen through a mount of the file.
            mount = "./deploy/secrets/keys:/run/keys:ro"
            assert after.pop("volumes") == [*before.pop("volumes"), mount]
        assert after == before
    assert read_compose(overrides=[KEYS])["secrets"] == read_compose()["secrets"]


def revoke_alice(file: Path) -> None:
    """Take her key away with the command of deploy/README.md."""
    (line,) = re.findall(r"^(sed .*alice.*)$", (ROOT / "deploy" / "README.md").read_text(), re.MULTILINE)
    command = shlex.split(line)
    assert command.pop() == "deploy/secrets/keys/api-keys"
    inode = file.stat().st_ino
    subprocess.run([*command, str(file)], check=True)
    assert file.stat().st_ino != inode  # replaced, as editors do


async def test_keys_give_access_as_long_as_they_are_in_the_file(
    tmp_path: Path, certificate: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "keys"
    folder.mkdir()
    file = folder / "api-keys"

    def make_key(name: str) -> str:
        new_key.main([name])
        line, said = capsys.readouterr()
        with file.open("a") as keys:  # as >> does
            keys.write(line)
        return said.split()[-1]

    async def status(stack: Stack, key: str) -> int:
        async with stack.http.get(stack.url + MODELS, headers={"Authorization": f"Bearer {key}"}) as it:
            return it.status

    alice = make_key("alice")
    values = {**VALUES, "ANTIPHON_KEYS": str(folder)}
    async with running_stack(tmp_path, {"echo": 1}, values, certificate, overrides=[KEYS]) as stack:
        await stack.sees("echo", {worker.host: 2 for worker in stack.of("echo")})
        await stack.sees("echo-queue", {worker.host: 1 for worker in stack.of("echo")})  # it lists models
        assert (await stack.get(stack.url + MODELS))[0] == 401
        assert await status(stack, alice) == 200
        # The list of all models is the load balancer's, for those whom a worker lets in.
        models = f"{stack.url}/v1/models"
        assert (await stack.get(models))[0] == 401
        async with stack.http.get(models, headers={"Authorization": f"Bearer {alice}"}) as listed:
            assert [entry["id"] for entry in (await listed.json())["data"]] == ["echo"]
        assert await status(stack, alice[::-1]) == 401
        bob = make_key("bob")
        assert await status(stack, bob) == 200
        revoke_alice(file)
        assert [await status(stack, key) for key in (alice, bob)] == [401, 200]
        assert [worker.process.exit_code for worker in stack.workers if worker.process] == [None]
