#include "capture/vmap/vmap.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "capture/callees.h"
#include "capture/proxy.h"
#include "capture/session.h"

namespace framejit::capture {
namespace {

// Answers torch._C._functorch._remove_batch_dim(tensor, level, size, out_dim).
PyObject* Removed(Session& s, PyObject* const* args) {
  const long level = PyLong_AsLong(args[1]);
  long to = PyLong_AsLong(args[3]);
  if (PyErr_Occurred()) return nullptr;
  auto at = s.vmap.tensors.find(AsTensor(args[0])->id);
  const bool batched = at != s.vmap.tensors.end() && at->second.level == level;
  const long rank = static_cast<long>(s.meta(AsTensor(args[0])->id).sizes.size()) + 1;
  if (to < 0) to += rank;
  if (to < 0 || to >= rank) return s.Break(BreakId::kFrameworkError, "dimension out of range");
  if (batched) {
    PyObject* inner = at->second.inner;
    if (to == at->second.dim) return Py_NewRef(inner);
    Ref from(PyLong_FromLong(at->second.dim)), where(PyLong_FromLong(to));
    PyObject* a[] = {inner, from.get(), where.get()};
    return s.CallFramework(callees::kTensorMoveDim, a, 3, nullptr);
  }
  if (to) return s.Break(BreakId::kUnsupportedTensor, callees::kVmap + " of what does not depend on the batch");
  shape::Ints sizes = s.meta(AsTensor(args[0])->id).sizes;
  Ref shape(PyTuple_New(rank));
  PyTuple_SET_ITEM(shape.get(), 0, Py_NewRef(args[2]));
  for (size_t i = 0; i < sizes.size(); ++i) PyTuple_SET_ITEM(shape.get(), i + 1, s.SymIntObject(sizes[i]));
  s.MarkFresh(shape.get());
  PyObject* a[] = {args[0], shape.get()};
  return s.CallFramework(callees::kTensorExpand, a, 2, nullptr);
}

bool IsIndexMode(PyObject* mode) {
  if (strcmp(Py_TYPE(mode)->tp_name, "TransformGetItemToIndex")) return false;
  Ref module(PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(mode)), "__module__"));
  if (!module) PyErr_Clear();
  return module && PyUnicode_Check(module.get()) &&
         !PyUnicode_CompareWithASCIIString(module.get(), callees::kHigherOrder);
}

Answered PushMode(Session& s, Callee, PyObject* const* args, Py_ssize_t n) {
  if (n != 1 || !IsIndexMode(args[0])) return {};
  s.vmap.index_modes.push_back(Borrow(args[0]));
  return Py_NewRef(Py_None);
}

Answered PopMode(Session& s, Callee, PyObject* const*, Py_ssize_t) {
  if (s.vmap.index_modes.empty()) return {};
  Ref mode = std::move(s.vmap.index_modes.back());
  s.vmap.index_modes.pop_back();
  return mode.release();
}

Answered OpenLevel(Session& s, Callee, PyObject* const* args, Py_ssize_t n) {
  if (n != 2) return {};
  auto is = [&](const char* text) {
    return PyUnicode_Check(args[1]) && !PyUnicode_CompareWithASCIIString(args[1], text);
  };
  s.vmap.levels.push_back({.size = Borrow(args[0]), .same = is("same"), .different = is("different")});
  return PyLong_FromSize_t(s.vmap.levels.size());
}

Answered CloseLevel(Session& s, Callee, PyObject* const*, Py_ssize_t) {
  auto& levels = s.vmap.levels;
  if (levels.empty() || !levels.back().size) return {};
  PyObject* number = PyLong_FromSize_t(levels.size());
  levels.pop_back();
  return number;
}

Answered AddDimension(Session& s, Callee callee, PyObject* const* args, Py_ssize_t n) {
  if (n != 3 || !IsTensor(args[0])) return {};
  const long dim = PyLong_AsLong(args[1]), level = PyLong_AsLong(args[2]);
  if (PyErr_Occurred()) return nullptr;
  TensorMeta m = s.meta(AsTensor(args[0])->id);
  const int rank = static_cast<int>(m.sizes.size());
  if (dim < 0 || dim >= rank || level != static_cast<long>(s.vmap.levels.size()) || m.framework != Framework::kTorch ||
      m.lazy())
    return s.Break(BreakId::kThreadState, callee);
  m.sizes.Erase(dim);
  m.strides.Erase(dim);
  m.is_parameter = m.requires_grad = false;
  const TraceId id = s.lowering().AddHidden(std::move(m));
  s.Keep(Py_NewRef(args[0]));
  s.vmap.tensors[id] = {args[0], static_cast<int>(dim), static_cast<int>(level), false};
  return s.NewProxy(id);
}

Answered RemoveDimension(Session& s, Callee, PyObject* const* args, Py_ssize_t n) {
  if (n != 4 || !IsTensor(args[0])) return {};
  return Removed(s, args);
}

Answered IsBatched(Session& s, Callee, PyObject* const* args, Py_ssize_t n) {
  if (n != 1) return {};
  return PyBool_FromLong(IsTensor(args[0]) && s.vmap.tensors.contains(AsTensor(args[0])->id));
}

constexpr StateFunction kFunctions[] = {
    {"_push_on_torch_function_stack", PushMode},
    {"_pop_torch_function_stack", PopMode},
    {"_vmap_increment_nesting", OpenLevel},
    {"_vmap_decrement_nesting", CloseLevel},
    {"_add_batch_dim", AddDimension},
    {"_remove_batch_dim", RemoveDimension},
    {"is_batchedtensor", IsBatched},
};

}  // namespace

std::span<const StateFunction> VmapFunctions() {
  return kFunctions;
}

int BatchLevel(Session& s, PyObject* const* args, Py_ssize_t n) {
  int level = 0;
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* o = args[i];
    if (IsTensor(o)) {
      auto at = s.vmap.tensors.find(AsTensor(o)->id);
      if (at != s.vmap.tensors.end()) level = std::max(level, at->second.level);
    } else if (PyTuple_Check(o)) {
      level = std::max(level, BatchLevel(s, &PyTuple_GET_ITEM(o, 0), PyTuple_GET_SIZE(o)));
    } else if (PyList_Check(o) && PyList_GET_SIZE(o)) {
      level = std::max(level, BatchLevel(s, &PyList_GET_ITEM(o, 0), PyList_GET_SIZE(o)));
    }
  }
  return level;
}

bool NeedsVmap(Session& s, Callee callee, PyObject* const* args, Py_ssize_t nargs) {
  if (Draws(callee) && !s.vmap.drawing &&
      std::any_of(s.vmap.levels.begin(), s.vmap.levels.end(), [](const Vmap::Level& l) { return l.size && !l.same; }))
    return true;
  if (s.vmap.index_modes.empty() || callee != callees::kTensorGetItem || nargs != 2) return false;
  auto one = [&](PyObject* o) {
    return PyLong_Check(o) || (IsTensor(o) && s.meta(AsTensor(o)->id).sizes.empty());
  };  // an element by number is a copy there, not a view
  if (!PyTuple_Check(args[1])) return one(args[1]);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[1]); ++i)
    if (!one(PyTuple_GET_ITEM(args[1], i))) return false;
  return true;
}

}  // namespace framejit::capture
