// Switches of the framework that Python code reads, and sets for a while (torch.backends.cudnn.flags, sdpa_kernel):
// what is read is guarded, what is set is kept here and becomes real at the segment's exit. Calls that a changed switch
// would bear on are not captured meanwhile.
#include <algorithm>

#include "capture/modes.h"

namespace framejit::capture {
namespace {

struct Row {
  std::string_view get, set;
  bool alone;  // setting it changes no other switch
  bool attention = false;
};

// Functions of torch._C. A getter with arguments has them in front of its setter's value.
constexpr Row kRows[] = {
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
    {"_get_mkldnn_enabled", "", false},
    {"_get_nnpack_enabled", "", false},
    {"_get_warnAlways", "", false},
    {"_cuda_getDeviceCount", "", false},  // torch.cuda.is_available
};

// What the program finds there now. Null: a Break or an exception.
Ref Now(Session& s, const Row& row, PyObject* key) {
  for (const Session::Switched& w : s.switches) {
    if (w.getter != row.get) continue;
    const int same = PyObject_RichCompareBool(w.key.get(), key, Py_EQ);
    if (same) return same < 0 ? Ref() : w.now;
  }
  Ref get(tensor::ResolveCallee("torch._C." + std::string(row.get)));
  Ref value(get ? PyObject_CallObject(get.get(), key) : nullptr);
  if (!value) return {};
  if (!IsPrimitive(value.get())) return s.Break(BreakId::kThreadState, std::string(row.get)), Ref();
  const Source* source = s.guards().Child(SourceKind::kAnswer, s.guards().Const(get.get()), 0, key);
  return Ref(s.FromOutside(value.get(), source));
}

bool Set(Session& s, const Row& row, PyObject* const* args, Py_ssize_t n) {
  Ref key(PyTuple_New(n - 1)), set(tensor::ResolveCallee("torch._C." + std::string(row.set)));
  for (Py_ssize_t i = 0; key && i + 1 < n; ++i) PyTuple_SET_ITEM(key.get(), i, Py_NewRef(args[i]));
  Ref now = key && set ? Now(s, row, key.get()) : Ref();
  if (!now) return false;
  const int same = PyObject_RichCompareBool(now.get(), args[n - 1], Py_EQ);
  if (same < 0) return false;
  PendingCall call{std::move(set), {}};
  for (Py_ssize_t i = 0; i < n; ++i) call.args.push_back(Borrow(args[i]));
  s.switch_calls.push_back(std::move(call));
  if (same) return true;
  if (!row.alone) return s.Break(BreakId::kThreadState, "torch._C." + std::string(row.set)), false;
  auto at = std::find_if(s.switches.begin(), s.switches.end(), [&](auto& w) { return w.getter == row.get; });
  if (at == s.switches.end()) at = s.switches.insert(at, {row.get, key, now, now, row.attention});
  at->now = Borrow(args[n - 1]);
  return true;
}

}  // namespace

bool SwitchState(Session& s, Callee name, PyObject* const* args, Py_ssize_t n, PyObject** out) {
  if (name.space() != "torch._C") return false;
  const std::string_view last = name.last();
  for (const Row& row : kRows) {
    const bool get = last == row.get, set = last == row.set && n > 0;
    if (!get && !set) continue;
    if (!std::all_of(args, args + n, [](PyObject* a) { return IsPrimitive(a); })) return false;
    if (set) return *out = Set(s, row, args, n) ? Py_NewRef(Py_None) : nullptr, true;
    Ref key(PyTuple_New(n));
    for (Py_ssize_t i = 0; key && i < n; ++i) PyTuple_SET_ITEM(key.get(), i, Py_NewRef(args[i]));
    return *out = key ? Now(s, row, key.get()).release() : nullptr, true;
  }
  return false;
}

bool Session::SwitchesFit(Callee callee, bool cuda) {
  const bool attention = callee.last().ends_with("scaled_dot_product_attention");
  if (attention) {  // they choose the kernel, and so the layout of its result
    static PyObject* const none = PyTuple_New(0);
    for (const Row& row : kRows) {
      if (!row.attention) continue;
      Ref now = Now(*this, row, none);
      if (!now) return false;
      // What the rows know of the CPU's kernels is what the flash kernel does.
      if (!cuda && row.set.ends_with("flash") && now.get() != Py_True)
        return Break(BreakId::kThreadState, callee + " without its flash kernel"), false;
    }
  }
  for (const Switched& w : switches)
    if ((cuda || (attention && w.attention)) && PyObject_RichCompareBool(w.entry.get(), w.now.get(), Py_EQ) != 1)
      return Break(BreakId::kThreadState, callee + " while torch._C." + std::string(w.getter) + " is changed"), false;
  return true;
}

std::vector<PendingCall> Session::SwitchCalls() const {
  const bool back = std::all_of(switches.begin(), switches.end(), [](const Switched& w) {
    return PyObject_RichCompareBool(w.entry.get(), w.now.get(), Py_EQ) == 1;
  });
  std::vector<PendingCall> calls;
  for (const PendingCall& c : switch_calls) {
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
