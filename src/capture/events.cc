#include "capture/events.h"

#include <sys/resource.h>

#include <bit>
#include <cmath>
#include <utility>

#include "capture/named_code.h"
#include "capture/override.h"
#include "tensor/ref.h"

namespace framejit::capture {
namespace {

using diag::Json;
using diag::Quote;

std::string QuotedPlace(FjFrame* frame) {
  return Quote(PlaceName(NamedCode(frame)));
}

std::string Duration(double seconds) {  // to the nanosecond
  return Json(std::round(seconds * 1e9) / 1e9);
}

// As the event stream has called them from the start.
const char* RunnerName(const Segment& s) {
  const diag::RunBy by = s.runner();
  return by == diag::RunBy::kTrace ? "trace" : by == diag::RunBy::kNone ? "none" : diag::Text(by);
}

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

void CaptureEvent(FjFrame* frame, double seconds, long instructions, Segment* s, const std::vector<diag::Break>& ends) {
  if (s) Tell("capture", std::to_string(s->calls));
  if (!diag::EventsOn()) return;
  const int line = NamedLine(frame);
  std::vector<std::string> breaks;
  for (const diag::Break& b : ends)
    breaks.push_back(std::string(diag::Info(b.id).id) + "@" + b.file + ":" + std::to_string(b.line));
  std::vector<std::pair<std::string_view, std::string>> fields = {
      {"place", QuotedPlace(frame)},
      {"line", Json(line)},
      {"offset", Json(fj_next(frame))},
      {"seconds", Duration(seconds)},
      {"instructions", Json(static_cast<int64_t>(instructions))},
      {"breaks", diag::JsonStrings(breaks)},
      {"ok", Json(s != nullptr)}};
  if (s) {
    s->has_event = true;
    fields.insert(fields.end(), {{"runner", Quote(RunnerName(*s))},
                                 {"calls", Json(s->calls)},
                                 {"inputs", Json(s->num_tensor_inputs)},
                                 {"outputs", Json(static_cast<int64_t>(s->exit.recipe.outputs.size()))},
                                 {"symbols", Json(s->num_symbols)},
                                 {"returns", Json(s->exit.returns)}});
  }
  diag::Event("capture", fields);
}

void CompileEvent(const std::string& place, double seconds, const CompileStats& stats) {
  if (!diag::EventsOn()) return;
  diag::Event("compile", {{"place", Quote(place)},
                          {"seconds", Duration(seconds)},
                          {"kernels", Json(stats.kernels)},
                          {"kernels_compiled", Json(stats.kernels_compiled)},
                          {"kernels_reused", Json(stats.kernels_reused)},
                          {"library_calls", Json(stats.library_calls)},
                          {"externs", Json(stats.externs)}});
}

void BreakEvent(const diag::Break& b) {
  if (observer) Tell("break", std::string(diag::Info(b.id).message) + (b.detail.empty() ? "" : ": " + b.detail));
  if (!diag::EventsOn()) return;
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
  if (!diag::EventsOn()) return;
  diag::Event(
      "recompile",
      {{"place", QuotedPlace(frame)}, {"entries", Json(static_cast<int64_t>(entries))}, {"guard", Quote(guard)}});
}

void RunsEvent(Segment& s) {
  const int64_t runs = s.tally.runs - s.tally.runs_told_of, misses = std::exchange(s.tally.missed_guards, 0);
  if (!s.has_event || !(runs || misses) || !diag::EventsOn()) return;
  const int64_t timed = std::exchange(s.tally.timed, 0);
  const double seconds = std::exchange(s.tally.seconds, 0.0), in_steps = std::exchange(s.tally.in_steps, 0.0);
  const double scale = timed ? static_cast<double>(runs) / static_cast<double>(timed) : 0;
  s.tally.runs_told_of = s.tally.runs;
  diag::Event("runs", {{"place", Quote(s.place)},
                       {"line", Json(s.line)},
                       {"runner", Quote(RunnerName(s))},
                       {"runs", Json(runs)},
                       {"seconds", Duration(seconds * scale)},
                       {"around", s.graph_runner ? Duration((seconds - in_steps) * scale) : "null"},
                       {"misses", Json(misses)}});
}

void PythonEvents(Compiled& compiled) {
  const auto elsewhere = std::exchange(compiled.elsewhere, {});
  if (elsewhere.empty() || !diag::EventsOn()) return;
  for (auto& [cause, spent] : elsewhere) {
    const diag::Break* b =
        cause >= 0 && cause < static_cast<int>(compiled.breaks.size()) ? &compiled.breaks[cause] : nullptr;
    diag::Event("python", {{"place", Quote(compiled.place)},
                           {"id", b ? Quote(diag::Info(b->id).id) : ""},
                           {"file", b ? Quote(b->file) : ""},
                           {"line", b ? Json(b->line) : ""},
                           {"times", Json(spent.times)},
                           {"seconds", Duration(spent.seconds)}});
  }
}

void StepEvent(const runtime::StepTime& t) {
  diag::Event("step", {{"graph", Quote(t.plan)},
                       {"name", Quote(t.step)},
                       {"by", Quote(t.kind)},
                       {"device", Quote(t.device)},
                       {"runs", Json(t.runs)},
                       {"seconds", Duration(t.seconds)},
                       {"bytes", Json(t.bytes)},
                       {"flops", Json(t.flops)}});
}

void MemoryEvent() {
  rusage usage;
  if (getrusage(RUSAGE_SELF, &usage)) return;
  const KernelCacheInfo code = GetKernelCacheInfo();
  diag::Event("memory", {{"peak_bytes", Json(int64_t{1024} * usage.ru_maxrss)},
                         {"code_bytes", Json(static_cast<int64_t>(code.code_bytes))},
                         {"prepared_bytes", Json(static_cast<int64_t>(code.prepared_bytes))}});
}

void LeftEvent(const Compiled& compiled, const std::string& why, double ours, double python) {
  if (!diag::EventsOn()) return;
  diag::Event("left", {{"place", Quote(compiled.place)},
                       {"why", Quote(why)},
                       {"compiled", Duration(ours)},
                       {"python", Duration(python)}});
}

void MissEvent(FjFrame* frame, const Segment& last, int times) {
  if (!std::has_single_bit(static_cast<unsigned>(times)) || !diag::EventsOn()) return;
  const std::string guard = last.WhyMissed(frame);
  diag::Event("miss", {{"place", QuotedPlace(frame)}, {"times", Json(times)}, {"guard", Quote(guard)}});
}

void OutcomeEvent(const Segment& s, diag::RunEnd end, const std::string& why) {
  if (!diag::EventsOn()) return;
  diag::Event(
      "outcome",
      {{"place", Quote(s.place)}, {"line", Json(s.line)}, {"end", Quote(diag::Text(end))}, {"why", Quote(why)}});
}

void ProvenanceEvent(const std::string& place, const std::string& symbols, const std::string& expressions,
                     const std::string& guards) {
  diag::Event("symbols",
              {{"place", Quote(place)}, {"symbols", symbols}, {"expressions", expressions}, {"guards", guards}});
}

void FallbackEvent(const Segment& s, const std::string& reason) {
  if (!diag::EventsOn()) return;
  diag::Event("fallback", {{"place", Quote(s.place)}, {"line", Json(s.line)}, {"reason", Quote(reason)}});
}

}  // namespace framejit::capture
