"""The Triton kernels of :mod:`antiphon.backends.torch.kernels.tokens`: the norm of ``docs/sampling.md``."""

# A kernel's arguments take no Python types, and its constants are capitals:
# ruff: noqa: ANN001, ANN201, N803
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import triton
import triton.language as tl
from triton.language.random import philox


@triton.jit
def draw_noise(seed_ptr, frame_ptr, stream_ptr, out_ptr, streams, vocabulary, BLOCK: tl.constexpr):
    """A piece of one stream's Gumbel noise, four tokens to a block of Philox."""
    stream, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    block = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    seed, frame = tl.load(seed_ptr + row), tl.load(frame_ptr + row)
    zero = tl.zeros((BLOCK,), tl.int32)
    low, high = (frame & 0xFFFFFFFF).to(tl.uint32), (frame >> 32).to(tl.uint32)
    c2 = tl.load(stream_ptr + stream).to(tl.uint32)
    words = philox(seed, zero.to(tl.uint32) + low, zero.to(tl.uint32) + high, zero.to(tl.uint32) + c2, block)
    at = out_ptr + (row * streams + stream) * vocabulary
    for index in tl.static_range(4):
        token = block * 4 + index
        uniform = (words[index].to(tl.float64) + 0.5) * 2.3283064365386963e-10
        noise = -tl.log(-tl.log(uniform))
        tl.store(at + token, noise.to(tl.float32), mask=token < vocabulary)


@triton.jit
def choose_tokens(
    logits_ptr,
    inverse_ptr,
    temperature_ptr,
    topk_ptr,
    noise_ptr,
    token_ptr,
    logits_row_stride,
    noise_row_stride,
    vocabulary,
    BLOCK: tl.constexpr,
):
    """One row's token: the largest of its top k, noise added, or the largest of all where greedy.

    The k-th largest is found bit by bit, as the greatest bound that k logits still reach.
    """
    row = tl.program_id(0).to(tl.int64)
    token = tl.arange(0, BLOCK)
    is_inside = token < vocabulary
    lowest = float("-inf")
    t = tl.load(logits_ptr + row * logits_row_stride + token, mask=is_inside, other=lowest).to(tl.float32)
    t = t * tl.load(inverse_ptr + row)
    t = tl.where(t == t, t, lowest)
    t = tl.where(t == 0.0, 0.0, t)  # one zero, since they are compared as integers
    bits = t.to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, ~bits, bits ^ -2147483648).to(tl.uint32, bitcast=True)  # in the floats' order
    k = tl.load(topk_ptr + row)
    k = tl.where((k == 0) | (k > vocabulary), vocabulary, k).to(tl.int32)
    edge = tl.full((), 0, tl.uint32)
    bit = tl.full((), 2147483648, tl.uint32)
    for _ in range(32):
        reached = tl.sum(((key >= (edge | bit)) & is_inside).to(tl.int32), 0)
        edge = tl.where(reached >= k, edge | bit, edge)
        bit = bit >> 1
    above, equal = (key > edge) & is_inside, (key == edge) & is_inside
    spare = k - tl.sum(above.to(tl.int32), 0)
    is_kept = above | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= spare))  # the lowest ids stay
    noise = tl.load(noise_ptr + row * noise_row_stride + token, mask=is_inside, other=0.0)
    drawn = tl.argmax(tl.where(is_kept, t + noise, lowest), 0)
    greedy = tl.argmax(t, 0)
    is_greedy = tl.load(temperature_ptr + row) == 0.0
    tl.store(token_ptr + row, tl.where(is_greedy, greedy, drawn).to(tl.int64))
