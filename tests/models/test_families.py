"""The published sizes, reached from the shapes alone."""

from __future__ import annotations

import pytest

from antiphon.models.families import MIMI_BYTES, load_families

# Billions of parameters (all, temporal, depformer), MB of keys and values a session (bf16, INT8).
PUBLISHED = {
    "moshiko": (7.688, 6.577, 0.714, 1573, 786),
    "moshika": (7.688, 6.577, 0.714, 1573, 786),
    "personaplex-7b": (8.371, 6.577, 1.398, 1573, 786),
    "hibiki-1b": (1.800, 0.822, 0.714, 197, 98),
    "hibiki-2b": (2.787, 1.927, 0.447, 369, 184),
    "stt-1b-en_fr": (0.989, 0.822, 0, 98, 49),
    "stt-2.6b-en": (2.617, 2.466, 0, 147, 74),
    "tts-1.6b-en_fr": (1.837, 1.091, 0.565, 66 + 82, 33 + 82),
}


def test_every_published_size_is_here() -> None:
    assert {family.name for family in load_families().speech} == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_within_three_percent_of_the_published_ones(name: str) -> None:
    (family,) = [family for family in load_families().speech if family.name == name]
    found = (
        family.parameters / 1e9,
        family.temporal_parameters / 1e9,
        family.depformer_parameters / 1e9,
        family.kv_bytes("bf16") / 1e6,
        family.kv_bytes("int8") / 1e6,
    )
    assert found == pytest.approx(PUBLISHED[name], rel=0.03)


def test_int8_is_half_of_what_it_quantises() -> None:
    for family in load_families().speech:
        halved = family.weight_bytes("bf16") - 2 * family.embedding_parameters
        assert family.weight_bytes("int8") - 2 * family.embedding_parameters == pytest.approx(
            halved / 2, rel=0.005
        )


def test_the_codec_is_the_published_one() -> None:
    assert pytest.approx(4 * 96.1) == MIMI_BYTES / 1e6


def test_text_models_have_weights_and_licences() -> None:
    for family in load_families().text:
        assert family.weight_bytes("int4") < family.weight_bytes("bf16") / 3
        assert family.active_b <= family.parameters_b
        assert family.licence
