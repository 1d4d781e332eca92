"""Attention and what surrounds it in transformers."""

from __future__ import annotations

from typing import Any

from operator_cases.building import FLOATS, WIDE_FLOATS, Group, Spec, bits, const, fixed, given, ints, x

GROUP = Group()
_add, _ms = GROUP.add, GROUP.ms

_HALVES = ("float16", "bfloat16")


def _self_attention() -> None:
    for label, batch, length, hidden, heads in (
        ("short", 2, 64, 256, 4),
        ("odd", 3, 197, 384, 6),
        ("long", 1, 1024, 512, 8),
        ("large heads", 2, 129, 512, 2),
    ):
        data, weight, bias = x(batch, length, hidden), x(hidden, 3 * hidden, scale=0.05), x(3 * hidden)
        more: dict[str, Any] = {"num_heads": heads, "dtypes": WIDE_FLOATS}
        _ms("Attention", data, weight, bias, label=label, **more)
        _ms("Attention", data, weight, bias, label=f"{label}, causal", unidirectional=1, **more)
        lengths = given([length - i for i in range(batch)], "int32")
        _ms("Attention", data, weight, bias, lengths, label=f"{label}, lengths", **more)
        _ms("MultiHeadAttention", data, data, data, label=label, **more)
        _ms("MultiHeadAttention", data, data, data, bias, label=f"{label}, bias", **more)
        _ms("MultiHeadAttention", data, data, data, None, lengths, label=f"{label}, lengths", **more)
        scores = x(1, heads, length, length)
        _ms("MultiHeadAttention", data, data, data, None, None, scores, label=f"{label}, attention bias", **more)
        size = hidden // heads
        parts = [x(batch, heads, length, size) for _ in range(3)]
        _add("Attention", *parts, label=label, dtypes=WIDE_FLOATS, opset=23)
        _add("Attention", *parts, label=f"{label}, causal", dtypes=FLOATS, opset=23, is_causal=1)
        mask = bits(length, length)
        _add("Attention", *parts, mask, label=f"{label}, mask", dtypes=FLOATS, opset=23)
    past = x(2, 2, 4, 100, 64)
    inputs: tuple[Spec | None, ...] = (x(2, 5, 256), x(256, 768, scale=0.05), x(768), None, past)
    _ms("Attention", *inputs, label="with past", dtypes=FLOATS, outputs=("T", "T"), num_heads=4, unidirectional=1)
    # Decoding splits the long key axis among blocks.
    for length in (1025, 8192):
        query, key = x(1, 1, 512), x(1, length, 512)
        _ms("MultiHeadAttention", query, key, key, label=f"one query, {length} keys", dtypes=WIDE_FLOATS, num_heads=8)
        parts = [x(1, 8, 1, 64), x(1, 8, length, 64), x(1, 8, length, 64)]
        _add("Attention", *parts, label=f"one query, {length} keys", dtypes=WIDE_FLOATS, opset=23)
    grouped = [x(1, 8, 65, 64), x(1, 2, 65, 64), x(1, 2, 65, 64)]
    _add("Attention", *grouped, label="grouped", dtypes=FLOATS, opset=23)


