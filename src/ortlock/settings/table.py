"""The one table of settings that can change the bits of an output, or whether they repeat.

Names and versions were read from the CPU and CUDA packages of ONNX Runtime 1.19.2, 1.26.0, 1.27.0 and 1.31.1 (the CPU
package of 1.32.0 as well), and the environment variables of NVIDIA's libraries from cuBLAS 13 and cuDNN 9.19. None of
these holds the name of an ``OMP_*`` or ``MLAS_*`` variable. What merely selects another kernel is recorded and kept:
it changes the bits, and whether the other kernel repeats them is judged by operator, not here.
"""

from __future__ import annotations

from typing import Any

from ortlock.settings.model import CPU, CUDA, Kind, OwnValue, Setting

_OLD: dict[str, Any] = {"since": "<=1.19"}
_FROM_1_26: dict[str, Any] = {"since": "1.26", "absent": "1.19"}
_FROM_1_27: dict[str, Any] = {"since": "1.27", "absent": "1.26"}
_FROM_1_31: dict[str, Any] = {"since": "1.31", "absent": "1.27"}
_FROM_1_32: dict[str, Any] = {"since": "1.32", "absent": "1.31"}
_LIBRARY: dict[str, Any] = {"since": ""}

_BOOLEAN = frozenset({"0", "1"})
_OFF = frozenset({"0"})
_OTHER_KERNEL = "Selects another kernel, and with it other bits; whether they repeat is judged by operator."
_STRINGS = "Read in the packages of these versions; not measured."
_CONV = ("Conv", "ConvTranspose", "FusedConv", "NhwcConv", "NhwcFusedConv")
_GEMM = ("MatMul", "Gemm", "FusedMatMul", "FusedGemm", "TransposeMatMul")
_REDUCTIONS = (
    *("ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"),
    "ReduceProd",
)
_TIMED = "Times the candidates and runs the fastest, so the choice of kernel depends on the load of the moment."
_TUNABLE = "TunableOp " + _TIMED[0].lower() + _TIMED[1:]
_UNSET = "Do not set it in the environment of the process."


def _session(key: str, effect: str, **fields: Any) -> Setting:
    return Setting(key, Kind.SESSION_OPTION, fields.pop("provider", None), effect, **(_OLD | fields))


def _config(key: str, provider: str | None, versions: dict[str, Any], effect: str, **fields: Any) -> Setting:
    return Setting(
        key, Kind.CONFIG_ENTRY, provider, effect, **({"evidence": _STRINGS, "default": ""} | versions | fields)
    )


def _cuda(key: str, versions: dict[str, Any], effect: str, **fields: Any) -> Setting:
    return Setting(key, Kind.PROVIDER_OPTION, CUDA, effect, **({"evidence": _STRINGS} | versions | fields))


def _env(
    key: str, provider: str | None, versions: dict[str, Any], effect: str = _OTHER_KERNEL, **fields: Any
) -> Setting:
    return Setting(
        key, Kind.ENVIRONMENT, provider, effect, **({"evidence": _STRINGS, "default": ""} | versions | fields)
    )


_SESSION_OPTIONS = (
    _session(
        "use_deterministic_compute",
        "Makes CUDA reductions that add with atomics in the order of arrival use a fixed order instead.",
        default="0",
        pinned="1",
        own_value=OwnValue.OVERRIDE,
        safe_values=frozenset({"1"}),
        operators=_REDUCTIONS,
        provider=CUDA,
        evidence="NVIDIA H200, ORT 1.31.1: ReduceSum and ReduceMean to one value gave 11 different outputs of 12 runs, "
        "ReduceSumSquare 3; with it 1 of 12. Scatter with a reduction stays at 12 of 12.",
        remedy="Leave it to ortlock, or set sess_options.use_deterministic_compute = True.",
    ),
    _session(
        "intra_op_num_threads",
        "How many threads share one operator on the CPU; where a reduction is split by thread it changes the bits.",
        default="0",
        evidence="CPU provider: ReduceMean over axes [0, 2] gave other bits at other thread counts; every operator "
        "tried gave 1 output of 6 runs at each count.",
        remedy="Give a number: 0 lets ONNX Runtime choose by the machine.",
    ),
    _session(
        "inter_op_num_threads",
        "How many operators run at the same time, in parallel execution mode only.",
        default="0",
        evidence="Each node computes the same, whatever runs beside it.",
    ),
    _session(
        "execution_mode",
        "Sequential or parallel execution of nodes.",
        default="ORT_SEQUENTIAL",
        evidence="Parallel execution was not measured.",
    ),
    _session(
        "execution_order",
        "The order of nodes; each node computes the same.",
        default="DEFAULT",
        evidence="A property of the graph, fixed when the session is created.",
    ),
    _session(
        "graph_optimization_level",
        "Which graph rewrites run; fused operators round differently from the parts that they replace.",
        default="ORT_ENABLE_ALL",
        evidence="Rewrites are fixed when the session is created, from the model and the level alone.",
    ),
    _session(
        "use_per_session_threads",
        "False takes the threads from the process-wide pool, whose size this session cannot pin.",
        default="1",
        since="1.26",
        absent="1.19",
        evidence="ORT 1.32.0 refuses such a session where no process-wide pool was made.",
    ),
)

