#include "cudnn/describe.h"

#include <array>
#include <cstring>
#include <utility>

#include "cudnn/functions.h"

namespace ortlock::cudnn {
namespace {

template <typename T>
std::vector<T> values(const Watched& watched, int name) {
  const Attribute* attribute = watched.find(name);
  if (!attribute || attribute->bytes.size() % sizeof(T) != 0) return {};
  std::vector<T> result(attribute->bytes.size() / sizeof(T));
  if (!result.empty()) std::memcpy(result.data(), attribute->bytes.data(), attribute->bytes.size());
  return result;
}

template <typename T>
std::string list(const std::vector<T>& numbers) {
  std::string text;
  for (const auto number : numbers) {
    if (!text.empty()) text += ',';
    text += std::to_string(number);
  }
  return text;
}

std::string type_name(int data_type) {
  const char* name = data_type_name(data_type);
  return name ? name : "type" + std::to_string(data_type);
}

// Nothing for a packed tensor whose last axis is innermost, else what the strides mean.
std::string layout(const std::vector<std::int64_t>& dims, const std::vector<std::int64_t>& strides) {
  if (strides.size() != dims.size() || dims.empty()) return "";
  const auto packed = [&](const std::vector<std::size_t>& order) {
    std::int64_t expected = 1;
    for (const auto axis : order) {
      if (dims[axis] != 1 && strides[axis] != expected) return false;
      expected *= dims[axis];
    }
    return true;
  };
  std::vector<std::size_t> rows, channels_last;
  for (std::size_t axis = dims.size(); axis-- > 0;) rows.push_back(axis);
  if (packed(rows)) return "";
  if (dims.size() > 2) {
    channels_last.push_back(1);
    for (std::size_t axis = dims.size(); axis-- > 2;) channels_last.push_back(axis);
    channels_last.push_back(0);
    if (packed(channels_last)) return " nhwc";
  }
  return " strides=" + list(strides);
}

std::string describe_tensor(const std::string& label, const Watched* tensor) {
  if (!tensor) return label + " ?";
  const auto types = values<int>(*tensor, CUDNN_ATTR_TENSOR_DATA_TYPE);
  const auto dims = values<std::int64_t>(*tensor, CUDNN_ATTR_TENSOR_DIMENSIONS);
  return label + ' ' + (types.empty() ? "?" : type_name(types[0])) + '[' + list(dims) + ']' +
         layout(dims, values<std::int64_t>(*tensor, CUDNN_ATTR_TENSOR_STRIDES));
}

struct TensorAttribute {
  int name;
  const char* label;
};

struct OperationKind {
  int first;  // the range of attribute names that only this operation has
  int last;
  const char* name;
  std::array<TensorAttribute, 4> tensors;
  int parameters;  // attribute that refers to its convolution descriptor, or 0
};

constexpr std::array<OperationKind, 14> kOperations{{
    {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, "ConvolutionForward",
     {{{CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, "x"},
       {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, "w"},
       {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, "y"},
       {0, nullptr}}},
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC},
    {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
     "ConvolutionBackwardData",
     {{{CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, "dy"},
       {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, "w"},
       {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, "dx"},
       {0, nullptr}}},
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC},
    {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
     "ConvolutionBackwardFilter",
     {{{CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, "x"},
       {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, "dy"},
       {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, "dw"},
       {0, nullptr}}},
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC},
    {CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, "Pointwise",
     {{{CUDNN_ATTR_OPERATION_POINTWISE_XDESC, "x"},
       {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, "b"},
       {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, "y"},
       {0, nullptr}}},
     0},
    {CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_ATTR_OPERATION_GENSTATS_MODE + 9, "GenStats", {}, 0},
    {CUDNN_ATTR_OPERATION_BN_FINALIZE_STATS_MODE, CUDNN_ATTR_OPERATION_BN_FINALIZE_STATS_MODE + 19, "BnFinalize", {}, 0},
    {CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_ADESC + 9, "Matmul",
     {{{CUDNN_ATTR_OPERATION_MATMUL_ADESC, "a"},
       {CUDNN_ATTR_OPERATION_MATMUL_BDESC, "b"},
       {CUDNN_ATTR_OPERATION_MATMUL_CDESC, "c"},
       {0, nullptr}}},
     0},
    {CUDNN_ATTR_OPERATION_REDUCTION_XDESC, CUDNN_ATTR_OPERATION_REDUCTION_XDESC + 9, "Reduction",
     {{{CUDNN_ATTR_OPERATION_REDUCTION_XDESC, "x"},
       {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, "y"},
       {0, nullptr},
       {0, nullptr}}},
     0},
    {CUDNN_ATTR_OPERATION_RESAMPLE_FWD_XDESC, CUDNN_ATTR_OPERATION_RESAMPLE_FWD_XDESC + 9, "ResampleForward", {}, 0},
    {CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DXDESC, CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DXDESC + 9, "ResampleBackward", {}, 0},
    {CUDNN_ATTR_OPERATION_CONCAT_AXIS, CUDNN_ATTR_OPERATION_CONCAT_AXIS + 99, "Concat", {}, 0},
    {CUDNN_ATTR_OPERATION_NORM_FWD_MODE, CUDNN_ATTR_OPERATION_NORM_FWD_MODE + 99, "NormForward", {}, 0},
    {CUDNN_ATTR_OPERATION_NORM_BWD_MODE, CUDNN_ATTR_OPERATION_NORM_BWD_MODE + 99, "NormBackward", {}, 0},
    {CUDNN_ATTR_OPERATION_RESHAPE_XDESC, CUDNN_ATTR_OPERATION_RESHAPE_XDESC + 9, "Reshape",
     {{{CUDNN_ATTR_OPERATION_RESHAPE_XDESC, "x"},
       {CUDNN_ATTR_OPERATION_RESHAPE_YDESC, "y"},
       {0, nullptr},
       {0, nullptr}}},
     0},
}};

const Watched* referenced(const Watched& owner, int name) {
  const Attribute* attribute = owner.find(name);
  return attribute && !attribute->objects.empty() ? attribute->objects[0].get() : nullptr;
}

std::string convolution_attributes(const Watched& parameters) {
  const auto before = values<std::int64_t>(parameters, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
  const auto after = values<std::int64_t>(parameters, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS);
  const auto types = values<int>(parameters, CUDNN_ATTR_CONVOLUTION_COMP_TYPE);
  std::string text = "pad=" + list(before);
  if (after != before) text += ".." + list(after);
  text += " stride=" + list(values<std::int64_t>(parameters, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES));
  text += " dilation=" + list(values<std::int64_t>(parameters, CUDNN_ATTR_CONVOLUTION_DILATIONS));
  return text + " compute=" + (types.empty() ? "?" : type_name(types[0]));
}

void describe_operation(const Watched& operation, Description& into) {
  const int name = operation.attributes.empty() ? -1 : operation.attributes.front().name;
  for (const auto& kind : kOperations) {
    if (name < kind.first || name > kind.last) continue;
    into.operation += into.operation.empty() ? kind.name : std::string("+") + kind.name;
    for (const auto& [attribute, label] : kind.tensors) {
      if (!label || !operation.find(attribute)) continue;
      into.tensors.push_back(describe_tensor(label, referenced(operation, attribute)));
    }
    if (kind.parameters == 0) return;
    if (const Watched* parameters = referenced(operation, kind.parameters)) {
      if (!into.attributes.empty()) into.attributes += ' ';
      into.attributes += convolution_attributes(*parameters);
    }
    return;
  }
  into.operation += into.operation.empty() ? "" : "+";
  into.operation += "Operation(" + std::to_string(name) + ")";
}

template <typename Type>
Type* lookup(const char* name) {
  return reinterpret_cast<Type*>(interposer().target_symbol(name));
}

std::string describe_legacy_tensor(const char* label, TensorDescriptor tensor) {
  using Get = Status(TensorDescriptor, int, int*, int*, int*, int*);
  static Get* get = lookup<Get>("cudnnGetTensorNdDescriptor");
  constexpr int kMaxDims = 8;  // CUDNN_DIM_MAX
  int type = -1, count = 0;
  std::array<int, kMaxDims> dims{}, strides{};
  if (!get || get(tensor, kMaxDims, &type, &count, dims.data(), strides.data()) != CUDNN_STATUS_SUCCESS) {
    return std::string(label) + " ?";
  }
  const std::vector<std::int64_t> shape(dims.begin(), dims.begin() + count);
  const std::vector<std::int64_t> steps(strides.begin(), strides.begin() + count);
  return std::string(label) + ' ' + type_name(type) + '[' + list(shape) + ']' + layout(shape, steps);
}

std::string describe_legacy_filter(const char* label, FilterDescriptor filter) {
  using Get = Status(FilterDescriptor, int, int*, int*, int*, int*);
  static Get* get = lookup<Get>("cudnnGetFilterNdDescriptor");
  constexpr int kMaxDims = 8;
  int type = -1, format = 0, count = 0;
  std::array<int, kMaxDims> dims{};
  if (!get || get(filter, kMaxDims, &type, &format, &count, dims.data()) != CUDNN_STATUS_SUCCESS) {
    return std::string(label) + " ?";
  }
  const std::vector<int> shape(dims.begin(), dims.begin() + count);
  return std::string(label) + ' ' + type_name(type) + '[' + list(shape) + ']' + (format == 1 ? " nhwc" : "");
}

std::string describe_legacy_attributes(ConvolutionDescriptor convolution) {
  using Get = Status(ConvolutionDescriptor, int, int*, int*, int*, int*, int*, int*);
  using GetGroup = Status(ConvolutionDescriptor, int*);
  static Get* get = lookup<Get>("cudnnGetConvolutionNdDescriptor");
  static GetGroup* get_group = lookup<GetGroup>("cudnnGetConvolutionGroupCount");
  static GetGroup* get_math = lookup<GetGroup>("cudnnGetConvolutionMathType");
  constexpr int kMaxDims = 6;  // CUDNN_DIM_MAX less batch and channels
  int count = 0, mode = 0, type = -1;
  std::array<int, kMaxDims> pads{}, strides{}, dilations{};
  if (!get || get(convolution, kMaxDims, &count, pads.data(), strides.data(), dilations.data(), &mode, &type) !=
                  CUDNN_STATUS_SUCCESS) {
    return "?";
  }
  const auto part = [count](const auto& all) { return std::vector<int>(all.begin(), all.begin() + count); };
  std::string text = "pad=" + list(part(pads)) + " stride=" + list(part(strides)) + " dilation=" + list(part(dilations));
  int groups = 1;
  if (get_group && get_group(convolution, &groups) == CUDNN_STATUS_SUCCESS && groups != 1) {
    text += " group=" + std::to_string(groups);
  }
  text += " compute=" + type_name(type);
  if (mode == 0) text += " mode=convolution";  // not cross-correlation
  constexpr std::array<const char*, 4> kMath = {"", " math=tensor_op", " math=tensor_op_conversion", " math=fma"};
  int math = 0;
  if (get_math && get_math(convolution, &math) == CUDNN_STATUS_SUCCESS && math > 0 && math < 4) {
    text += kMath[static_cast<std::size_t>(math)];
  }
  return text;
}

}  // namespace

const char* data_type_name(int data_type) {
  switch (data_type) {
    case 0: return "f32";
    case 1: return "f64";
    case 2: return "f16";
    case 3: return "s8";
    case 4: return "s32";
    case 6: return "u8";
    case 9: return "bf16";
    case 10: return "s64";
    case 11: return "bool";
    case 12: return "fp8e4m3";
    case 13: return "fp8e5m2";
    default: return nullptr;
  }
}

Description describe_graph(const Watched* graph) {
  Description description;
  const Attribute* operations = graph ? graph->find(CUDNN_ATTR_OPERATIONGRAPH_OPS) : nullptr;
  if (operations) {
    for (const auto& operation : operations->objects) {
      if (operation) describe_operation(*operation, description);
    }
  }
  if (description.operation.empty()) description.operation = "unknown operation graph";
  return description;
}

Description describe_convolution(const char* operation, const char* const (&labels)[3], TensorDescriptor first,
                                 FilterDescriptor filter, ConvolutionDescriptor convolution, TensorDescriptor last) {
  Description description;
  description.operation = operation;
  description.tensors = {describe_legacy_tensor(labels[0], first), describe_legacy_filter(labels[1], filter),
                         describe_legacy_tensor(labels[2], last)};
  description.attributes = describe_legacy_attributes(convolution);
  return description;
}

}  // namespace ortlock::cudnn
