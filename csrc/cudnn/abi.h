// The small part of cuDNN 9's binary interface that is used, so that no CUDA or cuDNN header is needed to build.
// tests/native/test_abi.py compares every value with the headers of the nvidia-cudnn wheel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ortlock::cudnn {

using Handle = void*;              // cudnnHandle_t
using BackendDescriptor = void*;   // cudnnBackendDescriptor_t
using TensorDescriptor = void*;    // cudnnTensorDescriptor_t
using FilterDescriptor = void*;    // cudnnFilterDescriptor_t
using ConvolutionDescriptor = void*;  // cudnnConvolutionDescriptor_t

using Status = int;  // cudnnStatus_t
constexpr Status CUDNN_STATUS_SUCCESS = 0;
constexpr Status CUDNN_STATUS_NOT_SUPPORTED = 3000;

// cudnnBackendDescriptorType_t
constexpr int CUDNN_BACKEND_ENGINE_DESCRIPTOR = 2;
constexpr int CUDNN_BACKEND_ENGINECFG_DESCRIPTOR = 3;
constexpr int CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR = 4;
constexpr int CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR = 5;
constexpr int CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR = 7;
constexpr int CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR = 10;
constexpr int CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR = 12;
constexpr int CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR = 15;
constexpr int CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR = 16;
constexpr int CUDNN_BACKEND_KERNEL_CACHE_DESCRIPTOR = 34;
constexpr int CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR = 38;

// cudnnBackendAttributeName_t
constexpr int CUDNN_ATTR_POINTWISE_MODE = 0;
constexpr int CUDNN_ATTR_CONVOLUTION_COMP_TYPE = 100;
constexpr int CUDNN_ATTR_CONVOLUTION_CONV_MODE = 101;
constexpr int CUDNN_ATTR_CONVOLUTION_DILATIONS = 102;
constexpr int CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES = 103;
constexpr int CUDNN_ATTR_CONVOLUTION_POST_PADDINGS = 104;
constexpr int CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS = 105;
constexpr int CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS = 106;
constexpr int CUDNN_ATTR_ENGINEHEUR_MODE = 200;
constexpr int CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH = 201;
constexpr int CUDNN_ATTR_ENGINEHEUR_RESULTS = 202;
constexpr int CUDNN_ATTR_ENGINEHEUR_DEVICEPROP = 204;
constexpr int CUDNN_ATTR_ENGINECFG_ENGINE = 300;
constexpr int CUDNN_ATTR_ENGINECFG_KNOB_CHOICES = 302;
constexpr int CUDNN_ATTR_EXECUTION_PLAN_HANDLE = 400;
constexpr int CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG = 401;
constexpr int CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE = 402;
constexpr int CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP = 407;
constexpr int CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE = 600;
constexpr int CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE = 601;
constexpr int CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA = 700;
constexpr int CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA = 701;
constexpr int CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC = 702;
constexpr int CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W = 703;
constexpr int CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X = 704;
constexpr int CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y = 705;
constexpr int CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA = 706;
constexpr int CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC = 708;
constexpr int CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W = 709;
constexpr int CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX = 710;
constexpr int CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY = 711;
constexpr int CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA = 712;
constexpr int CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC = 714;
constexpr int CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW = 715;
constexpr int CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X = 716;
constexpr int CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY = 717;
constexpr int CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR = 750;
constexpr int CUDNN_ATTR_OPERATION_POINTWISE_XDESC = 751;
constexpr int CUDNN_ATTR_OPERATION_POINTWISE_BDESC = 752;
constexpr int CUDNN_ATTR_OPERATION_POINTWISE_YDESC = 753;
constexpr int CUDNN_ATTR_OPERATION_POINTWISE_TDESC = 758;
constexpr int CUDNN_ATTR_OPERATION_GENSTATS_MODE = 770;
constexpr int CUDNN_ATTR_OPERATION_BN_FINALIZE_STATS_MODE = 780;
constexpr int CUDNN_ATTR_OPERATIONGRAPH_HANDLE = 800;
constexpr int CUDNN_ATTR_OPERATIONGRAPH_OPS = 801;
constexpr int CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT = 900;
constexpr int CUDNN_ATTR_TENSOR_DATA_TYPE = 901;
constexpr int CUDNN_ATTR_TENSOR_DIMENSIONS = 902;
constexpr int CUDNN_ATTR_TENSOR_STRIDES = 903;
constexpr int CUDNN_ATTR_TENSOR_IS_VIRTUAL = 907;
constexpr int CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC = 913;
constexpr int CUDNN_ATTR_ENGINE_OPERATION_GRAPH = 1300;
constexpr int CUDNN_ATTR_ENGINE_GLOBAL_INDEX = 1301;
constexpr int CUDNN_ATTR_ENGINE_NUMERICAL_NOTE = 1303;
constexpr int CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE = 1305;
constexpr int CUDNN_ATTR_ENGINE_DEVICEPROP = 1307;
constexpr int CUDNN_ATTR_MATMUL_COMP_TYPE = 1500;
constexpr int CUDNN_ATTR_OPERATION_MATMUL_ADESC = 1520;
constexpr int CUDNN_ATTR_OPERATION_MATMUL_BDESC = 1521;
constexpr int CUDNN_ATTR_OPERATION_MATMUL_CDESC = 1522;
constexpr int CUDNN_ATTR_OPERATION_REDUCTION_XDESC = 1610;
constexpr int CUDNN_ATTR_OPERATION_REDUCTION_YDESC = 1611;
constexpr int CUDNN_ATTR_OPERATION_RESAMPLE_FWD_XDESC = 1710;
constexpr int CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DXDESC = 1720;
constexpr int CUDNN_ATTR_OPERATION_CONCAT_AXIS = 1800;
constexpr int CUDNN_ATTR_OPERATION_NORM_FWD_MODE = 2000;
constexpr int CUDNN_ATTR_OPERATION_NORM_BWD_MODE = 2100;
constexpr int CUDNN_ATTR_OPERATION_RESHAPE_XDESC = 2200;
constexpr int CUDNN_ATTR_OPERATION_RESHAPE_YDESC = 2201;

