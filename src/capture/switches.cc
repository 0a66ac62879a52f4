// Switches of the framework that Python code reads, and sets for a while (torch.backends.cudnn.flags, sdpa_kernel):
// what is read is guarded, what is set is kept here and becomes real at the segment's exit. Calls that a changed switch
// would bear on are not captured meanwhile.
#include <algorithm>

#include "capture/callees.h"
#include "capture/modes.h"
#include "capture/session.h"

namespace framejit::capture {

// Functions of torch._C. A getter with arguments has them in front of its setter's value.
const Switches::Row Switches::kRows[] = {
    {"_get_cudnn_enabled", "_set_cudnn_enabled", true},
    {"_get_cudnn_benchmark", "_set_cudnn_benchmark", true},
    {"_get_cudnn_deterministic", "_set_cudnn_deterministic", true},
    {"_cuda_get_cudnn_benchmark_limit", "_cuda_set_cudnn_benchmark_limit", true},
    {"_get_cudnn_depthwise_kernel", "_set_cudnn_depthwise_kernel", true},
    {"_get_cudnn_allow_tf32", "_set_cudnn_allow_tf32", false},
    {"_get_cublas_allow_tf32", "_set_cublas_allow_tf32", false},
    {"_get_fp32_precision_getter", "_set_fp32_precision_setter", false},
    {"_get_flash_sdp_enabled", "_set_sdp_use_flash", true, true},
    {"_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient", true, true},
    {"_get_math_sdp_enabled", "_set_sdp_use_math", true, true},
    {"_get_cudnn_sdp_enabled", "_set_sdp_use_cudnn", true, true},
    {"_get_overrideable_sdp_enabled", "_set_sdp_use_overrideable", true, true},
    {"_get_tracing_state", "_set_tracing_state", true},  // None: what torch.jit.trace looks at runs as written
    {"_get_mkldnn_enabled", "", false},
    {"_get_nnpack_enabled", "", false},
    {"_get_warnAlways", "", false},
    {"_get_deterministic_fill_uninitialized_memory", "", false},
    {"_cuda_getDeviceCount", "", false},  // torch.cuda.is_available
};

static std::string OfTorchC(std::string_view name) {
  return std::string(callees::kTorchC).append(".").append(name);
}

// What the program finds there now. Null: a Break or an exception.
Ref Switches::Now(Session& s, const Row& row, PyObject* key) const {
  for (const Changed& w : changed_) {
    if (w.row != &row) continue;
    const int same = PyObject_RichCompareBool(w.key.get(), key, Py_EQ);
    if (same) return same < 0 ? Ref() : w.now;
  }
  Ref get(tensor::ResolveCallee(OfTorchC(row.get)));
  Ref value(get ? PyObject_CallObject(get.get(), key) : nullptr);
  if (!value) return {};
  if (!IsPrimitive(value.get())) return s.Break(BreakId::kThreadState, std::string(row.get)), Ref();
  const Source* source = s.guards().Child(SourceKind::kAnswer, s.guards().Const(get.get()), 0, key);
  return Ref(s.FromOutside(value.get(), source));
}

bool Switches::Set(Session& s, const Row& row, PyObject* const* args, Py_ssize_t n) {
  Ref key(PyTuple_New(n - 1)), set(tensor::ResolveCallee(OfTorchC(row.set)));
  for (Py_ssize_t i = 0; key && i + 1 < n; ++i) PyTuple_SET_ITEM(key.get(), i, Py_NewRef(args[i]));
  Ref now = key && set ? Now(s, row, key.get()) : Ref();
  if (!now) return false;
  const int same = PyObject_RichCompareBool(now.get(), args[n - 1], Py_EQ);
  if (same < 0) return false;
  PendingCall call{std::move(set), {}};
  for (Py_ssize_t i = 0; i < n; ++i) call.args.push_back(Borrow(args[i]));
  calls_.push_back(std::move(call));
  if (same) return true;
  if (!row.alone) return s.Break(BreakId::kThreadState, OfTorchC(row.set)), false;
  auto at = std::find_if(changed_.begin(), changed_.end(), [&](const Changed& w) { return w.row == &row; });
  if (at == changed_.end()) at = changed_.insert(at, {&row, key, now, now});
  at->now = Borrow(args[n - 1]);
  return true;
}

Answered Switches::Answer(Session& s, Callee callee, PyObject* const* args, Py_ssize_t n) {
  if (callee.space() != callees::kTorchC) return {};
  const std::string_view last = callee.last();
  for (const Row& row : kRows) {
    const bool get = last == row.get, set = last == row.set && n > 0;
    if (!get && !set) continue;
    if (!std::all_of(args, args + n, IsPrimitive)) return {};
    if (set) return Set(s, row, args, n) ? Py_NewRef(Py_None) : nullptr;
    Ref key(PyTuple_New(n));
    for (Py_ssize_t i = 0; key && i < n; ++i) PyTuple_SET_ITEM(key.get(), i, Py_NewRef(args[i]));
    return key ? Now(s, row, key.get()).release() : nullptr;
  }
  return {};
}

bool Switches::Fit(Session& s, Callee callee, bool cuda) const {
  const bool attention = callee.last().ends_with("scaled_dot_product_attention");
  if (attention) {  // they choose the kernel, and so the layout of its result
    static PyObject* const none = PyTuple_New(0);
    for (const Row& row : kRows) {
      if (!row.attention) continue;
      Ref now = Now(s, row, none);
      if (!now) return false;
      // What the rows know of the CPU's kernels is what the flash kernel does.
      if (!cuda && row.set.ends_with("flash") && now.get() != Py_True)
        return s.Break(BreakId::kThreadState, callee + " without its flash kernel"), false;
    }
  }
  for (const Changed& w : changed_)
    if ((cuda || (attention && w.row->attention)) && PyObject_RichCompareBool(w.entry.get(), w.now.get(), Py_EQ) != 1)
      return s.Break(BreakId::kThreadState, callee + " while " + OfTorchC(w.row->get) + " is changed"), false;
  return true;
}

std::vector<PendingCall> Switches::AtExit() const {
  const bool back = std::all_of(changed_.begin(), changed_.end(), [](const Changed& w) {
    return PyObject_RichCompareBool(w.entry.get(), w.now.get(), Py_EQ) == 1;
  });
  std::vector<PendingCall> calls;
  for (const PendingCall& c : calls_) {
    Ref name(PyObject_GetAttrString(c.method.get(), "__name__"));
    const char* text = name ? PyUnicode_AsUTF8(name.get()) : nullptr;
    if (!text) PyErr_Clear();
    const bool alone =
        text && std::any_of(std::begin(kRows), std::end(kRows), [&](const Row& r) { return r.alone && r.set == text; });
    if (!back || !alone) calls.push_back(c);  // else it is as if it had not been
  }
  return calls;
}

}  // namespace framejit::capture
