// What capture writes to the event stream (docs/events.md). Every function does nothing unless FRAMEJIT_EVENTS is on.
#pragma once

#include "capture/segment.h"
#include "runtime/step_times.h"

namespace framejit::capture {

// None, or what is told of every capture ("capture", how many calls are in it) and new break ("break", its text).
PyObject* SetObserver(PyObject*, PyObject* called);

void CaptureEvent(FjFrame* frame, double seconds, long instructions, Segment* segment,
                  const std::vector<diag::Break>& ends);  // segment null: nothing was compiled; ends: why no more was
void CompileEvent(const std::string& place, double seconds, const CompileStats& stats);
void BreakEvent(const diag::Break& reason);
void RecompileEvent(FjFrame* frame, size_t entries, const std::string& guard);
void RunsEvent(Segment& segment);       // how often it ran since the last such event
void PythonEvents(Compiled& compiled);  // what ran in Python since the last such events
void StepEvent(const runtime::StepTime& time);
void MemoryEvent();  // Tells of the memory of the process.
// Calls of the function, or rounds of a loop in it, are left to Python; seconds that one takes.
void LeftEvent(const Compiled& compiled, const std::string& why, double ours, double python);
// None of too many versions is for this frame: told at the first, second, fourth ... time.
void MissEvent(FjFrame* frame, const Segment& last, int times);
// A run that was not done.
void OutcomeEvent(const Segment& segment, diag::RunEnd end, const std::string& why);
// Arrays as JSON text (capture/numbers/provenance.h).
void ProvenanceEvent(const std::string& place, const std::string& symbols, const std::string& expressions,
                     const std::string& guards);
void FallbackEvent(const Segment& segment, const std::string& reason);

}  // namespace framejit::capture
