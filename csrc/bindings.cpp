// The Python face of the native part: plain dictionaries in and out; ortlock/native.py gives them types.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <dlfcn.h>

#include "cudnn/attribution.h"
#include "cudnn/book.h"
#include "cudnn/choices.h"
#include "cudnn/descriptors.h"
#include "cudnn/functions.h"
#include "cudnn/own_descriptor.h"
#include "cudnn/session.h"
#include "lanes/gate.h"
#include "stream/stream.h"

namespace py = pybind11;

namespace ortlock {
namespace {

using cudnn::interposer;

const char* style_of(const interpose::State& state) {
  if (!state.attached) return "none";
  if (state.direct) return state.dlsym_used ? "both" : "direct";
  return state.dlsym ? "dlsym" : "none";
}

py::tuple strings(const std::vector<std::string>& values) {
  py::tuple result(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) result[i] = values[i];
  return result;
}

py::dict describe_state(const interpose::State& state) {
  py::dict calls;
  const auto counts = cudnn::call_counts();
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] != 0) calls[cudnn::function_name(static_cast<cudnn::Function>(i))] = counts[i];
  }
  std::size_t version = 0;
  // Asked of the provider's own cuDNN, which is in the process only once something has loaded it.
  if (auto* get_version = reinterpret_cast<std::size_t (*)()>(interposer().target_symbol("cudnnGetVersion"))) {
    version = get_version();
  }
  py::dict result;
  result["loaded"] = state.loaded;
  result["attached"] = state.attached;
  result["style"] = style_of(state);
  result["provider_path"] = state.library_path.empty() ? py::object(py::none()) : py::str(state.library_path);
  result["slots"] = state.slots;
  result["resolved_before"] = strings(state.resolved_before);
  result["cudnn_path"] = state.target_path.empty() ? py::object(py::none()) : py::str(state.target_path);
  result["cudnn_version"] = version;
  result["calls"] = calls;
  result["faults"] = strings(state.faults);
  return result;
}

py::dict attach(const std::string& library) {
  interpose::State state;
  {
    py::gil_scoped_release unlocked;
    state = interposer().attach(library);
  }
  return describe_state(state);
}

py::dict detach() {
  interpose::State state;
  {
    py::gil_scoped_release unlocked;
    state = interposer().detach([] { return cudnn::own_in_use() != 0; });
    cudnn::descriptors().clear();
  }
  return describe_state(state);
}

py::dict describe_plan(const cudnn::PlanRecord& plan) {
  py::dict result;
  result["api"] = plan.api;
  result["key"] = plan.key;
  result["source"] = plan.source;
  result["operation"] = plan.what.operation;
  result["tensors"] = strings(plan.what.tensors);
  result["attributes"] = plan.what.attributes;
  result["engine"] = plan.engine;
  py::tuple knobs(plan.knobs.size());
  for (std::size_t i = 0; i < plan.knobs.size(); ++i) knobs[i] = py::make_tuple(plan.knobs[i].first, plan.knobs[i].second);
  result["knobs"] = knobs;
  result["math_type"] = plan.math_type;
  result["numerical_notes"] = strings(plan.numerical_notes);
  result["behavior_notes"] = strings(plan.behavior_notes);
  result["workspace_bytes"] = plan.workspace_bytes;
  result["status"] = plan.status;
  result["count"] = plan.count;
  return result;
}

cudnn::SessionPtr session_of(std::int64_t token) {
  auto session = cudnn::find_session(token);
  if (!session) throw py::key_error("no session has the token " + std::to_string(token));
  return session;
}

py::dict records(std::int64_t token) {
  const auto session = session_of(token);
  const auto snapshot = session->snapshot();
  py::list plans, failures;
  for (const auto& plan : snapshot.plans) plans.append(describe_plan(plan));
  for (const auto& failure : snapshot.failures) {
    py::dict entry;
    entry["operation"] = failure.what.operation;
    entry["tensors"] = strings(failure.what.tensors);
    entry["attributes"] = failure.what.attributes;
    entry["candidates"] = failure.candidates;
    entry["let_through"] = failure.let_through;
    entry["cause"] = failure.cause;
    entry["key"] = failure.key;
    failures.append(entry);
  }
  py::dict result;
  result["calls"] = snapshot.calls;
  result["executions"] = snapshot.executions;
  result["dropped"] = snapshot.dropped;
  result["plans"] = plans;
  result["failures"] = failures;
  return result;
}

std::int64_t open_session(int policy) {
  if (policy < 0 || policy > 2) throw py::value_error("policy must be 0 (observe), 1 (pin) or 2 (strict)");
  return cudnn::open_session(static_cast<cudnn::Policy>(policy));
}

