"""The Triton kernels of :mod:`antiphon.backends.torch.kernels.tokens`, which choose and delay tokens."""

# A kernel's arguments have no Python types, and its constants are in capitals:
# ruff: noqa: ANN001, ANN201, N803
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import triton
import triton.language as tl
from triton.language.random import philox


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
    """Weigh one piece of a place's text logits: penalise recent words, divide by the temperature, add the
    padding bonus.

    ``recent [rows, WORDS]`` has the newest word last; the last ``context`` of them count.
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
    """Append one place's token to its recent words and drop the oldest; tokens that are not words are
    skipped.

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
    """Logits times ``inverse``, float32. NaN, and entries outside of the vocabulary, get the lowest value."""
    lowest = float("-inf")
    t = tl.load(logits_ptr + token, mask=token < vocabulary, other=lowest).to(tl.float32) * inverse
    t = tl.where(t == t, t, lowest)
    return tl.where(t == 0.0, 0.0, t)  # one zero, since they are compared as integers


@triton.jit
def key_of(t):
    """Map float32 to uint32 in the same order."""
    bits = t.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, ~bits, bits ^ -2147483648).to(tl.uint32, bitcast=True)


@triton.jit
def gumbel_noise(seed, frame, stream, token):
    """Gumbel noise float32 of some tokens of a stream, each computed from one word of a Philox block."""
    zero = tl.zeros_like(token).to(tl.uint32)
    low, high = (frame & 0xFFFFFFFF).to(tl.uint32), (frame >> 32).to(tl.uint32)
    w0, w1, w2, w3 = philox(seed, zero + low, zero + high, zero + stream, token // 4)
    part = token % 4
    word = tl.where(part < 2, tl.where(part == 0, w0, w1), tl.where(part == 2, w2, w3))
    uniform = (word.to(tl.float64) + 0.5) * 2.3283064365386963e-10
    return (-tl.log(-tl.log(uniform))).to(tl.float32)


@triton.jit
def lowest_of(token, is_one, MOST: tl.constexpr):
    """The lowest id among the tokens for which ``is_one`` is true."""
    return tl.min(tl.where(is_one, token, MOST), 0)


@triton.jit(do_not_specialize=["stream"])
def choose_tokens(
    logits_ptr,
    inverse_ptr,
    temperature_ptr,
    topk_ptr,
    seed_ptr,
    frame_ptr,
    list_ptr,
    token_ptr,
    logits_row_stride,
    vocabulary,
    stream,
    BLOCK: tl.constexpr,
    PIECE: tl.constexpr,
    NOISY: tl.constexpr,
    IS_SCALED: tl.constexpr,
):
    """Choose one row's token: the largest of its top k after adding noise, or the largest of all if greedy.

    The k-th largest is found bit by bit, as the greatest bound that k logits still reach, until exactly k do.
    These k tokens are listed, PIECE entries of the vocabulary at a time, in ``list [rows, 1 + BLOCK]``, which
    begins with their count. Noise is drawn only for them, NOISY at a time. ``IS_SCALED``: logits are already
    divided by their temperature.
    """
    row = tl.program_id(0).to(tl.int64)
    logits_at = logits_ptr + row * logits_row_stride
    inverse = 1.0
    if not IS_SCALED:
        inverse = tl.load(inverse_ptr + row)
    token = tl.arange(0, BLOCK)
    # Invalid values are 0, which is below the key of every number.
    key = tl.where(token < vocabulary, key_of(scaled_logits(logits_at, token, vocabulary, inverse)), 0)
    if tl.load(temperature_ptr + row) == 0.0:
        tl.store(token_ptr + row, lowest_of(token, key == tl.max(key, 0), BLOCK).to(tl.int64))
        return
    k = tl.load(topk_ptr + row)
    k = tl.where((k == 0) | (k > vocabulary), vocabulary, k).to(tl.int32)
    count_at = list_ptr + row * (BLOCK + 1)
    tl.store(count_at, 0)
    edge, reached = tl.full((), 0, tl.uint32), tl.full((), BLOCK, tl.int32)
    bit = tl.full((), 2147483648, tl.uint32)
    while (bit != 0) & (reached != k):
        more = tl.sum((key >= (edge | bit)).to(tl.int32), 0)
        reached = tl.where(more >= k, more, reached)
        edge = tl.where(more >= k, edge | bit, edge)
        bit = bit >> 1
    end = tl.full((), BLOCK, tl.int32)  # values equal to the bound are kept up to here
    if reached > k:
        spare = k - tl.sum((key > edge).to(tl.int32), 0)
        step = end // 2
        end = tl.full((), 0, tl.int32)
        while step > 0:  # of equal values the lowest ids are kept
            fewer = tl.sum(((key == edge) & (token < end + step)).to(tl.int32), 0)
            end = tl.where(fewer <= spare, end + step, end)
            step = step // 2
    tl.debug_barrier()  # the count is 0 before one is added
    for first in range(0, vocabulary, PIECE):
        some = first + tl.arange(0, PIECE)
        rank = key_of(scaled_logits(logits_at, some, vocabulary, inverse))
        is_kept = (some < vocabulary) & ((rank > edge) | ((rank == edge) & (some < end)))
        counts_at = count_at + tl.zeros((PIECE,), tl.int32)
        place = tl.atomic_add(counts_at, 1, mask=is_kept, sem="relaxed", scope="cta")
        tl.store(count_at + 1 + place, some, mask=is_kept)
    tl.debug_barrier()
    seed, frame = tl.load(seed_ptr + row), tl.load(frame_ptr + row)
    best, found = tl.full((), float("-inf"), tl.float32), tl.full((), 0, tl.int32)
    for first in range(0, k, NOISY):
        index = first + tl.arange(0, NOISY)
        some = tl.load(count_at + 1 + index, mask=index < k, other=0)
        noise = gumbel_noise(seed, frame, stream, some)
        noisy = scaled_logits(logits_at, some, vocabulary, inverse) + noise
        noisy = tl.where(index < k, noisy, float("-inf"))
        highest = tl.max(noisy, 0)
        lowest = lowest_of(some, (noisy == highest) & (index < k), BLOCK)
        lowest = tl.where(highest == best, tl.minimum(found, lowest), lowest)
        found = tl.where(highest >= best, lowest, found)
        best = tl.maximum(best, highest)
    tl.store(token_ptr + row, found.to(tl.int64))


@triton.jit
def delay_input(
    token_ptr,
    at_ptr,
    rows_ptr,
    offset_ptr,
    code_ptr,
    delay_ptr,
    initial_ptr,
    out_ptr,
    GENERATED: tl.constexpr,
    STREAMS: tl.constexpr,
    CAPACITY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """For one place, write its input into its row's ring, and the model's input of every stream to
    ``out_ptr``.
    """
    place = tl.program_id(0).to(tl.int64)
    stream = tl.arange(0, BLOCK)
    is_stream = stream < STREAMS
    is_heard = is_stream & (stream >= GENERATED)
    offset = tl.load(offset_ptr + place)
    ring_at = token_ptr + (tl.load(at_ptr + place) * STREAMS + stream) * CAPACITY
    delay = tl.load(delay_ptr + stream, mask=is_stream, other=0)
    codes_at = code_ptr + place * (STREAMS - GENERATED) + stream - GENERATED
    code = tl.load(codes_at, mask=is_heard, other=0)
    slot, now = (offset + delay) % CAPACITY, offset % CAPACITY
    known = tl.load(ring_at + now, mask=is_stream, other=0)
    tl.store(ring_at + slot, code, mask=is_heard)
    known = tl.where(is_heard & (slot == now), code, known)
    is_before = (offset <= delay) | (tl.load(rows_ptr + place) < 0)
    initial = tl.load(initial_ptr + stream, mask=is_stream, other=0)
    tl.store(out_ptr + place * STREAMS + stream, tl.where(is_before, initial, known), mask=is_stream)


@triton.jit
def delay_output(
    token_ptr,
    at_ptr,
    offset_ptr,
    output_ptr,
    delay_ptr,
    out_ptr,
    most_delay,
    GENERATED: tl.constexpr,
    STREAMS: tl.constexpr,
    CAPACITY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """For one place, write its output into its row's ring, and the complete frame to ``out_ptr``."""
    place = tl.program_id(0).to(tl.int64)
    stream = tl.arange(0, BLOCK)
    is_said = stream < GENERATED
    following = tl.load(offset_ptr + place) + 1
    ring_at = token_ptr + (tl.load(at_ptr + place) * STREAMS + stream) * CAPACITY
    delay = tl.load(delay_ptr + stream, mask=is_said, other=0)
    token = tl.load(output_ptr + place * GENERATED + stream, mask=is_said, other=0)
    slot = following % CAPACITY
    frame = (following - most_delay + delay + CAPACITY) % CAPACITY  # above zero: a ring holds every delay
    known = tl.load(ring_at + frame, mask=is_said, other=0)
    tl.store(ring_at + slot, token, mask=is_said)
    known = tl.where(slot == frame, token, known)
    tl.store(out_ptr + place * GENERATED + stream, known, mask=is_said)
