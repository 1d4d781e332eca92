"""What is known of each operator's reproducibility, by execution provider.

One row a group of operators that share a mechanism. What stands in no row is unknown: nobody has looked at it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"


class OperatorStatus(StrEnum):
    """How an operator's outputs repeat."""

    DETERMINISTIC = "deterministic"
    SETTING = "deterministic with a setting"
    NONDETERMINISTIC = "nondeterministic"
    STATEFUL = "stateful"
    UNKNOWN = "unknown"


class Basis(StrEnum):
    """What a statement rests on."""

    CONSTRUCTION = "by construction"
    EVIDENCE = "by evidence"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What is known of one group of operators on one provider."""

    status: OperatorStatus
    basis: Basis
    reason: str
    remedy: str = ""
    evidence: str = ""
    setting: str | None = None
    """Key of the setting that makes it deterministic."""
    through_cudnn: bool = False
    """Whether it holds is measured by the interposer, plan by plan."""


_ELEMENTWISE = """
Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil
Celu Clip Cos Cosh DequantizeLinear Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish IsInf
IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow QuantizeLinear Reciprocal Relu
Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor
BatchNormalization Dropout BiasAdd BiasGelu BiasSplitGelu FastGelu QuickGelu ParametricSoftplus ScaledTanh Affine
"""
_MOVEMENT = """
Compress Concat ConcatFromSequence Constant ConstantOfShape DepthToSpace Expand EyeLike Flatten Gather GatherElements
GatherND Identity OneHot Optional OptionalGetElement OptionalHasElement Pad Range Reshape ReverseSequence
SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength Shape Size Slice SpaceToDepth
Split SplitToSequence Squeeze Tile Transpose Trilu Unsqueeze MemcpyFromHost MemcpyToHost ReorderInput ReorderOutput
If Loop Scan
"""
_CONVOLUTIONS = "Conv ConvTranspose FusedConv NhwcConv NhwcFusedConv"
_MATRIX = "MatMul Gemm FusedMatMul FusedGemm TransposeMatMul"
_ORDERED_REDUCTIONS = "ReduceMax ReduceMin"
_REDUCTIONS = (
    "ReduceSum ReduceMean ReduceSumSquare ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceProd ReduceSumTraining"
)
_MEASURED = """
Einsum Softmax LogSoftmax LayerNormalization SkipLayerNormalization SimplifiedLayerNormalization
SkipSimplifiedLayerNormalization InstanceNormalization AveragePool MaxPool GlobalAveragePool GlobalMaxPool Resize
Upsample GridSample RoiAlign TopK NonZero NonMaxSuppression LSTM GRU MultiHeadAttention GroupQueryAttention
MatMulNBits DeformConv CumSum
"""
_SCATTER = "ScatterND ScatterElements Scatter"
_GROUP_NORM = "GroupNorm SkipGroupNorm"
_EXACT = """
MatMulInteger ConvInteger QLinearConv QLinearMatMul QLinearAdd QLinearMul QLinearSigmoid QLinearLeakyRelu QLinearConcat
QLinearWhere QLinearAveragePool QLinearGlobalAveragePool NhwcMaxPool
"""
_INDICES = "ArgMax ArgMin Hardmax"
_RANDOM = "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Bernoulli Multinomial"

_H200 = "NVIDIA H200, ORT 1.31.1"

_ONE_WRITER = Knowledge(
    OperatorStatus.DETERMINISTIC,
    Basis.CONSTRUCTION,
    "Each output element is written once, by one thread, from the same inputs in a fixed order.",
)
_INTEGERS = Knowledge(
    OperatorStatus.DETERMINISTIC,
    Basis.CONSTRUCTION,
    "Sums of integers are exact, so they are the same in every order; the rest is done element by element.",
)
_FUNCTION = Knowledge(
    OperatorStatus.DETERMINISTIC,
    Basis.CONSTRUCTION,
    "A call of one of the model's functions, whose nodes are judged themselves.",
)
_STATEFUL = Knowledge(
    OperatorStatus.STATEFUL,
    Basis.EVIDENCE,
    "The generator keeps a state: every run draws other numbers, with a seed too.",
    "Draw the numbers outside the model and feed them as an input.",
    f"{_H200}: RandomNormalLike with a seed gave another draw at each run.",
)

_ON_CUDA: tuple[tuple[str, Knowledge], ...] = (
    (f"{_ELEMENTWISE} {_MOVEMENT}", _ONE_WRITER),
    (_EXACT, _INTEGERS),
    (
        _CONVOLUTIONS,
        Knowledge(
            OperatorStatus.DETERMINISTIC,
            Basis.CONSTRUCTION,
            "cuDNN names its nondeterministic engines and algorithms; none of them runs.",
            through_cudnn=True,
        ),
    ),
    (
        _MATRIX,
        Knowledge(
            OperatorStatus.DETERMINISTIC,
            Basis.CONSTRUCTION,
            "cuBLAS gives the same bits for the same version, architecture and number of SMs with one stream a handle.",
            evidence=f"cuBLAS documentation, results reproducibility; {_H200}: 1 of 12.",
        ),
    ),
    (
        _ORDERED_REDUCTIONS,
        Knowledge(
            OperatorStatus.DETERMINISTIC,
            Basis.CONSTRUCTION,
            "The largest or smallest of the elements is the same in every order.",
        ),
    ),
    (
        _REDUCTIONS,
        Knowledge(
            OperatorStatus.SETTING,
            Basis.EVIDENCE,
            "Partial sums are added with atomics in the order of arrival unless use_deterministic_compute is on.",
            "Use mode pin or strict, or set sess_options.use_deterministic_compute = True.",
            f"{_H200}, to one value: ReduceSum and ReduceMean 11 of 12 distinct, ReduceSumSquare 3; 1 of 12 with it.",
            setting="use_deterministic_compute",
        ),
    ),
    (
        _MEASURED,
        Knowledge(
            OperatorStatus.DETERMINISTIC,
            Basis.EVIDENCE,
            "No run differed where it was measured.",
            evidence=f"{_H200}: 1 distinct of 12 runs, one shape each.",
        ),
    ),
    (
        _GROUP_NORM,
        Knowledge(
            OperatorStatus.NONDETERMINISTIC,
            Basis.EVIDENCE,
            "The kernel adds partial sums with atomics, in the order of arrival; use_deterministic_compute does not "
            "change that.",
            "Export the model with GroupNormalization's standard decomposition (InstanceNormalization, Mul, Add).",
            f"{_H200}: contrib GroupNorm fp16 12 of 12 distinct.",
        ),
    ),
    (_RANDOM, _STATEFUL),
)
_TO_THE_CPU = (
    "Run the node on the CPU provider (session.name_based_layer_assignment='cpu(NODE)' from ORT 1.31 on), a ScatterND "
    "with sess_options.intra_op_num_threads = 1."
)
_SCATTER_ON_CUDA = Knowledge(
    OperatorStatus.NONDETERMINISTIC,
    Basis.EVIDENCE,
    "Updates of one element are added or multiplied with atomics, in the order of arrival; use_deterministic_compute "
    "does not change that.",
    _TO_THE_CPU,
    f"{_H200}: 12 of 12 distinct with add and with mul.",
)
_SCATTER_WITHOUT_REDUCTION = Knowledge(
    OperatorStatus.UNKNOWN,
    Basis.NONE,
    "With duplicate indices the last writer wins, and ONNX leaves undefined which one that is; without duplicates each "
    "element is written once. The indices are not known before the run.",
    _TO_THE_CPU,
    f"{_H200}: 12 of 12 distinct with duplicate indices.",
)
_SCATTER_ORDERED = Knowledge(
    OperatorStatus.DETERMINISTIC,
    Basis.CONSTRUCTION,
    "The largest or smallest of the updates is the same in every order.",
)

_SCATTER_ND_ON_CPU = Knowledge(
    OperatorStatus.NONDETERMINISTIC,
    Basis.EVIDENCE,
    "With duplicate indices its threads write the same elements at the same time, and updates get lost: values are "
    "wrong, not only in another order. One thread is right.",
    "Set sess_options.intra_op_num_threads = 1.",
    "CPU provider, ORT 1.32, 20,001 updates of 1,001 rows, int32: add and max gave 12 distinct of 12 runs with 2 "
    "threads, all of them wrong; 1 of 12 and right with 1 thread.",
    setting="intra_op_num_threads",
)
_EINSUM_SUM = Knowledge(
    OperatorStatus.UNKNOWN,
    Basis.NONE,
    "A label of one operand alone is summed away, which ONNX Runtime's source does with float atomics for large sizes, "
    "whatever use_deterministic_compute says.",
    "Write that sum as a ReduceSum before the Einsum.",
)

_ON_CPU: tuple[tuple[str, Knowledge], ...] = (
    (f"{_ELEMENTWISE} {_MOVEMENT} {_INDICES}", _ONE_WRITER),
    (_EXACT, _INTEGERS),
    (
        f"{_CONVOLUTIONS} {_MATRIX} {_MEASURED} {_SCATTER} {_ORDERED_REDUCTIONS}",
        Knowledge(
            OperatorStatus.DETERMINISTIC,
            Basis.EVIDENCE,
            "No run differed where it was measured; threads share the work by parts of the output.",
            evidence="CPU provider, 1, 2, 4 and 8 threads: 1 distinct of 6 runs at each, the same bits at all.",
        ),
    ),
    (
        _REDUCTIONS,
        Knowledge(
            OperatorStatus.DETERMINISTIC,
            Basis.EVIDENCE,
            "No run differed where it was measured. Sensitive to the number of threads, which is pinned.",
            evidence="CPU provider, 1, 2, 4 and 8 threads: 1 distinct of 6 runs at each count; ReduceMean over axes "
            "[0, 2] gave other bits at other counts.",
        ),
    ),
    (_RANDOM, _STATEFUL),
)

_TRAINING = Knowledge(
    OperatorStatus.STATEFUL,
    Basis.CONSTRUCTION,
    "In training mode it drops elements at random, and the generator keeps a state from run to run.",
    "Export the model for inference, or make the input training_mode a constant false.",
)
_MAYBE_TRAINING = Knowledge(
    OperatorStatus.UNKNOWN,
    Basis.NONE,
    "In training mode it drops elements at random, and whether it is in training mode is not known before the run.",
    "Export the model for inference, or make the input training_mode a constant false.",
)
_BATCH_STATISTICS = Knowledge(
    OperatorStatus.UNKNOWN,
    Basis.NONE,
    "In training mode it reduces over the batch, and nobody has measured that.",
    "Export the model for inference, with training_mode=0.",
)

_UNKNOWN = Knowledge(
    OperatorStatus.UNKNOWN,
    Basis.NONE,
    "Nobody has measured this operator on this provider.",
    "Use mode pin, which runs it and reports it; or measure it and say so.",
)

# Domains whose operators the rows name. The internal NHWC domain holds the same operators in another layout.
_DOMAINS = frozenset({"", "ai.onnx", "com.microsoft", "com.ms.internal.nhwc", "com.microsoft.nchwc"})


def _index(rows: tuple[tuple[str, Knowledge], ...]) -> dict[str, Knowledge]:
    return {name: knowledge for names, knowledge in rows for name in names.split()}


_TABLES = {CUDA: _index(_ON_CUDA), CPU: _index(_ON_CPU)}


def lookup(op_type: str, domain: str, provider: str, attributes: Mapping[str, object] | None = None) -> Knowledge:
    """Return what is known of an operator on a provider.

    Args:
        op_type: e.g. ``Conv``.
        domain: ``""`` for ONNX's own.
        provider: e.g. ``CUDAExecutionProvider``; of other providers than CUDA and CPU nothing is known.
        attributes: the node's attributes; None where they are not known, and then the worst case counts.
    """
    table = _TABLES.get(provider)
    if table is None:
        return _UNKNOWN
    if attributes is not None and attributes.get("function"):
        return _FUNCTION
    if domain not in _DOMAINS:
        return _UNKNOWN
    if provider == CUDA and op_type in _SCATTER.split():
        return _scatter(op_type, attributes)
    if provider == CPU and op_type == "ScatterND":
        return _SCATTER_ND_ON_CPU
    if provider == CUDA and op_type == "Einsum" and _sums_one_operand(attributes):
        return _EINSUM_SUM
    if op_type == "Dropout":
        return _dropout(attributes)
    if op_type == "BatchNormalization" and attributes is not None and attributes.get("training_mode"):
        return _BATCH_STATISTICS
    return table.get(op_type, _UNKNOWN)


def _sums_one_operand(attributes: Mapping[str, object] | None) -> bool:
    """Return whether an Einsum may drop a label that only one operand has."""
    equation = attributes.get("equation") if attributes is not None else None
    if not isinstance(equation, str):
        return True
    operands, arrow, output = equation.replace(" ", "").replace(".", "").partition("->")
    terms = [set(term) for term in operands.split(",")]
    if not arrow:
        return False  # the output then has every label that comes once
    return any(sum(label in term for term in terms) == 1 for label in set().union(*terms) - set(output))


def _dropout(attributes: Mapping[str, object] | None) -> Knowledge:
    training = None if attributes is None else attributes.get("training_mode", False)
    if training is None:
        return _MAYBE_TRAINING
    return _TRAINING if training else _ONE_WRITER


def _scatter(op_type: str, attributes: Mapping[str, object] | None) -> Knowledge:
    if op_type == "Scatter":
        return _SCATTER_WITHOUT_REDUCTION
    if attributes is None:
        return _SCATTER_ON_CUDA
    reduction = attributes.get("reduction", "none")
    if reduction == "none":
        return _SCATTER_WITHOUT_REDUCTION
    return _SCATTER_ORDERED if reduction in ("min", "max") else _SCATTER_ON_CUDA