_CONFIG_ENTRIES = (
    _config(
        "session.set_denormal_as_zero",
        None,
        _OLD,
        "Flushes denormals to zero. The first session of the process alone decides it for the calling thread, and "
        "for every later session and all other code there: the bits depend on the order of sessions.",
        default="0",
        own_value=OwnValue.WARN,
        safe_values=_OFF,
        evidence="CPU provider, ORT 1.19.2 and 1.32.0: asked for by the second session it did nothing; asked for by "
        "the first, it flushed the denormals of a second session that did not ask, and NumPy's.",
        remedy="Export the model without denormals and leave the entry out.",
    ),
    _config(
        "session.resource_cuda_partitioning_settings",
        CUDA,
        _FROM_1_26,
        "Places nodes on the GPU up to a memory limit; without a limit, up to the memory that is free at the moment.",
        own_value=OwnValue.WARN,
        safe_values=_OFF,
        evidence="ONNX Runtime's description of the key: where the limit is absent, the provider may find the memory "
        "available by itself.",
        remedy="Start the value with a limit in KB, e.g. '8388608,stats.csv'.",
    ),
    _config(
        "ep.cuda.enable_gemm_auto_tune",
        CUDA,
        _FROM_1_31,
        f"{_TIMED} For fp16 and bf16 matrix products with few rows: cuBLAS, a small-N kernel or tinygemm2.",
        default="0",
        pinned="0",
        own_value=OwnValue.OVERRIDE,
        safe_values=_OFF,
        domain=_BOOLEAN,
        operators=_GEMM,
        evidence="ONNX Runtime's source: ten timed runs of each candidate, the fastest by 5% wins, kept per process. "
        "The candidates do not give the same bits in every case.",
        remedy="Leave it at 0.",
    ),
    _config(
        "ep.cuda.fpa_intb_gemm",
        CUDA,
        _FROM_1_31,
        f"{_TIMED} For MatMulNBits, when the session is created. Weights that were packed for it at export time use "
        "it whatever this says.",
        default="0",
        pinned="0",
        own_value=OwnValue.OVERRIDE,
        safe_values=_OFF,
        operators=("MatMulNBits",),
        evidence="ONNX Runtime's source: the constructor of the kernel profiles the GEMM tactics.",
        remedy="Leave it at 0.",
    ),
    _config("ep.cuda.fpa_intb_profile_m", CUDA, _FROM_1_31, "Which row counts the fpA-intB profiling times."),
    _config("ep.cuda.fpa_intb_gemv_paired_k", CUDA, _FROM_1_31, _OTHER_KERNEL, operators=("MatMulNBits",)),
    _config("ep.cuda.fpa_intb_gemv_wave_aware", CUDA, _FROM_1_31, _OTHER_KERNEL, operators=("MatMulNBits",)),
    _config("ep.cuda.fpa_intb_dequant_gemm_min_m", CUDA, _FROM_1_32, _OTHER_KERNEL, operators=("MatMulNBits",)),
    _config("ep.cuda.matmul_nbits_m_chunk_size", CUDA, _FROM_1_31, "Splits rows into chunks: changes the kernels."),
    _config("ep.cuda.qmoe_row_tile_size", CUDA, _FROM_1_31, "Splits rows into tiles: changes the kernels."),
    _config("ep.cuda.qmoe_int_dequant_max_scratch_bytes", CUDA, _FROM_1_31, "Splits work by scratch memory."),
    _config("ep.cuda.gqa_workspace_max_total_sequence_length", CUDA, _FROM_1_31, "Sizes an attention workspace."),
    _config("session.kernel_dispatch_policy", CUDA, _FROM_1_32, _OTHER_KERNEL),
    _config(
        "session.name_based_layer_assignment",
        None,
        _FROM_1_31,
        "Moves nodes to another provider, which rounds differently.",
    ),
    _config(
        "session.layer_assignment_settings",
        None,
        _FROM_1_26,
        "Moves nodes to another provider, which rounds differently.",
    ),
    _config(
        "session.disable_cpu_ep_fallback", None, _OLD, "Makes session creation fail where a node would go to the CPU."
    ),
    _config(
        "optimization.enable_gelu_approximation",
        None,
        _OLD,
        "Replaces Gelu by an approximation: other values.",
        default="0",
    ),
    _config("optimization.disable_specified_optimizers", None, _OLD, "Leaves graph rewrites out: changes the fusions."),
    _config("optimization.enable_cast_chain_elimination", None, _FROM_1_26, "Removes casts, and with them roundings."),
    _config("session.graph_optimizations_loop_level", None, _FROM_1_26, "How often graph rewrites are repeated."),
    _config("session.disable_aot_function_inlining", None, _OLD, "Changes what can be fused."),
    _config("session.disable_prepacking", None, _OLD, "Runs kernels on unpacked weights: may be other kernels."),
    _config("session.disable_quant_qdq", None, _OLD, "Keeps quantized nodes unfused: other roundings.", default="0"),
    _config("session.disable_double_qdq_remover", None, _OLD, "Keeps double quantization: other roundings."),
    _config("session.enable_quant_qdq_cleanup", None, _OLD, "Removes quantize-dequantize pairs: other roundings."),
    _config("session.disable_qdq_constant_folding", None, _FROM_1_26, "Keeps quantized constants unfolded."),
    _config("session.enable_dq_matmulnbits_fusion", None, _FROM_1_26, "Fuses into MatMulNBits: other roundings."),
    _config("session.qdq_matmulnbits_accuracy_level", None, _OLD, "The accumulation type of fused MatMulNBits."),
    _config("session.qdqisint8allowed", None, _OLD, "Allows int8 kernels for quantized graphs."),
    _config("session.x64quantprecision", None, _OLD, "Quantized kernels on AVX2 without saturation: other values."),
    _config("session.gqa_value_layout", None, _FROM_1_31, _OTHER_KERNEL),
    _config("session.dynamic_block_base", CPU, _OLD, "How CPU threads share work, as the thread count does."),
    _config("mlas.use_lut_gemm", CPU, _FROM_1_26, _OTHER_KERNEL),
    _config("mlas.disable_kleidiai", CPU, {"since": "1.31", "absent": "1.19"}, _OTHER_KERNEL),
    _config("mlas.kleidiai.conv_igemm_max_work", CPU, _FROM_1_31, _OTHER_KERNEL),
    _config("mlas.nchwc_depthwise_sliding", CPU, _FROM_1_31, _OTHER_KERNEL),
    _config("mlas.nchwc_pointwise_conv_max_input_channel_batch", CPU, _FROM_1_31, _OTHER_KERNEL),
    _config("mlas.qnbit.force_fp32", CPU, _FROM_1_31, "Quantized products in fp32: other values."),
    _config(
        "mlas.enable_gemm_fastmath_arm64_bfloat16",
        CPU,
        _OLD,
        "fp32 products through bfloat16 on ARM64: other values.",
        evidence="ONNX Runtime documentation, since 1.17, ARM64 only.",
    ),
    _config("ep.cpu.qmoe_deferred_scale", CPU, _FROM_1_32, _OTHER_KERNEL),
)

