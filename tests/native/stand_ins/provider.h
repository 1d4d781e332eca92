// What the stand-ins for ONNX Runtime's CUDA provider export.
#pragma once

extern "C" {
// A cuDNN handle.
using ProviderCreate = void* (*)();
using ProviderDestroy = void (*)(void* handle);
// Plans and runs a backward-data (or forward) convolution of (batch,128,28,28), as ONNX Runtime's frontend does: asks
// for the ranking and takes the first candidate whose plan can be made. Returns the engine, -1 if there is none.
using ProviderConvolution = int (*)(void* handle, int batch, bool forward);
// Searches an algorithm with the timed (or the untimed) function and runs it. Returns the algorithm, -1 on failure.
using ProviderLegacy = int (*)(void* handle, int batch, bool forward, bool timed);
// Asks for the workspace of algorithms 0 to 7, as ONNX Runtime up to 1.19 does before a search; returns the largest.
using ProviderWorkspace = long (*)(void* handle, int batch, bool forward);
// Runs backward-data algorithm `algorithm` without a search; returns the status.
using ProviderNamed = int (*)(void* handle, int batch, int algorithm);
// Adds one to a word of writable data beside the call slots; returns its new value.
using ProviderTouch = long (*)();
}
