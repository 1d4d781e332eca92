"""Quantized operators that ONNX Runtime's optimizer puts into models, on the CPU provider."""

from __future__ import annotations

from operator_cases.building import Group, Spec, const, fixed, ints

GROUP = Group()
_ms = GROUP.ms

_UINT8 = ("uint8",)
_SCALE, _OTHER = const(0.02, "float32"), const(0.03, "float32")
_ZERO, _POINT = const(128, "uint8"), const(7, "uint8")


def _bytes(*shape: int) -> Spec:
    return ints(0, 256, *shape, dtype="uint8")


def _elementwise() -> None:
    data, row = _bytes(1000, 1003), _bytes(1003)
    first, second, result = (data, _SCALE, _ZERO), (row, _OTHER, _POINT), (_OTHER, _ZERO)
    for operator in ("QLinearAdd", "QLinearMul"):
        _ms(operator, *first, *second, *result, dtypes=_UINT8)
    _ms("QLinearSigmoid", *first, *result, dtypes=_UINT8)
    _ms("QLinearLeakyRelu", *first, *result, dtypes=_UINT8, alpha=0.1)
    _ms("QLinearConcat", *result, *first, _bytes(77, 1003), _OTHER, _POINT, dtypes=_UINT8, axis=0)
    where = ints(0, 2, 1000, 1003, dtype="bool")
    _ms("QLinearWhere", where, *first, *second, *result, dtypes=_UINT8)


def _images() -> None:
    image, result = (_bytes(2, 64, 57, 55), _SCALE, _ZERO), (_OTHER, _POINT)
    _ms("QLinearAveragePool", *image, *result, dtypes=_UINT8, kernel_shape=[3, 3], strides=[2, 2])
    _ms("QLinearGlobalAveragePool", *image, *result, dtypes=_UINT8, channels_last=0)
    _ms("NhwcMaxPool", _bytes(2, 57, 55, 64), dtypes=_UINT8, kernel_shape=[3, 3], strides=[2, 2])
    filters = (fixed(ints(-100, 100, 32, 64, 3, 3, dtype="int8")), _OTHER, const(0, "int8"))
    pixels = (_bytes(2, 33, 31, 64), _SCALE, _ZERO)
    _ms("QLinearConv", *pixels, *filters, *result, dtypes=_UINT8, channels_last=1, kernel_shape=[3, 3])


def _products() -> None:
    left, right = (_bytes(64, 4099), _SCALE, _ZERO), (_bytes(4099, 257), _OTHER, _POINT)
    _ms("QGemm", *left, *right, None, const(2.0, "float32"), _ZERO, dtypes=_UINT8)


_elementwise()
_images()
_products()