_PROVIDER_OPTIONS = (
    _cuda(
        "cudnn_conv_algo_search",
        _OLD,
        "How cuDNN chooses a convolution. Up to ORT 1.19 EXHAUSTIVE times the candidates in every session; since 1.20 "
        "it does so for FusedConv nodes only, and the three values take cuDNN's heuristic modes B, A and fallback. In "
        "pin and strict ortlock answers: timed searches from cuDNN's untimed ranking, all others from mode A.",
        default="EXHAUSTIVE",
        operators=_CONV,
        evidence="NVIDIA H200, 8 sessions, EXHAUSTIVE: ORT 1.19.2 gave 6 to 8 different outputs, ORT 1.31.1 with "
        "FusedConv 3; with the timed search answered from cuDNN's own ranking 1. All three values repeat then.",
        remedy="Use mode pin or strict, which answer the timed search; or HEURISTIC.",
    ),
    _cuda(
        "cudnn_conv_use_max_workspace",
        _OLD,
        "How much workspace the search for a convolution is offered. ortlock's choice does not depend on it.",
        default="1",
        operators=_CONV,
    ),
    _cuda(
        "cudnn_conv1d_pad_to_nc1d",
        _OLD,
        "Runs 1-D convolutions as N,C,1,D: other kernels.",
        default="0",
        operators=_CONV,
    ),
    _cuda(
        "fuse_conv_bias",
        {"since": "1.20", "absent": "1.19"},
        "Fuses the bias into the convolution. In NCHW the fused graph adds a tensor that aliases the output: from the "
        "second run on the previous output is added in. fp16 finds no plan.",
        default="0",
        own_value=OwnValue.OVERRIDE,
        safe_values=_OFF,
        domain=_BOOLEAN,
        unless=("prefer_nhwc", "1"),
        operators=_CONV,
        evidence="NVIDIA H200, ORT 1.26, 1.27 and 1.31: off by 7, 14, 21 on values of 7; right with prefer_nhwc=1.",
        remedy="Leave it at 0, or set prefer_nhwc=1 with it.",
    ),
    _cuda("prefer_nhwc", _OLD, "Runs convolutions in NHWC layout: other kernels.", default="0"),
    _cuda(
        "use_tf32",
        _OLD,
        "Computes fp32 products in TF32, with 10 mantissa bits. cuDNN graphs may use TF32 even where it is 0: "
        "NVIDIA_TF32_OVERRIDE=0 turns it off for certain.",
        default="1",
        evidence="NVIDIA H200, ORT 1.31.1: a 3x3 convolution over 256 channels was off by 0.057 with TF32 and 0.0045 "
        "without, on values of 230.45; both repeat. ONNX Runtime's notes on the cuDNN frontend (1.20) for the rest.",
    ),
    _cuda(
        "do_copy_in_default_stream",
        _OLD,
        "0 copies in a stream of its own, which may race with the kernels.",
        default="1",
        pinned="1",
        own_value=OwnValue.OVERRIDE,
        safe_values=frozenset({"1"}),
        domain=_BOOLEAN,
        evidence="ONNX Runtime's API documentation: 0 may result in data races for some models (issue 4829).",
        remedy="Leave it at 1.",
    ),
    *(
        _cuda(
            key,
            _OLD,
            _TUNABLE,
            default="0",
            pinned="0",
            own_value=OwnValue.OVERRIDE,
            safe_values=_OFF,
            domain=_BOOLEAN,
            evidence="ONNX Runtime's API documentation: TunableOp tunes at run time; off by default.",
            remedy="Leave it at 0.",
        )
        for key in ("tunable_op_enable", "tunable_op_tuning_enable")
    ),
    _cuda(
        "tunable_op_max_tuning_duration_ms", _OLD, "Limits TunableOp's timing; nothing while it is off.", default="0"
    ),
    _cuda("sdpa_kernel", _OLD, "Which attention kernels may be used: other kernels.", default="0"),
    _cuda("enable_skip_layer_norm_strict_mode", _OLD, "Layer norm in higher precision: other values.", default="0"),
    _cuda("enable_cudnn", _FROM_1_31, "0 runs without cuDNN, on ONNX Runtime's own kernels.", default="1"),
    _cuda(
        "enable_cuda_graph",
        _OLD,
        "Captures the first run of a shape and replays it.",
        default="0",
        evidence="NVIDIA H200, ORT 1.27.0: replay gave the bits of stock in all 52 cases, in any order.",
    ),
    _cuda(
        "gpu_mem_limit",
        _OLD,
        "Limits the memory arena. Where memory is too short for the threads of a session, runs fail, and some have "
        "returned wrong values without an error.",
        default="18446744073709551615",
        evidence="NVIDIA H200, ORT 1.31.1, 12 threads on one session, 32 to 48 MB: 13 of 3,600 runs wrong; behind one "
        "lock 2,400 of 2,400 right.",
        remedy="Give the session memory for all its threads, or run it from one thread at a time.",
    ),
    _cuda("arena_extend_strategy", _OLD, "How the memory arena grows; no bits.", default="kNextPowerOfTwo"),
    _cuda("device_id", _OLD, "Which GPU; another model of GPU gives other bits.", default="0"),
    _cuda("has_user_compute_stream", _OLD, "Runs in the stream that the caller gives.", default="0"),
    _cuda("user_compute_stream", _OLD, "The stream that the caller gives; no bits.", default=""),
    _cuda("use_ep_level_unified_stream", _OLD, "One stream for the whole session; no bits.", default="0"),
    _cuda("gpu_external_alloc", _OLD, "The caller's allocator; no bits.", default=""),
    _cuda("gpu_external_free", _OLD, "The caller's allocator; no bits.", default=""),
    _cuda("gpu_external_empty_cache", _OLD, "The caller's allocator; no bits.", default=""),
)