// A choice: (key, legacy, engine, knobs, math type, workspace in bytes).
using WrittenChoice = std::tuple<std::string, bool, std::int64_t, std::vector<std::pair<std::int64_t, std::int64_t>>,
                                 int, std::int64_t>;

void set_lock(std::int64_t token, const std::string& name, bool exclusive, const std::vector<WrittenChoice>& choices) {
  auto lock = std::make_shared<cudnn::Lock>();
  lock->name = name;
  lock->exclusive = exclusive;
  for (const auto& [key, legacy, engine, knobs, math_type, workspace] : choices) {
    lock->choices[key] = {legacy, engine, knobs, math_type, workspace};
  }
  session_of(token)->set_lock(std::move(lock));
}

py::dict book() {
  const auto now = cudnn::plan_book().statistics();
  py::dict result;
  result["entries"] = now.entries;
  result["plans"] = now.plans;
  result["evicted"] = now.evicted;
  result["queries"] = now.queries;
  result["finalized"] = now.finalized;
  result["hits"] = now.hits;
  result["choosing_ns"] = now.choosing_ns;
  result["descriptors"] = cudnn::own_in_use();
  return result;
}

// What a call of CUDA's returned: (code, text).
using Told = std::pair<int, std::string>;

Told told(const stream::Status& status) { return {status.code, status.text}; }

std::pair<std::uintptr_t, Told> stream_make(const std::string& provider, int device, bool high) {
  const py::gil_scoped_release unlocked;
  const auto made = stream::make(provider, device, high);
  return {made.address, told(made.status)};
}

Told stream_destroy(std::uintptr_t address) {
  const py::gil_scoped_release unlocked;
  return told(stream::destroy(address));
}

std::pair<Told, bool> stream_drain(const std::string& provider, int device, std::uintptr_t address) {
  const py::gil_scoped_release unlocked;
  const auto drained = stream::drain(provider, device, address);
  return {told(drained.status), drained.sticky};
}

Told stream_order(const std::string& provider, int device, std::uintptr_t address, std::uintptr_t earlier) {
  const py::gil_scoped_release unlocked;
  return told(stream::order(provider, device, address, earlier));
}

std::tuple<Told, std::size_t, std::size_t> device_memory(const std::string& provider, int device) {
  const py::gil_scoped_release unlocked;
  const auto memory = stream::memory(provider, device);
  return {told(memory.status), memory.free, memory.total};
}

}  // namespace
}  // namespace ortlock

PYBIND11_MODULE(_native, module) {
  module.doc() = "Native part of ortlock; use it through ortlock.native.";
  module.def("attach", &ortlock::attach, py::arg("library"));
  module.def("detach", &ortlock::detach);
  module.def("state", [] { return ortlock::describe_state(ortlock::cudnn::interposer().state()); });
  module.def("open_session", &ortlock::open_session, py::arg("policy"));
  module.def("close_session", &ortlock::cudnn::close_session, py::arg("token"));
  module.def("enter", &ortlock::cudnn::enter, py::arg("token"));
  module.def("leave", &ortlock::cudnn::leave, py::arg("previous"));
  if (!ortlock::lanes::add_gate(module.ptr())) throw py::error_already_set();
  module.def("set_has_workers", &ortlock::cudnn::set_has_workers, py::arg("token"));
  module.def("begin_async", &ortlock::cudnn::begin_async, py::arg("token"));
  module.def("end_async", &ortlock::cudnn::end_async, py::arg("token"));
  module.def("records", &ortlock::records, py::arg("token"));
  module.def("set_lock", &ortlock::set_lock, py::arg("token"), py::arg("name"), py::arg("exclusive"), py::arg("choices"));
  module.def("set_recording", [](std::int64_t token) { ortlock::session_of(token)->set_recording(); }, py::arg("token"));
  module.def(
      "avoid_tensor_cores", [](std::int64_t token) { ortlock::session_of(token)->set_avoids_tensor_cores(); },
      py::arg("token"));
  module.def("book", &ortlock::book);
  module.def("stream_make", &ortlock::stream_make, py::arg("provider"), py::arg("device"), py::arg("high"));
  module.def("stream_destroy", &ortlock::stream_destroy, py::arg("address"));
  module.def("stream_drain", &ortlock::stream_drain, py::arg("provider"), py::arg("device"), py::arg("address"));
  module.def("stream_order", &ortlock::stream_order, py::arg("provider"), py::arg("device"), py::arg("address"),
             py::arg("earlier"));
  module.def("stream_count", &ortlock::stream::count);
  module.def("device_memory", &ortlock::device_memory, py::arg("provider"), py::arg("device"));
}
