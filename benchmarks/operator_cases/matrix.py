"""Matrix products, plain and quantized, and quantization itself."""

from __future__ import annotations

from typing import Any

from operator_cases.building import (
    FLOATS,
    WIDE_FLOATS,
    Group,
    Spec,
    const,
    fixed,
    given,
    ints,
    positive,
    special,
    wide,
    x,
)

GROUP = Group()
_add, _ms = GROUP.add, GROUP.ms

_PRODUCTS: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = (
    ("split K 8", (8, 65_536), (65_536, 8)),
    ("split K 16 odd", (17, 100_003), (100_003, 13)),
    ("split K 64", (64, 32_768), (32_768, 64)),
    ("split K 128", (128, 16_384), (16_384, 128)),
    ("row", (1, 16_384), (16_384, 257)),
    ("column", (257, 16_384), (16_384, 1)),
    ("dot", (1, 1_000_003), (1_000_003, 1)),
    ("square", (1024, 1024), (1024, 1024)),
    ("odd", (1021, 509), (509, 257)),
    ("batched", (32, 128, 65), (32, 65, 129)),
    ("batched, broadcast", (4, 7, 129, 257), (257, 63)),
    ("batched, split K", (3, 8, 32_768), (3, 32_768, 8)),
)


def _products() -> None:
    for label, a, b in _PRODUCTS:
        _add("MatMul", x(*a), x(*b), label=label, dtypes=WIDE_FLOATS)
        if len(a) == 2:
            bias = x(b[1])
            _add("Gemm", x(*a), x(*b), bias, label=label, dtypes=FLOATS, alpha=0.5, beta=2.0)
            _ms("FusedMatMul", x(*a), x(*reversed(b)), label=f"{label}, transposed", dtypes=FLOATS, transB=1, alpha=0.3)
    _add("MatMul", x(64, 32_768), x(32_768, 64), label="split K 64", dtypes=("float64",))
    _add("MatMul", special(300, 301), x(301, 303), label="with NaN")
    _add("MatMul", wide(8, 65_536), fixed(wide(65_536, 8)), label="split K 8, constant", dtypes=FLOATS)
    _add("MatMul", x(65_536), x(65_536), label="of vectors", dtypes=FLOATS)
    for first, second in ((0, 1), (1, 0), (1, 1)):
        left = x(32_768, 24) if first else x(24, 32_768)
        right = x(16, 32_768) if second else x(32_768, 16)
        more: dict[str, Any] = {
            "label": f"transposed {first}{second}",
            "dtypes": WIDE_FLOATS,
            "transA": first,
            "transB": second,
        }
        _add("Gemm", left, right, x(24, 16), **more)
    _ms("TransposeMatMul", x(65_536, 8), x(65_536, 8), label="split K", transA=1)
    _ms("FusedMatMul", x(129, 8, 65), x(65, 8, 127), label="batch", dtypes=FLOATS, transBatchA=1, transBatchB=1)
    _ms("FusedGemm", x(64, 4096), x(4096, 64), x(64), label="split K", activation="Relu")
    _ms("Inverse", x(16, 33, 33), dtypes=(*FLOATS, "float64"))
    equations: dict[str, tuple[tuple[int, ...], ...]] = {
        "ij,jk->ik": ((8, 65_536), (65_536, 8)),
        "bhid,bhjd->bhij": ((2, 4, 129, 64), (2, 4, 127, 64)),
        "ij->": ((1000, 1003),),
        "ij->j": ((10_007, 103),),
        "ii->": ((1001, 1001),),
        "ii->i": ((1001, 1001),),
        "bij,bjk->": ((4, 65, 1001), (4, 1001, 33)),
        "i,j->ij": ((1001,), (1003,)),
        "ij,kj,lj->ikl": ((33, 129), (31, 129), (17, 129)),
        "...ij->...ji": ((5, 101, 103),),
    }
    for equation, shapes in equations.items():
        dtypes = (*FLOATS, "float64") if equation == "ij,jk->ik" else FLOATS
        _add("Einsum", *(x(*shape) for shape in shapes), label=equation, dtypes=dtypes, equation=equation)