_ORT_ENVIRONMENT = (
    *(
        _env(
            key,
            CUDA,
            _OLD,
            f"Overrides the provider option {option}. {_TUNABLE}",
            own_value=OwnValue.OVERRIDE,
            safe_values=_OFF,
            domain=_BOOLEAN,
            evidence="ONNX Runtime's API documentation: the variable overrides the option.",
            remedy=_UNSET,
        )
        for key, option in (
            ("ORT_CUDA_TUNABLE_OP_ENABLE", "tunable_op_enable"),
            ("ORT_CUDA_TUNABLE_OP_TUNING_ENABLE", "tunable_op_tuning_enable"),
        )
    ),
    _env(
        "ORT_CUDA_GEMM_AUTO_TUNE",
        CUDA,
        _FROM_1_31,
        f"As ep.cuda.enable_gemm_auto_tune, which wins over it. {_TIMED}",
        own_value=OwnValue.OVERRIDE,
        safe_values=_OFF,
        domain=_BOOLEAN,
        operators=_GEMM,
        evidence="ONNX Runtime's source.",
        remedy=_UNSET,
    ),
    _env("ORT_CUDA_GEMM_GRAPH_REPLAY_TUNING", CUDA, _FROM_1_31, "How auto-tuning times; nothing while it is off."),
    _env("ORT_ENABLE_SMALL_N_GEMV", CUDA, _FROM_1_31, operators=_GEMM),
    _env(
        "ORT_FPA_INTB_GEMM",
        CUDA,
        _FROM_1_31,
        f"As ep.cuda.fpa_intb_gemm, which wins over it. {_TIMED}",
        own_value=OwnValue.OVERRIDE,
        safe_values=_OFF,
        operators=("MatMulNBits",),
        evidence="ONNX Runtime's source.",
        remedy=_UNSET,
    ),
    _env(
        "ORT_FP4_GEMV_AUTOTUNE",
        CUDA,
        _FROM_1_31,
        f"{_TIMED} For FP4 mixture-of-experts nodes; off by default.",
        own_value=OwnValue.OVERRIDE,
        safe_values=_OFF,
        operators=("QMoE",),
        evidence="ONNX Runtime's source: the tiling moves the last bits of the output.",
        remedy=_UNSET,
    ),
    _env(
        "ORT_FORCE_DETERMINISTIC_MOE",
        CUDA,
        _FROM_1_27,
        "1 takes the first GEMM tactic of MoE and QMoE nodes; otherwise they time the tactics and take the fastest. "
        "Read at every run, so ortlock cannot set it for one session.",
        operators=("MoE", "QMoE"),
        evidence="ONNX Runtime's source.",
        remedy="Set ORT_FORCE_DETERMINISTIC_MOE=1 in the environment of the process.",
    ),
    _env("ORT_CUDA_GEMM_OPTIONS", CUDA, _OLD, "Accumulation type and reductions of fp16 products: other values."),
    _env("ORT_TRANSFORMER_OPTIONS", CUDA, _OLD, "Precision and half2 kernels of transformer nodes: other values."),
    *(
        _env(key, CUDA, versions)
        for versions, keys in (
            (
                _OLD,
                "ORT_DISABLE_FUSED_ATTENTION ORT_DISABLE_FUSED_CROSS_ATTENTION ORT_DISABLE_MEMORY_EFFICIENT_ATTENTION "
                "ORT_DISABLE_TRT_FLASH_ATTENTION ORT_ENABLE_CUDNN_FLASH_ATTENTION ORT_ENABLE_FUSED_CAUSAL_ATTENTION "
                "ORT_MIN_SEQ_LEN_FLASH_ATTENTION_PACKED_QKV ORT_MIN_SEQ_LEN_EFFICIENT_ATTENTION_FP32",
            ),
            (_FROM_1_26, "ORT_DISABLE_DECODER_ATTENTION ORT_DISABLE_FLASH_DECODE ORT_ENABLE_XQA"),
            (_FROM_1_27, "ORT_MATMULNBITS_CHUNK_SIZE ORT_MATMULNBITS_FORCE_CHUNKED ORT_ENABLE_PDL"),
            (
                _FROM_1_31,
                "ORT_MATMULNBITS_M_CHUNK_SIZE ORT_FPA_INTB_PROFILE_M ORT_FPA_INTB_GEMV_PAIRED_K ORT_GDN_PLAN "
                "ORT_LINEAR_ATTENTION_ROW_SPLIT ORT_LINEAR_ATTENTION_COL_SEQ_THRESHOLD ORT_DISABLE_FUSED_KV_DEQUANT "
                "ORT_DISABLE_MOE_GEMV ORT_DISABLE_MOE_GEMV_FUSED_FINALIZE ORT_ENABLE_FP4_GEMV "
                "ORT_FP4_GEMV_DEFAULT_TILING ORT_FP4_SM80_GEMM ORT_FP8_GEMV_KSPLIT ORT_QMOE_FP4_DEEPGEMM "
                "ORT_QMOE_ROW_TILE_SIZE",
            ),
        )
        for key in keys.split()
    ),
    _env("ORT_DISABLE_FLASH_ATTENTION", None, _OLD),
    _env("ORT_BEAM_SEARCH_USE_FAST_TOPK", None, _FROM_1_26),
    _env("ORT_USE_MLAS_Q4_GEMM_MOE", CPU, _FROM_1_26),
    _env("ORT_GQA_DISABLE_FLASH_ATTENTION", CPU, _FROM_1_27),
    _env("ORT_MLAS_QKGEMM_S8_APPROX_VNNI", CPU, _FROM_1_27, "Approximate int8 products: other values."),
    _env("ORT_QMOE_CPU_QNBIT_GEMM", CPU, _FROM_1_31),
    _env(
        "ORT_INTRA_OP_NUM_THREADS",
        None,
        _FROM_1_31,
        "As intra_op_num_threads, where that is 0.",
        evidence="ORT 1.32.0: 5 started four more threads; a session option of 4 won over it.",
    ),
    _env("ORT_INTER_OP_NUM_THREADS", None, _FROM_1_31, "As inter_op_num_threads, where that is 0."),
    _env("ORT_LOAD_CONFIG_FROM_MODEL", None, _OLD, "1 takes session options from the model's own metadata."),
)

