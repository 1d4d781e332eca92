// The graph API answered from the plan book.
#pragma once

#include "cudnn/own_descriptor.h"

namespace ortlock::cudnn {

// True if a descriptor of this type that an enforcing session makes now should be one of our own.
bool own_wanted(int type);

Status own_set(OwnDescriptor& descriptor, int name, int type, std::int64_t count, const void* values);
Status own_get(OwnDescriptor& descriptor, int name, int type, std::int64_t requested, std::int64_t* count, void* values);
Status own_finalize(OwnDescriptor& descriptor);
// Asks cuDNN for an attribute of one of its descriptors; descriptors of ours that are to be filled in get real ones.
Status ask_real(BackendDescriptor descriptor, int name, int type, std::int64_t requested, std::int64_t* count,
                void* values);
Status own_execute(Handle handle, OwnDescriptor& plan, BackendDescriptor variant_pack);

}  // namespace ortlock::cudnn