def _integers() -> None:
    int8 = {"dtype": "int8"}
    for label, a, b in (_PRODUCTS[0], _PRODUCTS[2], _PRODUCTS[7], ("batched", (32, 128, 64), (32, 64, 128))):
        inputs: tuple[Spec | None, ...] = (ints(-128, 128, *a, **int8), ints(-128, 128, *b, **int8))
        _add("MatMulInteger", *inputs, label=label, dtypes=("int8",))
        zeros = (given(3, "int8"), given(-2, "int8"))
        _add("MatMulInteger", *inputs, *zeros, label=f"{label}, zero points", dtypes=("int8",))
    one, zero = given(0.05, "float32"), given(0, "int8")
    inputs = (ints(-128, 128, 64, 4096, **int8), one, zero, ints(-128, 128, 4096, 64, **int8), one, zero, one, zero)
    _add("QLinearMatMul", *inputs, dtypes=("int8",))
    unsigned = ints(0, 256, 64, 4096, dtype="uint8")
    signed = ints(-128, 128, 4096, 64, **int8)
    _ms("DynamicQuantizeMatMul", x(64, 4096), signed, given(0.02, "float32"))
    _ms("MatMulIntegerToFloat", unsigned, signed, given(0.02, "float32"), given(0.02, "float32"))