_LIBRARY_ENVIRONMENT = (
    _env(
        "NVIDIA_TF32_OVERRIDE",
        CUDA,
        _LIBRARY,
        "0 turns TF32 off in cuBLAS and cuDNN, whatever use_tf32 says: other values. Read when the library starts.",
        evidence="The name is in cuBLAS 13 and cuDNN 9.19.",
    ),
    _env(
        "CUBLAS_WORKSPACE_CONFIG",
        CUDA,
        _LIBRARY,
        "The workspace of a cuBLAS handle, which decides among kernels. NVIDIA promises the same bits for the same "
        "version, architecture and number of SMs where every stream has a handle or a workspace of its own.",
        evidence="cuBLAS documentation, results reproducibility.",
    ),
    *(
        _env(
            key, CUDA, _LIBRARY, "Computes products by emulation on tensor cores: other values.", evidence="cuBLAS 13."
        )
        for key in (
            "CUBLAS_EMULATE_SINGLE_PRECISION",
            "CUBLAS_EMULATE_DOUBLE_PRECISION",
            "CUBLAS_EMULATION_STRATEGY",
            "CUBLAS_FIXEDPOINT_EMULATION_MANTISSA_BIT_COUNT",
        )
    ),
    _env(
        "CUBLASLT_HEURISTICS_LUT_FILE",
        CUDA,
        _LIBRARY,
        "A table that chooses kernels.",
        evidence="The name is in cuBLAS 13.",
    ),
    _env("CUDA_FORCE_PTX_JIT", CUDA, _LIBRARY, "Compiles kernels with the driver.", evidence="CUDA documentation."),
)

SETTINGS: tuple[Setting, ...] = (
    *_SESSION_OPTIONS,
    *_CONFIG_ENTRIES,
    *_PROVIDER_OPTIONS,
    *_ORT_ENVIRONMENT,
    *_LIBRARY_ENVIRONMENT,
)
