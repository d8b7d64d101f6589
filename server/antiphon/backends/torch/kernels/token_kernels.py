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
def weigh_words(
    logits_ptr,
    recent_ptr,
    at_ptr,
    inverse_ptr,
    penalty_ptr,
    inverse_penalty_ptr,
    bonus_ptr,
    context_ptr,
    out_ptr,
    logits_row_stride,
    vocabulary,
    padding,
    WORDS: tl.constexpr,
    PIECE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A piece of one place's text logits: recent words penalised, over its temperature, padding's bonus in.

    ``recent [rows, WORDS]`` has the newest word last; ``context`` says how many of them count.
    """
    place = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_inside = token < vocabulary
    x = tl.load(logits_ptr + place * logits_row_stride + token, mask=is_inside, other=0.0).to(tl.float32)
    context = tl.load(context_ptr + place)
    if context > 0:
        words_at = recent_ptr + tl.load(at_ptr + place) * WORDS
        said = tl.zeros((BLOCK,), tl.int32)
        for first in range(0, WORDS, PIECE):
            index = first + tl.arange(0, PIECE)
            word = tl.load(words_at + index, mask=index >= WORDS - context, other=-1)
            said |= tl.max((token[:, None] == word[None, :]).to(tl.int32), 1)
        penalty, inverse = tl.load(penalty_ptr + place), tl.load(inverse_penalty_ptr + place)
        x = tl.where(said > 0, x * tl.where(x > 0, inverse, penalty), x)
    x = x * tl.load(inverse_ptr + place)
    x = tl.where(token == padding, x + tl.load(bonus_ptr + place), x)
    tl.store(out_ptr + place * vocabulary + token, x, mask=is_inside)


@triton.jit
def remember_words(token_ptr, recent_ptr, at_ptr, padding, end_padding, initial, WORDS: tl.constexpr):
    """One place's token behind its recent words, the oldest of which goes; some tokens are no words.

    A warp reads all words before it writes one.
    """
    place = tl.program_id(0)
    token = tl.load(token_ptr + place)
    if (token == padding) | (token == end_padding) | (token == initial):
        return
    index = tl.arange(0, WORDS)
    words_at = recent_ptr + tl.load(at_ptr + place) * WORDS + index
    word = tl.load(words_at + 1, mask=index < WORDS - 1, other=0)
    tl.debug_barrier()
    tl.store(words_at, tl.where(index < WORDS - 1, word, token))


@triton.jit
def scaled_logits(logits_ptr, token, vocabulary, inverse):
    """Logits times ``inverse``, float32; NaN is the lowest there is, and so is what lies outside."""
    lowest = float("-inf")
    t = tl.load(logits_ptr + token, mask=token < vocabulary, other=lowest).to(tl.float32) * inverse
    t = tl.where(t == t, t, lowest)
    return tl.where(t == 0.0, 0.0, t)  # one zero, since they are compared as integers


@triton.jit
def key_of(t):
    """Float32 to uint32 in the same order."""
    bits = t.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, ~bits, bits ^ -2147483648).to(tl.uint32, bitcast=True)


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
    PIECE: tl.constexpr,
    IS_SCALED: tl.constexpr,
):
    """One row's token: the largest of its top k, noise added, or the largest of all where greedy.

    The k-th largest is found bit by bit, as the greatest bound that k logits still reach; then the
    vocabulary is gone through in pieces. ``IS_SCALED``: logits are over their temperature already.
    """
    row = tl.program_id(0).to(tl.int64)
    logits_at, noise_at = logits_ptr + row * logits_row_stride, noise_ptr + row * noise_row_stride
    inverse = 1.0
    if not IS_SCALED:
        inverse = tl.load(inverse_ptr + row)
    token = tl.arange(0, BLOCK)
    is_inside = token < vocabulary
    key = key_of(scaled_logits(logits_at, token, vocabulary, inverse))
    k = tl.load(topk_ptr + row)
    k = tl.where((k == 0) | (k > vocabulary), vocabulary, k).to(tl.int32)
    edge = tl.full((), 0, tl.uint32)
    bit = tl.full((), 2147483648, tl.uint32)
    for _ in range(32):
        reached = tl.sum(((key >= (edge | bit)) & is_inside).to(tl.int32), 0)
        edge = tl.where(reached >= k, edge | bit, edge)
        bit = bit >> 1
    spare = k - tl.sum(((key > edge) & is_inside).to(tl.int32), 0)
    lowest = float("-inf")
    drawn, greedy = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    best, largest = tl.full((), lowest, tl.float32), tl.full((), lowest, tl.float32)
    for first in range(0, vocabulary, PIECE):
        some = first + tl.arange(0, PIECE)
        t = scaled_logits(logits_at, some, vocabulary, inverse)
        rank = key_of(t)
        is_above, equal = (
            (rank > edge) & (some < vocabulary),
            ((rank == edge) & (some < vocabulary)).to(tl.int32),
        )
        is_kept = is_above | ((equal > 0) & (tl.cumsum(equal, 0) <= spare))  # of equals the lowest ids stay
        spare -= tl.sum(equal, 0)
        noisy = t + tl.load(noise_at + some, mask=some < vocabulary, other=0.0)
        noisy = tl.where(is_kept, noisy, lowest)
        found, highest = tl.max(noisy, 0), tl.max(t, 0)
        drawn = tl.where(found > best, first + tl.argmax(noisy, 0), drawn)
        greedy = tl.where(highest > largest, first + tl.argmax(t, 0), greedy)
        best, largest = tl.maximum(best, found), tl.maximum(largest, highest)
    is_greedy = tl.load(temperature_ptr + row) == 0.0
    tl.store(token_ptr + row, tl.where(is_greedy, greedy, drawn).to(tl.int64))
