"""The images of the stack: built, built again and compared, measured, and with a bill of materials each."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from lab.tools.stack.container_engine import ContainerEngine, StackError, pip_settings
from tests.support.stack.composefile import ROOT

DEBIAN = "docker.io/library/debian:bookworm-slim"
SUITE = "bookworm"
TORCH = "torch,pocket,quantize,otel"


@dataclass(frozen=True)
class ImageRecipe:
    """An image to build: its name, its Dockerfile from the root, and the arguments of the build.

    Wheels next to pip's index (``find_links``) are those of this machine, including torch for its CPU.
    """

    name: str
    dockerfile: str
    installs_wheels: bool = False
    takes_local_wheels: bool = True
    arguments: tuple[str, ...] = ()


PYTHON = ImageRecipe("docker.io/library/python:3.11.10-slim-bookworm", "lab/tools/stack/python.Dockerfile")
RECIPES = (
    ImageRecipe("antiphon:cpu", "deploy/docker/cpu.Dockerfile", installs_wheels=True),
    ImageRecipe("antiphon-haproxy:debian", "deploy/docker/haproxy.Dockerfile"),
    ImageRecipe("antiphon-prometheus:debian", "deploy/docker/prometheus.Dockerfile"),
)
LARGE = (
    ImageRecipe(
        "antiphon:cpu-torch",
        "deploy/docker/cpu.Dockerfile",
        installs_wheels=True,
        arguments=("--build-arg", f"EXTRAS={TORCH}"),
    ),
    ImageRecipe(
        "antiphon:cuda",
        "deploy/docker/cuda.Dockerfile",
        installs_wheels=True,
        takes_local_wheels=False,
    ),
)
"""Gigabytes each: built only on request."""


@dataclass(frozen=True)
class BuiltImage:
    """One image: its build time, its content, and the files that differ in a second build (``None`` without a
    second build)."""

    name: str
    build_s: float
    size_bytes: int
    user: str
    packages: int = 0
    files: int = 0
    differing: tuple[str, ...] | None = None
    is_same_image: bool = False


def base(engine: ContainerEngine, epoch_s: int) -> float:
    """Make Debian's base image and the Python image on it, named as the published ones; returns the
    seconds."""
    tar = engine.work / "base.tar"
    sources = "/etc/apt/sources.list.d/debian.sources"
    known = [sources] if Path(sources).exists() else []
    command = ["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", SUITE, str(tar), *known]
    tar.unlink(missing_ok=True)
    took_s = engine.timed("env", f"SOURCE_DATE_EPOCH={epoch_s}", *command)
    engine.podman("import", "--quiet", str(tar), DEBIAN)
    tar.unlink()
    return took_s + _build(engine, PYTHON, PYTHON.name, epoch_s)


def build_twice(
    engine: ContainerEngine, recipe: ImageRecipe, epoch_s: int, *, twice: bool = True
) -> BuiltImage:
    """Build an image, describe it, and with ``twice`` build it again from scratch to compare."""
    took_s = _build(engine, recipe, recipe.name, epoch_s)
    size, user, first_id = engine.podman(
        "image", "inspect", "--format", "{{.Size}} {{.Config.User}} {{.Id}}", recipe.name
    ).split()
    built = BuiltImage(recipe.name, took_s, int(size), user)
    if not twice:
        return built
    again = f"{recipe.name}-again"
    _build(engine, recipe, again, epoch_s)
    second_id = engine.podman("image", "inspect", "--format", "{{.Id}}", again)
    with mounted(engine, recipe.name) as here, mounted(engine, again) as there:
        ours, theirs = file_hashes(here), file_hashes(there)
    if first_id != second_id:
        engine.podman("rmi", again)
    else:
        engine.podman("untag", again, again)
    return replace(
        built,
        files=len(ours),
        differing=differing(ours, theirs),
        is_same_image=first_id == second_id,
    )


def _build(engine: ContainerEngine, recipe: ImageRecipe, name: str, epoch_s: int) -> float:
    left = () if recipe.takes_local_wheels else ("find-links",)
    lent = pip_settings(engine, left) if recipe.installs_wheels else []
    return engine.timed(
        *("buildah", "bud", "--isolation", "chroot", "--network", "host", "--pull-never"),
        *("--no-cache", "--timestamp", str(epoch_s), *lent, *recipe.arguments),
        *("-f", recipe.dockerfile, "-t", name, str(ROOT)),
    )


@contextmanager
def mounted(engine: ContainerEngine, name: str) -> Iterator[Path]:
    """Mount the file system of an image read-only, and yield its path."""
    place = engine.podman("image", "mount", name)
    try:
        yield Path(place)
    finally:
        engine.podman("image", "unmount", name)


def file_hashes(root: Path) -> Mapping[str, str]:
    """Return for every path a text of its kind, mode, owner and the SHA-256 of its content; times are
    ignored."""
    found: dict[str, str] = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            info = path.lstat()
            if stat.S_ISLNK(info.st_mode):
                held = str(path.readlink())
            elif stat.S_ISREG(info.st_mode):
                with path.open("rb") as file:
                    held = hashlib.file_digest(file, "sha256").hexdigest()
            else:
                held = ""
            key = str(path.relative_to(root))
            found[key] = f"{info.st_mode:o} {info.st_uid}:{info.st_gid} {held}"
    return found


def differing(ours: Mapping[str, str], theirs: Mapping[str, str]) -> tuple[str, ...]:
    """Return the paths that only one of two file systems has, or that differ."""
    return tuple(sorted(path for path in ours.keys() | theirs.keys() if ours.get(path) != theirs.get(path)))


def room_for(work: Path, gigabytes: int) -> None:
    """Check that the disk has ``gigabytes`` free, before a build that could fill it.

    Raises:
        StackError: less space is free.
    """
    free = shutil.disk_usage(work).free / 1e9
    if free < gigabytes:
        raise StackError(f"{gigabytes} GB are needed in {work}, {free:.0f} are free")