def _low_bits() -> None:
    sizes = (
        ("one row", 1, 4096, 4096),
        ("few rows", 7, 4096, 1024),
        ("many rows", 257, 4096, 1024),
        ("wide", 1, 16_384, 64),
    )
    for label, m, k, n in sizes:
        for width in (4, 8):
            blocks = k // 32
            weight = fixed(ints(0, 256, n, blocks, 32 * width // 8, dtype="uint8"))
            scales = fixed(x(n * blocks, scale=0.01))
            zeros = fixed(ints(0, 256, n * blocks * width // 8, dtype="uint8"))
            more: dict[str, Any] = {"K": k, "N": n, "bits": width, "block_size": 32}
            words = f"{width} bits, {label}"
            _ms("MatMulNBits", x(m, k), weight, scales, label=words, dtypes=WIDE_FLOATS, **more)
            _ms("MatMulNBits", x(m, k), weight, scales, zeros, label=f"{words}, zeros", dtypes=FLOATS, **more)
        packed = fixed(ints(0, 256, n * k // 2, 1, dtype="uint8"))
        largest = fixed(positive(n * k // 64))
        for kind in (0, 1):
            words = f"{'NF4' if kind else 'FP4'}, {label}"
            more = {"K": k, "N": n, "block_size": 64, "quant_type": kind, "transB": 1}
            _ms("MatMulBnb4", x(m, k), packed, largest, label=words, dtypes=WIDE_FLOATS, **more)
    order = fixed(given([i // 32 for i in range(4096)], "int32"))
    weight, scales = fixed(ints(0, 256, 256, 128, 16, dtype="uint8")), fixed(x(256 * 128, scale=0.01))
    more = {"K": 4096, "N": 256, "bits": 4, "block_size": 32, "label": "group index"}
    _ms("MatMulNBits", x(9, 4096), weight, scales, None, order, dtypes=FLOATS, **more)
    data, rows = fixed(ints(0, 256, 5000, 256, dtype="uint8")), ints(0, 5000, 7, 129)
    more = {"bits": 4, "block_size": 32, "gather_axis": 0, "quantize_axis": 1}
    _ms("GatherBlockQuantized", data, rows, fixed(x(5000, 16)), dtypes=WIDE_FLOATS, **more)


def _experts() -> None:
    # As wide as it is deep: the weights' layout changed between versions of ONNX Runtime.
    for label, tokens, experts, width, k in (
        ("few tokens", 7, 8, 256, 1),
        ("tokens", 301, 8, 512, 2),
        ("many", 2048, 16, 256, 4),
    ):
        router, weight = x(tokens, experts), fixed(x(experts, width, width, scale=0.05))
        bias = fixed(x(experts, width))
        for activation in ("relu", "gelu", "silu"):
            more: dict[str, Any] = {"k": k, "activation_type": activation, "label": f"{label}, {activation}"}
            _ms("MoE", x(tokens, width), router, weight, bias, weight, bias, dtypes=FLOATS, **more)
        packed = fixed(ints(0, 256, experts, width, width // 2, dtype="uint8"))
        scales = fixed(x(experts, width, scale=0.01))
        more = {"k": k, "activation_type": "gelu", "expert_weight_bits": 4, "label": label, "dtypes": ("float16",)}
        _ms("QMoE", x(tokens, width), router, packed, scales, None, packed, scales, None, **more)
        more |= {"dtypes": ("bfloat16",)}
        _ms("QMoE", x(tokens, width), router, packed, scales, None, packed, scales, None, **more)
    router, weight = x(301, 8), fixed(x(8, 256, 256, scale=0.05))
    more = {"k": 2, "activation_type": "silu", "normalize_routing_weights": 1, "dtypes": FLOATS}
    _ms("MoE", x(301, 256), router, weight, None, weight, None, label="normalized routing", **more)
    more |= {"use_sparse_mixer": 1}
    _ms("MoE", x(301, 256), router, weight, None, weight, None, label="sparse mixer", **more)


def _quantization() -> None:
    scale = const(0.05, "float32")
    for dtype in ("int8", "uint8"):
        point = const(3, dtype)
        values = ints(0, 100, 1000, 1003, dtype=dtype)
        _add("QuantizeLinear", special(1000, 1003), scale, point, label=f"to {dtype}")
        _add("DequantizeLinear", values, scale, point, label=f"of {dtype}", dtypes=(dtype,))
        many, points = fixed(positive(1003)), fixed(ints(0, 9, 1003, dtype=dtype))
        _add(
            "QuantizeLinear", x(1000, 1003), many, points, label=f"to {dtype}, along axis", axis=1, dtypes=("float32",)
        )
        half = const(0.05, "float16")
        _add("QuantizeLinear", x(1000, 1003), half, point, label=f"to {dtype}", dtypes=("float16",), opset=19)
        _add("DequantizeLinear", values, half, point, label=f"of {dtype} to half", dtypes=(dtype,), opset=19)
        more: dict[str, Any] = {"label": f"to {dtype}", "dtypes": ("float16",), "outputs": (dtype,)}
        _ms("QuantizeLinear", x(1000, 1003), half, point, **more)
        _ms("DequantizeLinear", values, half, point, label=f"of {dtype}", dtypes=(dtype,), outputs=("float16",))
    _add("DynamicQuantizeLinear", wide(1000, 1003), outputs=3)
    more = {"order_input": 1, "order_output": 1}
    one, int8 = const(0.05, "float32"), ("int8",)
    _ms("QuantizeWithOrder", x(2, 128, 256), one, dtypes=FLOATS, outputs=int8, **more)
    values = ints(-128, 128, 2, 128, 256, dtype="int8")
    _ms("DequantizeWithOrder", values, one, dtypes=int8, outputs=("float32",), to=1, **more)
    _ms("QOrderedGelu", values, one, one, dtypes=int8, order_X=1, order_Y=1)
    _ms("QOrderedLayerNormalization", values, one, x(256), x(256), one, outputs=int8, order_X=1, order_Y=1)
    weight = fixed(ints(-128, 128, 256, 512, dtype="int8"))
    more = {"order_A": 1, "order_B": 0, "order_Y": 1}
    _ms("QOrderedMatMul", values, one, weight, one, one, dtypes=int8, **more)
    hidden, heads = 256, 4
    inputs: tuple[Spec | None, ...] = (
        ints(-128, 128, 2, 64, hidden, dtype="int8"),
        fixed(ints(-128, 128, hidden, 3 * hidden, dtype="int8")),
    )
    bias, lengths = fixed(x(3 * hidden)), given([64, 40], "int32")
    steps = (const(0.01, None), const(0.01, None))
    more = {"num_heads": heads, "outputs": ("T",), "dtypes": FLOATS}
    _ms("QAttention", *inputs, bias, *steps, lengths, const(0, "int8"), const(0, "int8"), **more)


_products()
_integers()
_low_bits()
_experts()
_quantization()
