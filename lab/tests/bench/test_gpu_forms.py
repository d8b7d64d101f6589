"""The cost of each form of weights on a GPU: kernels that it runs directly, or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from antiphon.backends.torch.generation import Generator
from antiphon.backends.torch.modules.kv_forms import KVForm
from antiphon.backends.torch.modules.layers import Linear
from antiphon.backends.torch.modules.lm import LanguageModel
from antiphon.backends.torch.pipeline import LayoutKind, Pipeline
from antiphon.backends.torch.quantised import Fp8Linear, Int4Linear, Int8Linear, check_forms, follows_recipe
from antiphon.errors import UnsupportedError
from lab.bench.gpu_models import Form, empty_modules, lm_spec, model_spec, published_sizes
from tests.backends.torch.fake_cuda import fake_cuda
from tests.backends.torch.recorded import Recorder, places_of, stages_of

ROWS = 24
LAYERS = {"num_layers": 2, "depformer_num_layers": 1}
"""Of full width: what a layer runs and writes is the same in each."""
MOST_KERNELS, MOST_WRITTEN_BYTES = 1.2, 0.02e9
"""Limits for INT8's kernels, and for all bytes that these layers write in a tick."""


def int8(weight: Tensor) -> nn.Module:
    return Int8Linear(weight.to(torch.int8), torch.empty(weight.shape[0]))


def scaled(weight: Tensor) -> nn.Module:
    return Int8Linear(
        weight.to(torch.int8), torch.empty(weight.shape[0]), prescale=torch.empty(weight.shape[1])
    )


def stepped(weight: Tensor) -> nn.Module:
    return Int8Linear(weight.to(torch.int8), torch.empty(weight.shape[0]), step=torch.empty(1))


def int4(weight: Tensor) -> nn.Module:
    packed = torch.empty(weight.shape[0], weight.shape[1] // 2, dtype=torch.uint8)
    return Int4Linear(packed, torch.empty(weight.shape[0], weight.shape[1] // 32))


def fp8(weight: Tensor) -> nn.Module:
    return Fp8Linear(weight.to(torch.float8_e4m3fn), torch.empty(weight.shape[0]), None, weight.dtype)


FORMS: dict[str, tuple[Callable[[Tensor], nn.Module], bool, str | None]] = {
    "int8": (int8, True, None),
    "fp8": (fp8, True, None),
    "int8, activations=compute": (
        int8,
        False,
        r"inputs as they are \(activations=compute\)",
    ),
    "int8-smooth": (scaled, True, r"scaled inputs \(int8-smooth\)"),
    "int8-static": (stepped, True, r"a fixed step for inputs \(int8-static\)"),
    "int4": (int4, False, "INT4 weights with inputs as they are"),
    "w4a8": (int4, True, None),
}
"""The maker of linears, whether inputs are rounded, and the text of a refusal."""


def with_form(make: Callable[[Tensor], nn.Module], model: LanguageModel) -> None:
    """Give another form to the linears that recipes round."""
    names = [
        name for name, child in model.named_modules() if isinstance(child, Linear) and follows_recipe(name)
    ]
    for name in names:
        parent, _, own = name.rpartition(".")
        linear = model.get_submodule(name)
        assert isinstance(linear, Linear)
        setattr(model.get_submodule(parent), own, make(linear.weight.data))


def kernels_and_bytes(
    make: Callable[[Tensor], nn.Module], *, rounds_input: bool
) -> tuple[int, int, str | None]:
    """Kernels of a few layers of moshi-7b, the bytes they write, and the refusal."""
    whole, refusal = published_sizes()["moshi-7b"], None
    size = replace(whole, lm={**whole.lm, **LAYERS})
    with fake_cuda(), torch.no_grad():
        mimi, model = empty_modules(size, Form(16, KVForm.INT8), "auto", "cuda")
        with torch.device("cuda"):
            with_form(make, model)
        model.prepare(rounds_input=rounds_input)
        try:
            check_forms("moshi", model)
        except UnsupportedError as error:
            refusal = str(error)
        pipeline = Pipeline(model_spec(size), mimi.prepare(), Generator(model, lm_spec(size)), rows=ROWS)
        with Recorder() as recorder:
            stages_of(pipeline, places_of(LayoutKind.PADDED, ROWS, size.lm["context"]))["lm"]()
        written = sum(tensor.nbytes for one in recorder.kernels for tensor in one.results)
    return len(recorder.kernels), written, refusal


def test_a_form_runs_by_kernels_as_it_is_or_is_refused() -> None:
    plain, _, _ = kernels_and_bytes(int8, rounds_input=True)
    for name, (make, rounds_input, named) in FORMS.items():
        kernels, written, refusal = kernels_and_bytes(make, rounds_input=rounds_input)
        is_fast = kernels <= MOST_KERNELS * plain and written <= MOST_WRITTEN_BYTES
        assert is_fast is (named is None) is (refusal is None), (name, kernels, written, refusal)


@pytest.mark.parametrize("name", [name for name, (_, _, named) in FORMS.items() if named])
def test_a_refusal_names_the_form_and_the_recipe_that_runs(name: str) -> None:
    make, rounds_input, named = FORMS[name]
    layer = make(torch.zeros(64, 64))
    if isinstance(layer, Int8Linear):
        layer.rounds_input = rounds_input
    with pytest.raises(UnsupportedError, match=f"moshiko has .*{named} in 1 linears; .* --recipe int8"):
        check_forms("moshiko", nn.Sequential(layer))
