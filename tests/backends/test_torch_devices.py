from __future__ import annotations

import pytest
import torch

from antiphon.backends.machine import model_threads
from antiphon.backends.torch_devices import device_bytes, memory_in_use, pick_device, pick_dtype
from antiphon.errors import ConfigError

CPU = torch.device("cpu")


def test_without_a_name_it_is_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pick_device("cpu") == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pick_device(None) == torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device(None) == CPU


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"device cuda:1 was requested, but this torch .* has no GPU"):
        pick_device("cuda:1")
    with pytest.raises(ConfigError, match="no device is called 'abacus'"):
        pick_device("abacus")


@pytest.mark.parametrize(
    ("name", "hint"), [("mps", "; on Apple silicon the GPU is --backend mlx's"), ("meta", ""), ("xpu:0", "")]
)
def test_a_device_that_no_step_runs_on_is_refused_at_once(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"device {name} .* torch runs models on cpu or cuda only{hint}$"):
        pick_device(name)


def test_a_gpu_beyond_the_last_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("cuda:1") == torch.device("cuda", 1)
    assert pick_device("cuda") == torch.device("cuda", 0)
    with pytest.raises(ConfigError, match="device cuda:2 was requested, but there are only 2 GPUs"):
        pick_device("cuda:2")


@pytest.fixture
def eight_cards(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Cards of 24 GiB, a third of each another process's: torch holds 2 GiB of the second and 1 of the sixth.

    Those that were asked for their memory, which gives this process a context there.
    """
    asked: set[str] = set()

    def named(device: torch.device | int) -> str:
        return f"cuda:{device}" if isinstance(device, int) else str(device)

    def reserved(device: torch.device | int) -> int:
        return {"cuda:1": 2 * 2**30, "cuda:5": 2**30}.get(named(device), 0)

    def memory(device: torch.device | int) -> tuple[int, int]:
        asked.add(named(device))
        return 16 * 2**30 - reserved(device), 24 * 2**30

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "memory_reserved", reserved)
    monkeypatch.setattr(torch.cuda, "mem_get_info", memory)
    return asked


def test_of_a_gpu_what_others_hold_is_not_ours(eight_cards: set[str]) -> None:
    assert device_bytes(CPU) == {}
    assert device_bytes(torch.device("cuda:1")) == device_bytes(torch.device("cuda:2")) == {"total": 16 << 30}
    assert eight_cards == {"cuda:1", "cuda:2"}


def test_a_gpu_that_this_process_does_not_use_is_not_asked(eight_cards: set[str]) -> None:
    assert memory_in_use() == {"cuda:1": (10 << 30, 24 << 30), "cuda:5": (9 << 30, 24 << 30)}
    assert eight_cards == {"cuda:1", "cuda:5"}


def test_a_dtype_follows_the_device_unless_it_is_named() -> None:
    cpu, names = torch.device("cpu"), ("float32", "bfloat16", "float16")
    assert pick_dtype(None, cpu, names) == torch.float32
    assert pick_dtype(None, torch.device("cuda"), names) == torch.bfloat16
    assert pick_dtype("float16", cpu, names) == torch.float16
    with pytest.raises(ConfigError, match="no dtype is called 'float16'; there are: float32, bfloat16"):
        pick_dtype("float16", cpu, names[:2])


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (64, 63)])
def test_a_core_is_left_to_the_server(monkeypatch: pytest.MonkeyPatch, cores: int, threads: int) -> None:
    monkeypatch.setattr("antiphon.backends.machine.usable_cores", lambda: cores)
    assert model_threads() == threads
    assert model_threads(5) == 5


@pytest.mark.parametrize("threads", [0, -3])
def test_fewer_than_one_thread_is_refused(threads: int) -> None:
    with pytest.raises(ConfigError, match=f"threads is {threads}; a model needs at least 1"):
        model_threads(threads)
