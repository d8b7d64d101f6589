"""A bill of materials (SPDX 2.3) of an image: the Debian and Python packages that the image records."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.parser import Parser
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

OWN_LICENCE = re.compile(r"LicenseRef-[A-Za-z0-9.-]+")
"""A licence that is not on SPDX's list: a document names each that its packages refer to."""

NO_TEXT = (
    "This document has no copy of the licence. A package that declares it may carry the text in its "
    ".dist-info folder in the image."
)
"""SPDX requires a text for such a licence."""


@dataclass(frozen=True, order=True)
class BillPackage:
    """A Debian package (``deb``) or a Python package (``pypi``), with its licence if the package states
    one."""

    kind: str
    name: str
    version: str
    licence: str = ""

    @property
    def url(self) -> str:
        """The package URL, with which scanners look up vulnerabilities."""
        place = "deb/debian" if self.kind == "deb" else "pypi"
        return f"pkg:{place}/{quote(self.name)}@{quote(self.version)}"


def packages(root: Path) -> list[BillPackage]:
    """Return the installed packages in the file system of an image, in order."""
    return sorted({*_debian(root), *_python(root)})


def _debian(root: Path) -> Iterator[BillPackage]:
    status = root / "var" / "lib" / "dpkg" / "status"
    for paragraph in status.read_text().split("\n\n"):
        fields = Parser().parsestr(paragraph)
        if fields["Status"] == "install ok installed":
            yield BillPackage("deb", fields["Package"], fields["Version"])


def _python(root: Path) -> Iterator[BillPackage]:
    folders = [str(folder) for folder in root.glob("opt/*/lib/python3.*/site-packages")]
    for found in distributions(path=folders):
        said = found.metadata.json
        licence = str(said.get("license_expression", ""))
        yield BillPackage("pypi", str(said["name"]), found.version, licence)


def bill(image: str, found: list[BillPackage], epoch_s: int) -> dict[str, Any]:
    """Return the bill of materials; the same packages at the same time make the same bytes."""
    created = datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    names = {package: f"SPDXRef-{_letters(f'{package.kind}-{package.name}')}" for package in found}
    own = sorted({licence for package in found for licence in OWN_LICENCE.findall(package.licence)})
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": image,
        "documentNamespace": f"https://antiphon.invalid/spdx/{_letters(image)}/{epoch_s}",
        "creationInfo": {"created": created, "creators": ["Tool: antiphon-make-stack"]},
        "packages": [_entry(package, name) for package, name in names.items()],
        "relationships": [
            {
                "spdxElementId": "SPDXRef-DOCUMENT",
                "relationshipType": "DESCRIBES",
                "relatedSpdxElement": name,
            }
            for name in names.values()
        ],
        "hasExtractedLicensingInfos": [{"licenseId": licence, "extractedText": NO_TEXT} for licence in own],
    }


def write(file: Path, document: dict[str, Any]) -> None:
    """Write a bill of materials as JSON."""
    file.write_text(json.dumps(document, indent=1) + "\n")


def _letters(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "-", text)


def _entry(package: BillPackage, name: str) -> dict[str, Any]:
    return {
        "SPDXID": name,
        "name": package.name,
        "versionInfo": package.version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": package.licence or "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "externalRefs": [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": package.url,
            }
        ],
    }
