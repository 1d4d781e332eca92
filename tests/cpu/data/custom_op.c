/* A custom-op library for ONNX Runtime: ortlock.test:AddOne, float32[1] -> float32[1].
 *
 * Declares only the part of ONNX Runtime's C interface that it uses; functions are found by their place in OrtApi,
 * which never changes. */
#include <stddef.h>
#include <stdint.h>

typedef void* Status;
typedef const void* (*GetApi)(uint32_t version);

enum { kCreateCustomOpDomain = 26, kCustomOpDomainAdd = 27, kAddCustomOpDomain = 28, kGetTensorMutableData = 51,
       kKernelContextGetInput = 90, kKernelContextGetOutput = 91 };

static void* const* api;

typedef struct CustomOp {
  uint32_t version;
  void* (*CreateKernel)(const struct CustomOp*, const void* api, const void* info);
  const char* (*GetName)(const struct CustomOp*);
  const char* (*GetExecutionProviderType)(const struct CustomOp*);
  int (*GetInputType)(const struct CustomOp*, size_t);
  size_t (*GetInputTypeCount)(const struct CustomOp*);
  int (*GetOutputType)(const struct CustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const struct CustomOp*);
  void (*KernelCompute)(void* kernel, void* context);
  void (*KernelDestroy)(void* kernel);
  int (*GetInputCharacteristic)(const struct CustomOp*, size_t);
  int (*GetOutputCharacteristic)(const struct CustomOp*, size_t);
} CustomOp;

static void* create(const CustomOp* op, const void* a, const void* i) { (void)op; (void)a; (void)i; return &api; }
static const char* name(const CustomOp* op) { (void)op; return "AddOne"; }
static const char* provider(const CustomOp* op) { (void)op; return NULL; }
static int float32(const CustomOp* op, size_t index) { (void)op; (void)index; return 1; }
static size_t one(const CustomOp* op) { (void)op; return 1; }
static int required(const CustomOp* op, size_t index) { (void)op; (void)index; return 0; }
static void destroy(void* kernel) { (void)kernel; }

static void compute(void* kernel, void* context) {
  const int64_t shape[1] = {1};
  void *input = NULL, *output = NULL, *from = NULL, *to = NULL;
  (void)kernel;
  ((Status(*)(const void*, size_t, void**))api[kKernelContextGetInput])(context, 0, &input);
  ((Status(*)(void*, size_t, const int64_t*, size_t, void**))api[kKernelContextGetOutput])(context, 0, shape, 1,
                                                                                            &output);
  ((Status(*)(void*, void**))api[kGetTensorMutableData])(input, &from);
  ((Status(*)(void*, void**))api[kGetTensorMutableData])(output, &to);
  *(float*)to = *(const float*)from + 1;
}

static const CustomOp add_one = {1,       create,  name,    provider, float32,  one,
                                 float32, one,     compute, destroy,  required, required};

Status RegisterCustomOps(void* options, const GetApi* base) {
  static void* domain;
  Status status;
  api = (void* const*)base[0](1);
  if (!domain) {
    if ((status = ((Status(*)(const char*, void**))api[kCreateCustomOpDomain])("ortlock.test", &domain))) return status;
    if ((status = ((Status(*)(void*, const void*))api[kCustomOpDomainAdd])(domain, &add_one))) return status;
  }
  return ((Status(*)(void*, void*))api[kAddCustomOpDomain])(options, domain);
}