// cudnnBackendAttributeType_t
constexpr int CUDNN_TYPE_HANDLE = 0;
constexpr int CUDNN_TYPE_DATA_TYPE = 1;
constexpr int CUDNN_TYPE_BOOLEAN = 2;
constexpr int CUDNN_TYPE_INT64 = 3;
constexpr int CUDNN_TYPE_FLOAT = 4;
constexpr int CUDNN_TYPE_DOUBLE = 5;
constexpr int CUDNN_TYPE_VOID_PTR = 6;
constexpr int CUDNN_TYPE_HEUR_MODE = 8;
constexpr int CUDNN_TYPE_KNOB_TYPE = 9;
constexpr int CUDNN_TYPE_NUMERICAL_NOTE = 11;
constexpr int CUDNN_TYPE_BACKEND_DESCRIPTOR = 15;
constexpr int CUDNN_TYPE_BEHAVIOR_NOTE = 19;
constexpr int CUDNN_TYPE_INT32 = 23;
constexpr int CUDNN_TYPE_CHAR = 24;
constexpr int CUDNN_TYPE_FRACTION = 26;

// cudnnBackendNumericalNote_t, cudnnBackendBehaviorNote_t
constexpr int CUDNN_NUMERICAL_NOTE_TENSOR_CORE = 0;
constexpr int CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC = 4;
constexpr const char* kNumericalNotes[] = {
    "TENSOR_CORE",       "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION", "FFT",
    "NONDETERMINISTIC",  "WINOGRAD",            "WINOGRAD_TILE_4x4",           "WINOGRAD_TILE_6x6",
    "WINOGRAD_TILE_13x13", "STRICT_NAN_PROP"};
constexpr const char* kBehaviorNotes[] = {"RUNTIME_COMPILATION", "REQUIRES_FILTER_INT8x32_REORDER",
                                          "REQUIRES_BIAS_INT8x32_REORDER", "SUPPORTS_CUDA_GRAPH_NATIVE_API",
                                          "CUBLASLT_DEPENDENCY"};

// cudnnDeterminism_t
constexpr int CUDNN_DETERMINISTIC = 1;

// Algorithms that cuDNN documents as nondeterministic. All forward algorithms are deterministic.
constexpr int CUDNN_CONVOLUTION_BWD_DATA_ALGO_0 = 0;
constexpr int CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0 = 0;
constexpr int CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3 = 3;

// cudnnConvolutionFwdAlgoPerf_t; the backward ones have the same layout.
struct AlgorithmPerf {
  int algo;
  Status status;
  float time;
  std::size_t memory;
  int determinism;
  int math_type;
  int reserved[3];
};
static_assert(sizeof(AlgorithmPerf) == 48 && offsetof(AlgorithmPerf, memory) == 16 &&
              offsetof(AlgorithmPerf, determinism) == 24);

// cudnnDataType_t as short names; others are shown by number.
const char* data_type_name(int data_type);

}  // namespace ortlock::cudnn
