#include "lanes/gate.h"

#include <cxxabi.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <new>

#include "cudnn/session.h"

namespace py = pybind11;

namespace ortlock::lanes {
namespace {

// The interpreter's lock guards everything here: no member is looked at while it is not held.
struct Gate {
  PyObject_HEAD
  cudnn::SessionPtr session;
  PyTypeObject* array_type;
  PyObject* obstacles;  // a dict; as long as anything is in it, nobody passes
  PyObject* idle;       // the list of free lanes; null while the gate is shut
};

Gate* gate_of(PyObject* self) { return reinterpret_cast<Gate*>(self); }

struct Names {
  PyObject* ready = PyUnicode_InternFromString("ready");
  PyObject* served = PyUnicode_InternFromString("served");
  PyObject* session = PyUnicode_InternFromString("session");
  PyObject* give_back = PyUnicode_InternFromString("give_back");
  PyObject* rescue = PyUnicode_InternFromString("rescue");
};

// Never destroyed: they live as long as the interpreter.
const Names& names() {
  static const auto* instance = new Names;
  return *instance;
}

// Calls into Python, which may run for long and give the interpreter's lock up meanwhile. CPython up to 3.13 ends a
// daemon thread that wants the lock back while the interpreter goes by unwinding its stack; then destructors here would
// touch objects without the lock. So the thread stops here for good, as CPython 3.14 does with it.
py::object call(PyObject* callable, PyObject* const* arguments, std::size_t count) {
  try {
    return py::reinterpret_steal<py::object>(PyObject_Vectorcall(callable, arguments, count, nullptr));
  } catch (abi::__forced_unwind&) {
    for (;;) pause();
  }
}

bool arrays_alone(const Gate& gate, PyObject* feed) {
  if (!PyDict_CheckExact(feed)) return false;
  PyObject* value = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Next(feed, &position, nullptr, &value)) {
    if (Py_TYPE(value) != gate.array_type) return false;
  }
  return true;
}

// A free lane that can serve, taken out of the list; empty where the run is Python's to decide.
py::object take(Gate& gate, PyObject* feed) {
  if (!gate.idle || PyDict_GET_SIZE(gate.obstacles) != 0 || !arrays_alone(gate, feed)) return {};
  const Py_ssize_t count = PyList_GET_SIZE(gate.idle);
  if (count == 0) return {};
  // The last one is the one that was used last.
  auto lane = py::reinterpret_borrow<py::object>(PyList_GET_ITEM(gate.idle, count - 1));
  const auto ready = py::reinterpret_steal<py::object>(PyObject_GetAttr(lane.ptr(), names().ready));
  if (!ready) throw py::error_already_set();
  if (ready.ptr() != Py_True) return {};
  if (PyList_SetSlice(gate.idle, count - 1, count, nullptr) != 0) throw py::error_already_set();
  return lane;
}

// A lane that was taken. It is given back whatever happens, but where Python has seen to it.
class Held {
 public:
  Held(Gate& gate, PyObject* lanes, py::object lane) : gate_(gate), lanes_(lanes), lane_(std::move(lane)) {}
  ~Held() {
    if (!lane_) return;
    const py::error_scope kept;
    if (!give()) PyErr_WriteUnraisable(lanes_);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  PyObject* lane() const { return lane_.ptr(); }
  py::object hand_over() { return std::move(lane_); }

 private:
  bool give() {
    if (gate_.idle) return PyList_Append(gate_.idle, lane_.ptr()) == 0;
    // Somebody waits by now.
    const auto give_back = py::reinterpret_steal<py::object>(PyObject_GetAttr(lanes_, names().give_back));
    if (!give_back) return false;
    PyObject* const passed[] = {lane_.ptr()};
    return static_cast<bool>(call(give_back.ptr(), passed, 1));
  }

  Gate& gate_;
  PyObject* lanes_;
  py::object lane_;
};

// What a run returns that failed on `held`: Python drains the lane, gives it back, and repeats the run or raises.
py::object rescue(Held& held, PyObject* lanes, PyObject* method, PyObject* outputs, PyObject* feed, PyObject* options) {
  const py::error_already_set error;
  if (error.trace()) PyException_SetTraceback(error.value().ptr(), error.trace().ptr());
  const auto rescuer = py::reinterpret_steal<py::object>(PyObject_GetAttr(lanes, names().rescue));
  if (!rescuer) throw py::error_already_set();
  const auto lane = held.hand_over();
  PyObject* const passed[] = {lane.ptr(), error.value().ptr(), method, outputs, feed, options};
  auto result = call(rescuer.ptr(), passed, 6);
  if (!result) throw py::error_already_set();
  return result;
}

// run(lanes, method, output_names, input_feed, run_options) -> outputs, or None where it is Python's to decide.
PyObject* run(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 5) {
    PyErr_SetString(PyExc_TypeError, "run() takes lanes, method, output_names, input_feed and run_options");
    return nullptr;
  }
  auto& gate = *gate_of(self);
  PyObject *lanes = arguments[0], *method = arguments[1], *outputs = arguments[2], *feed = arguments[3],
           *options = arguments[4];
  try {
    auto lane = take(gate, feed);
    if (!lane) Py_RETURN_NONE;
    Held held(gate, lanes, std::move(lane));
    const cudnn::Scope scope(gate.session);
    const auto session = py::reinterpret_steal<py::object>(PyObject_GetAttr(held.lane(), names().session));
    if (!session) throw py::error_already_set();
    PyObject* const passed[] = {session.ptr(), outputs, feed, options};
    auto result = call(method, passed, 4);
    if (!result) return rescue(held, lanes, method, outputs, feed, options).release().ptr();
    if (PyObject_SetAttr(held.lane(), names().served, Py_True) != 0) throw py::error_already_set();
    return result.release().ptr();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

PyObject* open(PyObject* self, PyObject* idle) noexcept {
  if (!PyList_CheckExact(idle)) {
    PyErr_SetString(PyExc_TypeError, "open() takes the list of free lanes");
    return nullptr;
  }
  Py_INCREF(idle);
  Py_XSETREF(gate_of(self)->idle, idle);
  Py_RETURN_NONE;
}

PyObject* shut(PyObject* self, PyObject*) noexcept {
  Py_CLEAR(gate_of(self)->idle);
  Py_RETURN_NONE;
}

PyObject* events(PyObject* self, void*) noexcept { return PyLong_FromLongLong(gate_of(self)->session->events()); }

PyObject* make(PyTypeObject* type, PyObject* arguments, PyObject* keywords) noexcept {
  static const char* parameters[] = {"token", "array_type", "obstacles", nullptr};
  long long token = 0;
  PyObject *array_type = nullptr, *obstacles = nullptr;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "LO!O!", const_cast<char**>(parameters), &token, &PyType_Type,
                                   &array_type, &PyDict_Type, &obstacles)) {
    return nullptr;
  }
  auto session = cudnn::find_session(token);
  if (!session) {
    PyErr_Format(PyExc_KeyError, "no session has the token %lld", token);
    return nullptr;
  }
  PyObject* self = type->tp_alloc(type, 0);
  if (!self) return nullptr;
  auto* gate = gate_of(self);
  new (&gate->session) cudnn::SessionPtr(std::move(session));
  Py_INCREF(array_type);
  Py_INCREF(obstacles);
  gate->array_type = reinterpret_cast<PyTypeObject*>(array_type);
  gate->obstacles = obstacles;
  gate->idle = nullptr;
  return self;
}

void destroy(PyObject* self) noexcept {
  auto* gate = gate_of(self);
  PyTypeObject* type = Py_TYPE(self);
  gate->session.~shared_ptr();
  Py_CLEAR(gate->idle);
  Py_CLEAR(gate->obstacles);
  Py_CLEAR(gate->array_type);
  type->tp_free(self);
  Py_DECREF(type);
}

}  // namespace

bool add_gate(PyObject* module) {
  // A vectorcall function is no PyCFunction; the flags say which it is.
  static PyMethodDef methods[] = {
      {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&run)), METH_FASTCALL, nullptr},
      {"open", &open, METH_O, nullptr},
      {"shut", &shut, METH_NOARGS, nullptr},
      {nullptr, nullptr, 0, nullptr}};
  static PyGetSetDef properties[] = {{"events", &events, nullptr, nullptr, nullptr},
                                     {nullptr, nullptr, nullptr, nullptr, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(&make)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(&destroy)},
                                {Py_tp_methods, methods},
                                {Py_tp_getset, properties},
                                {0, nullptr}};
  static PyType_Spec spec = {"ortlock._native.Gate", static_cast<int>(sizeof(Gate)), 0, Py_TPFLAGS_DEFAULT, slots};
  PyObject* type = PyType_FromSpec(&spec);
  if (!type) return false;
  const bool added = PyModule_AddObjectRef(module, "Gate", type) == 0;
  Py_DECREF(type);
  return added;
}

}  // namespace ortlock::lanes
