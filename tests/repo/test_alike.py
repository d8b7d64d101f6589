"""No two backends share an identical function of eight lines or more."""

from __future__ import annotations

from pathlib import Path

from tests.repo.alike import alike_functions

ONE = '''
def spread(rows: IntArray, value: Any, *, size: int) -> Any:
    """Put rows in their places."""
    found = zeros(size)
    for place, row in enumerate(rows):
        if row < 0:
            continue
        found[row] = value[place]
    found.sort()
    return found
'''
OTHER = """
class Packing:
    def scatter(numbers, array, *, count):
        filled: Array = zeros(count)
        for index, number in enumerate(numbers):
            if number < 0:
                continue
            filled[number] = array[index]
        filled.sort()
        return filled
"""


def _write(root: Path, **sources: str) -> list[str]:
    paths = [f"server/antiphon/backends/{name}/rows.py" for name in sources]
    for path, source in zip(paths, sources.values(), strict=True):
        (root / path).parent.mkdir(parents=True)
        (root / path).write_text(source)
    return paths


def test_a_function_that_two_backends_have_is_found_under_other_names(tmp_path: Path) -> None:
    (said,) = alike_functions(tmp_path, _write(tmp_path, mlx=ONE, torch=OTHER))
    assert said == (
        "these functions are alike: server/antiphon/backends/mlx/rows.py:2 spread(), "
        "server/antiphon/backends/torch/rows.py:3 scatter(); let the host have one"
    )


def test_other_statements_shorter_functions_and_one_backend_are_no_fault(tmp_path: Path) -> None:
    short = "def f(rows):\n    return rows\n"
    paths = _write(tmp_path, mlx=ONE + short, onnx=OTHER.replace("number < 0", "number < 1") + short)
    assert list(alike_functions(tmp_path, paths)) == []
    root = tmp_path / "twice"
    assert list(alike_functions(root, _write(root, torch=ONE + OTHER))) == []
