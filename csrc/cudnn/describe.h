// Operations in words, for records, reports and errors.
#pragma once

#include "cudnn/abi.h"
#include "cudnn/descriptors.h"
#include "cudnn/session.h"

namespace ortlock::cudnn {

// An operation graph as the provider built it.
Description describe_graph(const Watched* graph);

// A legacy convolution, read back from its descriptors. `labels` name the first tensor, the filter and the last tensor.
Description describe_convolution(const char* operation, const char* const (&labels)[3], TensorDescriptor first,
                                 FilterDescriptor filter, ConvolutionDescriptor convolution, TensorDescriptor last);

}  // namespace ortlock::cudnn
