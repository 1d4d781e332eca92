// Handles: which session a cuDNN handle was made for.
#include "cudnn/attribution.h"
#include "cudnn/book.h"
#include "cudnn/hooks.h"

namespace ortlock::cudnn {

Status cudnnCreate_hook(Handle* handle) {
  count_call(Function::cudnnCreate);
  const Status status = real<Function::cudnnCreate>()(handle);
  if (status != CUDNN_STATUS_SUCCESS || !interposer().active()) return status;
  try {
    tag_handle(*handle);
  } catch (...) {
    interposer().note_fault("cudnnCreate: the handle could not be tagged");
  }
  return status;
}

Status cudnnDestroy_hook(Handle handle) {
  count_call(Function::cudnnDestroy);
  untag_handle(handle);
  plan_book().forget_handle(handle);
  return real<Function::cudnnDestroy>()(handle);
}

}  // namespace ortlock::cudnn
