// What capture writes to the event stream (docs/trace.md). Every function does nothing unless FRAMEJIT_TRACE is on.
#pragma once

#include "capture/segment.h"

namespace framejit::capture {

// None, or what is told of every capture ("capture", how many calls are in it) and new break ("break", its text).
PyObject* SetObserver(PyObject*, PyObject* called);
std::string PlaceName(PyCodeObject* code);  // function@file:line

void CaptureEvent(FjFrame* frame, double seconds, long instructions,
                  Segment* segment);  // null: nothing was compiled
void CompileEvent(const std::string& place, double seconds, const CompileStats& stats);
void BreakEvent(const diag::Break& reason);
void RecompileEvent(FjFrame* frame, size_t entries, const std::string& guard);
void RunsEvent(Segment& segment);  // how often it ran since the last such event
// A run that was not done.
void OutcomeEvent(const Segment& segment, diag::RunEnd end, const std::string& why);
void FallbackEvent(FjFrame* frame, const std::string& reason);

}  // namespace framejit::capture
