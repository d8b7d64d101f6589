"""deploy/keys.yaml on top of compose.yaml: every worker asks for a key, and one command makes one."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from antiphon.serve import new_key
from antiphon.serve.options import parse_command_line
from tests.compose.conftest import VALUES
from tests.compose.test_composefile import SCHEMA
from tools.stack.composefile import KEYS, read_compose, services
from tools.stack.stack import Stack, running_stack

SERVE = ["antiphon", "serve"]
BUILD_INFO = "/m/echo/api/build_info"


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
            assert config.api_keys == "/run/secrets/api-keys"
            assert after.pop("entrypoint") == [*before.pop("entrypoint"), "--api-keys=/run/secrets/api-keys"]
            assert after.pop("secrets") == ["api-keys"]
        assert after == before
    assert read_compose(overrides=[KEYS])["secrets"].keys() - read_compose()["secrets"] == {"api-keys"}


async def test_keys_of_the_file_open_the_door_as_soon_as_they_are_in_it(
    tmp_path: Path, certificate: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "api-keys"

    def make_key(name: str) -> str:
        new_key.main([name])
        line, said = capsys.readouterr()
        with file.open("a") as keys:  # as >> does
            keys.write(line)
        return said.split()[-1]

    async def status(stack: Stack, key: str) -> int:
        async with stack.http.get(stack.url + BUILD_INFO, headers={"Authorization": f"Bearer {key}"}) as it:
            return it.status

    alice = make_key("alice")
    values = {**VALUES, "ANTIPHON_API_KEYS": str(file)}
    async with running_stack(tmp_path, {"echo": 1}, values, certificate, overrides=[KEYS]) as stack:
        await stack.sees("echo", {worker.host: 2 for worker in stack.of("echo")})
        assert (await stack.get(stack.url + BUILD_INFO))[0] == 401
        assert await status(stack, alice) == 200
        assert await status(stack, alice[::-1]) == 401
        assert await status(stack, make_key("bob")) == 200
