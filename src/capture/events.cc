#include "capture/events.h"

#include <utility>

#include "bytecode/code.h"
#include "capture/override.h"
#include "tensor/ref.h"

namespace framejit::capture {
namespace {

using diag::Json;
using diag::Quote;

std::string Text(PyObject* o) {
  const char* c = PyUnicode_AsUTF8(o);
  if (!c) PyErr_Clear();
  return c ? c : "?";
}

std::string QuotedPlace(FjFrame* frame) {
  return Quote(PlaceName(fj_code(frame)));
}

// As the event stream has called them from the start.
const char* RunnerName(const Segment& s) {
  const diag::RunBy by = s.runner();
  return by == diag::RunBy::kTrace ? "trace" : by == diag::RunBy::kNone ? "none" : diag::Text(by);
}

}  // namespace

std::string PlaceName(PyCodeObject* code) {
  return Text(code->co_qualname) + "@" + Text(code->co_filename) + ":" + std::to_string(code->co_firstlineno);
}

namespace {

PyObject* observer = nullptr;

// Its own code is not captured, and what goes wrong in it is not the program's.
void Tell(const char* kind, const std::string& text) {
  if (!observer) return;
  SuspendScope off;
  PyObject *type, *value, *where;
  PyErr_Fetch(&type, &value, &where);
  Ref told(PyObject_CallFunction(observer, "ss", kind, text.c_str()));
  if (!told) PyErr_WriteUnraisable(observer);
  PyErr_Restore(type, value, where);
}

}  // namespace

PyObject* SetObserver(PyObject*, PyObject* called) {
  Py_XDECREF(std::exchange(observer, called == Py_None ? nullptr : Py_NewRef(called)));
  Py_RETURN_NONE;
}

void CaptureEvent(FjFrame* frame, double seconds, long instructions, Segment* s) {
  if (s) Tell("capture", std::to_string(s->trace->calls.size()));
  if (!diag::TraceEnabled()) return;
  PyCodeObject* code = fj_code(frame);
  int line = bytecode::LocationOf(code, bytecode::Code::Of(code)->At(fj_next(frame)).unit).line;
  std::vector<std::pair<std::string_view, std::string>> fields = {
      {"place", QuotedPlace(frame)},
      {"line", Json(line)},
      {"offset", Json(fj_next(frame))},
      {"seconds", Json(seconds)},
      {"instructions", Json(static_cast<int64_t>(instructions))},
      {"ok", Json(s != nullptr)}};
  if (s) {
    s->traced = true;
    s->line = line;
    fields.insert(fields.end(), {{"runner", Quote(RunnerName(*s))},
                                 {"calls", Json(static_cast<int64_t>(s->trace->calls.size()))},
                                 {"inputs", Json(s->num_tensor_inputs)},
                                 {"outputs", Json(static_cast<int64_t>(s->recipe.outputs.size()))},
                                 {"symbols", Json(s->num_symbols)},
                                 {"returns", Json(s->returns)}});
  }
  diag::Event("capture", fields);
}

void CompileEvent(const std::string& place, double seconds, const CompileStats& stats) {
  if (!diag::TraceEnabled()) return;
  diag::Event("compile", {{"place", Quote(place)},
                          {"seconds", Json(seconds)},
                          {"kernels", Json(stats.kernels)},
                          {"kernels_compiled", Json(stats.kernels_compiled)},
                          {"kernels_reused", Json(stats.kernels_reused)},
                          {"library_calls", Json(stats.library_calls)},
                          {"externs", Json(stats.externs)}});
}

void BreakEvent(const diag::Break& b) {
  if (observer) Tell("break", std::string(diag::Info(b.id).message) + (b.detail.empty() ? "" : ": " + b.detail));
  if (!diag::TraceEnabled()) return;
  const diag::BreakInfo& info = diag::Info(b.id);
  diag::Event("break", {{"id", Quote(info.id)},
                        {"message", Quote(info.message)},
                        {"detail", Quote(b.detail)},
                        {"file", Quote(b.file)},
                        {"function", Quote(b.function)},
                        {"line", Json(b.line)},
                        {"column", Json(b.column)},
                        {"end_column", Json(b.end_column)},
                        {"first_line", Json(b.first_line)}});
}

void RecompileEvent(FjFrame* frame, size_t entries, const std::string& guard) {
  if (!diag::TraceEnabled()) return;
  diag::Event(
      "recompile",
      {{"place", QuotedPlace(frame)}, {"entries", Json(static_cast<int64_t>(entries))}, {"guard", Quote(guard)}});
}

void RunsEvent(Segment& s) {
  if (!s.traced || !s.runs || !diag::TraceEnabled()) return;
  diag::Event("runs", {{"place", Quote(s.place)},
                       {"line", Json(s.line)},
                       {"runner", Quote(RunnerName(s))},
                       {"runs", Json(std::exchange(s.runs, 0))}});
}

void OutcomeEvent(const Segment& s, diag::RunEnd end, const std::string& why) {
  if (!diag::TraceEnabled()) return;
  diag::Event("outcome", {{"place", Quote(s.place)}, {"end", Quote(diag::Text(end))}, {"why", Quote(why)}});
}

void FallbackEvent(FjFrame* frame, const std::string& reason) {
  if (!diag::TraceEnabled()) return;
  diag::Event("fallback", {{"place", QuotedPlace(frame)}, {"reason", Quote(reason)}});
}

}  // namespace framejit::capture
