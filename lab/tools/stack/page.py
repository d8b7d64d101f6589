"""The page of a run: a table of images, and the log."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence

from lab.tools.stack.images import BuiltImage

HEAD = """# The stack in containers

Made by `sudo make stack`: images from Debian's packages by buildah, `compose.yaml` with
`deploy/debian.yaml` run by podman-compose over runc, with container networks and names.
{cpus} cores, Linux {kernel}, load {load:.1f} at the end.
"""

IMAGES = """
## Images

| image | built in | size | user | packages (SPDX) | a second build, without cache |
|---|---|---|---|---|---|
"""

LOG = """
## Log

Seconds since the start; `antiphon probe` holds the calls in real time through the load balancer.
A call that is refused or fails, or a lost frame, ends the run.

"""


def page(built: Sequence[BuiltImage], lines: Sequence[str]) -> str:
    """Return the page of a run as Markdown."""
    parts = [
        HEAD.format(cpus=os.cpu_count(), kernel=platform.release().split("-")[0], load=os.getloadavg()[0])
    ]
    if built:
        parts += [IMAGES, *(_row(image) for image in built)]
    parts += [LOG, *(f"    {line}\n" for line in lines)]
    return "".join(parts)


def _row(image: BuiltImage) -> str:
    columns = (
        f"`{image.name}`",
        f"{image.build_s:.0f} s",
        f"{image.size_bytes / 1e6:.0f} MB",
        image.user,
        str(image.packages),
        _second(image),
    )
    return f"| {' | '.join(columns)} |\n"


def _second(image: BuiltImage) -> str:
    if image.differing is None:
        return "not made"
    if image.is_same_image:
        return "the same image, bit for bit"
    if not image.differing:
        return f"the same {image.files} files"
    return f"{len(image.differing)} of {image.files} files differ: {', '.join(image.differing[:3])}"
