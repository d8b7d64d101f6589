"""The stack's tool without a container: trees of files, bills of materials, pages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from lab.tools.stack.bill import BillPackage, bill, packages, write
from lab.tools.stack.container_engine import SAME_WORDS, ContainerEngine, StackError, pip_settings
from lab.tools.stack.images import LARGE, BuiltImage, differing, file_hashes, room_for
from lab.tools.stack.page import page
from tests.support.stack.composefile import ROOT

STATUS = """Package: haproxy
Status: install ok installed
Version: 2.6.12-1+deb12u4

Package: gone
Status: deinstall ok config-files
Version: 1.0
"""


def test_same_words_is_what_a_patient_worker_has_with_steps_of_one_shape() -> None:
    patient, same = (
        yaml.safe_load((ROOT / file).read_text())["services"]["duplex"]["entrypoint"]
        for file in ("tests/compose/patient.yaml", SAME_WORDS)
    )
    assert {*same} == {*patient, "--fixed-batch", "--tune=host_lag_ms=10000"}


def test_an_image_for_cards_takes_no_wheels_of_this_machine(tmp_path: Path) -> None:
    """Pip's index also has torch for this machine's CPU, which pip would take for newer."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    listed = f"global.cert='/none.crt'\nglobal.find-links='{wheels}'\n"

    class ListingEngine(ContainerEngine):
        def run(self, *command: str, timeout_s: float = 900.0) -> str:
            return listed

    engine = ListingEngine(tmp_path, {})
    settings = tmp_path / "pip.conf"
    assert pip_settings(engine) == ["-v", f"{settings}:/etc/pip.conf:ro", "-v", f"{wheels}:{wheels}:ro"]
    assert f"find-links = {wheels}" in settings.read_text()
    assert pip_settings(engine, ("find-links",)) == ["-v", f"{settings}:/etc/pip.conf:ro"]
    assert settings.read_text() == "[global]\ncert = /none.crt\n"
    (cuda,) = [it for it in LARGE if it.name == "antiphon:cuda"]
    assert not cuda.takes_local_wheels


def tree(root: Path, text: str) -> Path:
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "name").write_text(text)
    (root / "link").symlink_to("etc/name")
    return root


def test_times_do_not_make_two_builds_differ_and_bytes_modes_and_links_do(tmp_path: Path) -> None:
    one, two = tree(tmp_path / "one", "a"), tree(tmp_path / "two", "a")
    (two / "etc" / "name").touch()
    assert differing(file_hashes(one), file_hashes(two)) == ()
    (two / "etc" / "name").write_text("b")
    assert differing(file_hashes(one), file_hashes(two)) == ("etc/name",)
    (two / "etc" / "name").write_text("a")
    (two / "etc" / "name").chmod(0o700)
    (two / "link").unlink()
    (two / "more").touch()
    assert differing(file_hashes(one), file_hashes(two)) == ("etc/name", "link", "more")


def test_a_bill_lists_what_is_installed_and_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    (tmp_path / "var" / "lib" / "dpkg").mkdir(parents=True)
    (tmp_path / "var" / "lib" / "dpkg" / "status").write_text(STATUS)
    info = tmp_path / "opt" / "antiphon" / "lib" / "python3.11" / "site-packages" / "numpy-2.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: numpy\nVersion: 2.0\nLicense-Expression: BSD-3-Clause\n"
    )
    found = packages(tmp_path)
    assert found == [
        BillPackage("deb", "haproxy", "2.6.12-1+deb12u4"),
        BillPackage("pypi", "numpy", "2.0", "BSD-3-Clause"),
    ]
    write(tmp_path / "one", bill("antiphon:cpu", found, 1_700_000_000))
    write(tmp_path / "two", bill("antiphon:cpu", packages(tmp_path), 1_700_000_000))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    said = json.loads((tmp_path / "one").read_text())
    assert said["creationInfo"]["created"] == "2023-11-14T22:13:20Z"
    assert [entry["externalRefs"][0]["referenceLocator"] for entry in said["packages"]] == [
        "pkg:deb/debian/haproxy@2.6.12-1%2Bdeb12u4",
        "pkg:pypi/numpy@2.0",
    ]
    assert {each["relatedSpdxElement"] for each in said["relationships"]} == {
        entry["SPDXID"] for entry in said["packages"]
    }


def test_a_bill_names_each_licence_of_a_package_that_spdx_has_not() -> None:
    licence = "MIT AND LicenseRef-NVIDIA-Proprietary"
    found = [BillPackage("pypi", name, "1.0", licence) for name in ("cublas", "cudnn")]
    (own,) = bill("antiphon:cuda", found, 0)["hasExtractedLicensingInfos"]
    assert own["licenseId"] == "LicenseRef-NVIDIA-Proprietary"
    assert own["extractedText"]
    listed = bill("antiphon:cpu", [BillPackage("pypi", "a", "1.0", "MIT")], 0)
    assert listed["hasExtractedLicensingInfos"] == []


def test_a_page_tells_a_second_build_that_differs_from_one_that_does_not() -> None:
    same = BuiltImage("a:1", 60.0, 565_000_000, "10001:10001", 90, 8000, (), True)
    files = BuiltImage("b:1", 6.0, 170_000_000, "99:99", 80, 9000, ())
    other = BuiltImage("c:1", 6.0, 170_000_000, "99:99", 80, 9000, ("etc/shadow",))
    once = BuiltImage("d:1", 6.0, 170_000_000, "99:99")
    text = page([same, files, other, once], ["   1.0 s  up"])
    assert "| `a:1` | 60 s | 565 MB | 10001:10001 | 90 | the same image, bit for bit |" in text
    assert "| the same 9000 files |" in text
    assert "| 1 of 9000 files differ: etc/shadow |" in text
    assert "| not made |" in text
    assert text.endswith("       1.0 s  up\n")


def test_a_failed_command_says_its_last_words_and_a_full_disk_both_numbers(tmp_path: Path) -> None:
    engine = ContainerEngine(tmp_path, {"PATH": "/usr/bin:/bin"})
    with pytest.raises(StackError, match=r"^sh -c echo why; exit 3 ended with 3:\nwhy"):
        engine.run("sh", "-c", "echo why; exit 3")
    with pytest.raises(StackError, match=r"^1000000 GB are needed in .*, \d+ are free$"):
        room_for(tmp_path, 1_000_000)