def _grouped() -> None:
    size, heads, pairs = 64, 8, 2
    three = ("T", "T", "T")
    more: dict[str, Any] = {
        "num_heads": heads,
        "kv_num_heads": pairs,
        "outputs": three,
        "dtypes": (*_HALVES, "float32"),
    }
    for length in (65, 1024):
        query, key = x(2, length, heads * size), x(2, length, pairs * size)
        ends, total = given([length - 1, length - 1], "int32"), const(length, "int32")
        _ms("GroupQueryAttention", query, key, key, None, None, ends, total, label=f"prompt of {length}", **more)
        tables = (x(length, size // 2), x(length, size // 2))
        words = f"prompt of {length}, rotary"
        _ms("GroupQueryAttention", query, key, key, None, None, ends, total, *tables, label=words, do_rotary=1, **more)
        words = f"prompt of {length}, window"
        _ms("GroupQueryAttention", query, key, key, None, None, ends, total, label=words, local_window_size=32, **more)
    for past_length in (300, 8191):
        query, key, past = x(1, 1, heads * size), x(1, 1, pairs * size), x(1, pairs, past_length, size)
        ends, total = given([past_length], "int32"), const(past_length + 1, "int32")
        inputs: tuple[Spec | None, ...] = (query, key, key, past, past, ends, total)
        _ms("GroupQueryAttention", *inputs, label=f"step after {past_length}", **more)
        _ms("GroupQueryAttention", *inputs, label=f"step after {past_length}, softcap", softcap=20.0, **more)


def _packed() -> None:
    lengths, longest, hidden, heads = (64, 40, 1), 64, 256, 4
    tokens = sum(lengths)
    kept = [i * longest + j for i, length in enumerate(lengths) for j in range(length)]
    padding = [i for i in range(longest * len(lengths)) if i not in set(kept)]
    offsets = Spec((3, 64), lambda draw: given([*kept, *padding], "int32").make(draw).reshape(3, 64), "int32")
    ends = given([0, 64, 104, 105], "int32")
    data, weight, bias = x(tokens, hidden), x(hidden, 3 * hidden, scale=0.05), x(3 * hidden)
    more: dict[str, Any] = {"num_heads": heads, "dtypes": FLOATS}
    _ms("PackedAttention", data, weight, bias, offsets, ends, **more)
    _ms("PackedMultiHeadAttention", data, data, data, None, offsets, ends, **more)
    _ms("PackedMultiHeadAttention", data, data, data, bias, offsets, ends, label="bias", **more)
    outputs = ("T", "int32", "int32", "int32")
    _ms("RemovePadding", x(3, longest, hidden), given(lengths, "int32"), outputs=outputs, dtypes=FLOATS)
    _ms("RestorePadding", data, offsets, dtypes=FLOATS)
    blocks, block = 8, 256
    cache = x(blocks, block, 2, 64)
    table, past = given([[0, 1], [2, 3]], "int32"), given([300, 0], "int32")
    inputs: tuple[Spec | None, ...] = (
        x(105, 512),
        x(105, 128),
        x(105, 128),
        cache,
        cache,
        given([0, 1, 105], "int32"),
        past,
        table,
    )
    more = {"num_heads": 8, "kv_num_heads": 2, "outputs": ("T", "T", "T"), "dtypes": _HALVES}
    _ms("PagedAttention", *inputs, **more)


def _decoders() -> None:
    batch, heads, size, longest = 2, 8, 64, 512
    hidden = heads * size
    step, past = x(batch, 1, hidden), x(batch, heads, longest, size)
    three = ("T", "T", "T")
    count = const([300], "int32")
    more: dict[str, Any] = {"num_heads": heads, "dtypes": FLOATS, "past_present_share_buffer": 1}
    inputs: tuple[Spec | None, ...] = (step, step, step, None, None, past, past, count)
    _ms("DecoderMaskedMultiHeadAttention", *inputs, label="self", outputs=three, **more)
    inputs = (step, past, past)
    _ms("DecoderMaskedMultiHeadAttention", *inputs, label="cross", num_heads=heads, dtypes=FLOATS)
    both = x(2, batch, heads, longest, size)
    inputs = (step, x(hidden, 3 * hidden, scale=0.05), x(3 * hidden), None, both, None, count)
    _ms("DecoderMaskedSelfAttention", *inputs, outputs=("T", "T"), **more)
    query, key = x(17, batch, hidden), x(33, batch, hidden)
    weights = (x(hidden, hidden, scale=0.05), x(hidden, 2 * hidden, scale=0.05), x(3 * hidden))
    cache = x(batch, heads, 33, size)
    flags = [const([value], "bool") for value in (False, False, False, False)]
    inputs = (query, key, *weights, None, cache, cache, *flags)
    _ms("DecoderAttention", *inputs, outputs=three, num_heads=heads, dtypes=FLOATS)
    rows = given([list(range(9))], "int32")
    columns = given([[0] * 8], "int32")
    inputs = (x(1, 64, 512), x(1, 64, 128), x(1, 64, 128), x(1, 2, 512, 64), x(1, 2, 512, 64), rows, columns)
    ends = (const([64], "int32"), given([64], "int32"))
    more = {"num_heads": 8, "kv_num_heads": 2, "sparse_block_size": 64, "outputs": three, "dtypes": _HALVES}
    _ms("SparseAttention", *inputs, *ends, **more)
    more = {"q_num_heads": 4, "kv_num_heads": 4, "update_rule": "linear", "dtypes": WIDE_FLOATS, "scale": 0.125}
    data = x(2, 129, 256, scale=0.2)
    _ms("LinearAttention", data, data, data, outputs=("T", "T"), **more)
    _ms("CausalConvWithState", x(2, 256, 501), x(256, 1, 4), x(256), outputs=("T", "T"), dtypes=WIDE_FLOATS)


def _positions() -> None:
    places = ints(0, 512, 2, 129)
    tables = (x(512, 32), x(512, 32))
    for interleaved in (0, 1):
        label = f"interleaved {interleaved}"
        more: dict[str, Any] = {"label": label, "dtypes": WIDE_FLOATS, "interleaved": interleaved}
        _ms("RotaryEmbedding", x(2, 129, 512), places, *tables, **more)
        _add("RotaryEmbedding", x(2, 8, 129, 64), *tables, places, opset=23, **more)
    data = x(2, 8, 129, 64)
    emb = given([[[0.1] * 64] * 129] * 2, "float32")
    _ms("GemmaRotaryEmbedding", emb, data, data, data, data, dtypes=("float16",), outputs=("T", "T"))
    ids = ints(0, 1000, 4, 128, dtype="int32")
    segments, mask = ints(0, 2, 4, 128, dtype="int32"), ints(0, 2, 4, 128, dtype="int32")
    inputs: tuple[Spec | None, ...] = (ids, segments, x(1000, 768), x(128, 768), x(2, 768), x(768), x(768), mask)
    _ms("EmbedLayerNormalization", *inputs, dtypes=FLOATS, outputs=("T", "int32"))
    lengths = (const([129]), const([129]))
    for both in (0, 1):
        more = {"label": f"bidirectional {both}", "is_bidirectional": both, "max_distance": 128, "dtypes": FLOATS}
        _ms("RelativePositionBias", x(32, 8), *lengths, **more)
    inputs = (x(2, 65, 512), x(512), x(1, 8, 65, 65), x(64, 8), x(8), x(1, 8, 1, 1))
    _ms("GatedRelativePositionBias", *inputs, num_heads=8, dtypes=FLOATS)
    weight, bias = x(256, 768, scale=0.05), x(768)
    everywhere = given([[1] * 4 + [0] * 252] * 2, "int32")
    mask_of = given([[0.0] * 200 + [-10_000.0] * 56] * 2, None)
    inputs = (x(2, 256, 256), weight, bias, mask_of, weight, bias, everywhere)
    _ms("LongformerAttention", *inputs, window=32, num_heads=4, dtypes=FLOATS)


def _activations() -> None:
    data, bias = x(2, 501, 3072), x(3072)
    for operator in ("Gelu", "QuickGelu", "FastGelu"):
        _ms(operator, data, dtypes=WIDE_FLOATS)
    _ms("FastGelu", data, bias, label="bias", dtypes=WIDE_FLOATS)
    _ms("BiasGelu", data, bias, dtypes=WIDE_FLOATS)
    for length in (129, 1024, 5003):
        more: dict[str, Any] = {
            "label": f"rows of {length}",
            "axis": 3,
            "is_inner_broadcast": 0,
            "dtypes": (*FLOATS, "float64"),
        }
        _ms("BiasSoftmax", x(2, 4, 17, length), x(2, 1, 1, length), **more)
    _ms("BiasAdd", x(2, 1024, 320), x(320), x(2, 1024, 320), dtypes=FLOATS)
    _ms("BiasSplitGelu", x(2, 1024, 2560), x(2560), dtypes=FLOATS)
    ratio, off, on = const(0.3, "float32"), const(False, "bool"), const(True, "bool")
    for label, training in (("inference", off), ("training, seed", on)):
        more = {"label": label, "dtypes": FLOATS, "seed": 7}
        _ms("BiasDropout", data, bias, data, ratio, training, outputs=("T", "bool"), **more)
        _ms("BitmaskDropout", data, ratio, training, outputs=("T", "uint32"), **more)
        _ms("BitmaskBiasDropout", data, bias, data, ratio, training, outputs=("T", "uint32"), **more)
    for operator in ("ComplexMul", "ComplexMulConj"):
        _ms(operator, x(101, 1003, 2), x(1003, 2), dtypes=FLOATS)
    _ms("NGramRepeatBlock", ints(0, 5, 4, 301), x(4, 50_257), ngram_size=3)
    _ms("DynamicTimeWarping", x(1, 129, 201), outputs=("int32",))


def _constant_weights() -> None:
    """Add a case with weights as models have them."""
    weight, bias = fixed(x(768, 2304, scale=0.05)), fixed(x(2304))
    _ms("Attention", x(1, 512, 768), weight, bias, label="constant weights", dtypes=FLOATS, num_heads=12)


_self_attention()
_grouped()
_packed()
_decoders()
_positions()
_activations()
_constant_weights()
