// What waits for the segment's exit besides stores into dicts: variables of enclosing functions, lists that are changed
// in place, output. Output is held back only where it will be then exactly what it would be now: its text is known, or
// that of a copy, and nothing that writes it can raise or is the program's own code.
#include "capture/effects.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "capture/builtins.h"
#include "capture/callees.h"
#include "capture/drops.h"
#include "capture/override.h"
#include "capture/proxy.h"
#include "capture/semantics.h"
#include "capture/unread_text.h"
#include "guard/source.h"
#include "tensor/import.h"

namespace framejit::capture {
namespace {

PyObject* NamedIn(const char* module, const char* name) {  // borrowed
  PyObject* m = PyDict_GetItemString(PyImport_GetModuleDict(), module);
  return m && PyModule_Check(m) ? PyDict_GetItemString(PyModule_GetDict(m), name) : nullptr;
}

// May a stream be written to at any time: it is Python's own, open, and takes that text?
bool TakesOutput(PyObject* stream, bool ascii) {
  if (!stream || stream == Py_None) return true;
  const CType layout = FactsOf(LayoutOf(Py_TYPE(stream))).type;
  if (layout != CType::kTextFile && layout != CType::kStringIO) return false;
  static PyObject* const names[] = {Interned("write"), Interned("flush"), Interned("__getattribute__")};
  for (PyObject* name : names)
    if (PythonFunctionIn(Py_TYPE(stream), name)) return false;
  Ref closed(PyObject_GetAttrString(stream, "closed"));
  if (!closed || closed.get() != Py_False) return PyErr_Clear(), false;
  if (ascii || layout == CType::kStringIO) return true;
  Ref encoding(PyObject_GetAttrString(stream, "encoding"));
  const char* text = encoding && PyUnicode_Check(encoding.get()) ? PyUnicode_AsUTF8(encoding.get()) : nullptr;
  if (!text) PyErr_Clear();
  return text && (!strcasecmp(text, "utf-8") || !strcasecmp(text, "utf8"));
}

// A guard calls this function with (name of the stream in sys, is the text ASCII), and it answers with a bool.
PyObject* StreamIsPlain(PyObject*, PyObject* args) {
  const char* name;
  int ascii;
  if (!PyArg_ParseTuple(args, "sp", &name, &ascii)) return nullptr;
  return PyBool_FromLong(TakesOutput(PySys_GetObject(name), ascii));
}

// Gives the list that catch_warnings(record=True) has put in the place of the display, or null if there is none.
PyObject* RecordOf(PyObject* display) {
  PyObject* list = display && PyCFunction_Check(display) ? PyCFunction_GET_SELF(display) : nullptr;
  return list && PyList_CheckExact(list) &&
                 !strcmp(reinterpret_cast<PyCFunctionObject*>(display)->m_ml->ml_name, "append")
             ? list
             : nullptr;
}

// Does a field of a warning filter say yes?
bool Matches(PyObject* pattern, PyObject* text) {
  if (pattern == Py_None) return true;
  if (PyUnicode_CheckExact(pattern)) return PyUnicode_Compare(pattern, text) == 0;
  Ref found(PyObject_CallMethod(pattern, "match", "O", text));
  return found && found.get() != Py_None;
}

// (text, category, line, module) -> does this warning do nothing but to be shown, or not to be? Asked by a guard.
PyObject* WarningIsPlain(PyObject*, PyObject* args) {
  PyObject *text, *category, *module;
  int line;
  if (!PyArg_ParseTuple(args, "OOiO", &text, &category, &line, &module)) return nullptr;
  PyObject *shown = NamedIn("warnings", "showwarning"), *original = NamedIn("warnings", "_showwarning_orig"),
           *display = NamedIn("warnings", "_showwarnmsg_impl"), *filters = NamedIn("warnings", "filters"),
           *action = NamedIn("warnings", "defaultaction");
  if (!shown || shown != original || !display || !filters || !PyList_Check(filters) || !action) Py_RETURN_FALSE;
  if (!RecordOf(display)) {
    PyObject* home = PyFunction_Check(display) ? PyFunction_GetModule(display) : nullptr;
    const bool own = home && PyUnicode_Check(home) && !PyUnicode_CompareWithASCIIString(home, "warnings");
    if (!own || !TakesOutput(PySys_GetObject("stderr"), PyUnicode_IS_ASCII(text))) Py_RETURN_FALSE;
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(filters); ++i) {
    PyObject* f = PyList_GET_ITEM(filters, i);
    if (!PyTuple_Check(f) || PyTuple_GET_SIZE(f) != 5) Py_RETURN_FALSE;
    const long at = PyLong_AsLong(PyTuple_GET_ITEM(f, 4));
    const bool applies = Matches(PyTuple_GET_ITEM(f, 1), text) &&
                         PyObject_IsSubclass(category, PyTuple_GET_ITEM(f, 2)) == 1 &&
                         Matches(PyTuple_GET_ITEM(f, 3), module) && (at == 0 || at == line);
    if (PyErr_Occurred()) return PyErr_Clear(), Py_NewRef(Py_False);
    if (!applies) continue;
    action = PyTuple_GET_ITEM(f, 0);
    break;
  }
  for (const char* plain : {"ignore", "default", "always", "all", "module", "once"})
    if (PyUnicode_Check(action) && !PyUnicode_CompareWithASCIIString(action, plain)) Py_RETURN_TRUE;
  Py_RETURN_FALSE;
}

// Calls warnings.warn as if from a line of a module with these globals. The arguments are (text, category, file, line,
// globals).
PyObject* WarnFrom(PyObject*, PyObject* args) {
  PyObject *text, *category, *file, *globals;
  int line;
  if (!PyArg_ParseTuple(args, "OOOiO!", &text, &category, &file, &line, &PyDict_Type, &globals)) return nullptr;
  static PyObject* const name = PyUnicode_InternFromString("__warningregistry__");
  PyObject* registry = PyDict_GetItemWithError(globals, name);
  Ref made(registry || PyErr_Occurred() ? nullptr : PyDict_New());
  if (made && PyDict_SetItem(globals, name, made.get()) == 0) registry = made.get();
  PyObject *module = PyDict_GetItemString(globals, "__name__"), *warn = NamedIn("_warnings", "warn_explicit");
  return registry && module && warn
             ? PyObject_CallFunction(warn, "OOOiOO", text, category, file, line, module, registry)
             : nullptr;
}

// print(*values, sep=, end=, flush=) to a stream of sys: (stream, sep, end, flush, *values).
PyObject* PrintTo(PyObject*, PyObject* args) {
  static PyObject* const print = FromModule("builtins", "print");
  PyObject* file = PySys_GetObject(PyUnicode_AsUTF8(PyTuple_GET_ITEM(args, 0)));
  Ref values(PyTuple_GetSlice(args, 4, PyTuple_GET_SIZE(args)));
  Ref how(Py_BuildValue("{sOsOsOsO}", "file", file ? file : Py_None, "sep", PyTuple_GET_ITEM(args, 1), "end",
                        PyTuple_GET_ITEM(args, 2), "flush", PyTuple_GET_ITEM(args, 3)));
  return print && values && how ? PyObject_Call(print, values.get(), how.get()) : nullptr;
}

// Is what the class `of` (of the module logging) has under these names what an object's class has?
bool AsInLogging(PyObject* o, const char* of, std::initializer_list<const char*> names) {
  PyObject* base = NamedIn("logging", of);
  if (!base || !PyType_Check(base) || !PyType_IsSubtype(Py_TYPE(o), reinterpret_cast<PyTypeObject*>(base)))
    return false;
  for (const char* name : names) {
    Ref text(PyUnicode_InternFromString(name));
    PyObject* found = _PyType_Lookup(Py_TYPE(o), text.get());
    PyObject* home = found && PyFunction_Check(found) ? PyFunction_GetModule(found) : nullptr;
    if (!home || !PyUnicode_Check(home) || PyUnicode_CompareWithASCIIString(home, "logging")) return false;
  }
  return true;
}

bool NoFilters(PyObject* o) {
  Ref filters(PyObject_GetAttrString(o, "filters"));
  return filters && PyList_CheckExact(filters.get()) && !PyList_GET_SIZE(filters.get());
}

// Does a handler write the text to a stream of Python's, and nothing else?
bool WritesPlainly(PyObject* handler, bool ascii) {
  PyObject* nothing = NamedIn("logging", "NullHandler");
  if (nothing && Py_TYPE(handler) == reinterpret_cast<PyTypeObject*>(nothing)) return true;
  if (!AsInLogging(handler, "StreamHandler", {"handle", "emit", "format", "acquire", "release", "filter", "flush"}) ||
      !NoFilters(handler))
    return false;
  Ref formatter(PyObject_GetAttrString(handler, "formatter")), stream(PyObject_GetAttrString(handler, "stream"));
  PyObject* plain = NamedIn("logging", "Formatter");
  return formatter && stream && stream.get() != Py_None && TakesOutput(stream.get(), ascii) &&
         (formatter.get() == Py_None || Py_TYPE(formatter.get()) == reinterpret_cast<PyTypeObject*>(plain));
}

// A guard calls this function with (logger, is the text ASCII), and it answers with a bool.
PyObject* LoggerIsPlain(PyObject*, PyObject* args) {
  PyObject* logger;
  int ascii;
  if (!PyArg_ParseTuple(args, "Op", &logger, &ascii)) return nullptr;
  PyObject *factory = NamedIn("logging", "_logRecordFactory"), *record = NamedIn("logging", "LogRecord");
  bool plain = factory && factory == record;
  for (Ref at = Borrow(logger); plain && at.get() != Py_None;) {
    Ref handlers(PyObject_GetAttrString(at.get(), "handlers"));
    plain = AsInLogging(at.get(), "Logger", {"_log", "makeRecord", "handle", "callHandlers", "findCaller", "filter"}) &&
            NoFilters(at.get()) && handlers && PyList_CheckExact(handlers.get());
    for (Py_ssize_t i = 0; plain && i < PyList_GET_SIZE(handlers.get()); ++i)
      plain = WritesPlainly(PyList_GET_ITEM(handlers.get(), i), ascii);
    Ref goes_on(PyObject_GetAttrString(at.get(), "propagate"));
    at = Ref(goes_on && PyObject_IsTrue(goes_on.get()) == 1 ? PyObject_GetAttrString(at.get(), "parent")
                                                            : Py_NewRef(Py_None));
    plain = plain && at;
  }
  PyErr_Clear();
  return PyBool_FromLong(plain);
}

// Calls Logger._log as if from a line of the program. The arguments are (logger, level, file, line, function, text,
// args).
PyObject* LogFrom(PyObject*, PyObject* args) {
  PyObject *logger, *level, *file, *line, *function, *text, *values;
  if (!PyArg_ParseTuple(args, "OOOOOOO", &logger, &level, &file, &line, &function, &text, &values)) return nullptr;
  Ref name(PyObject_GetAttrString(logger, "name"));
  Ref record(name ? PyObject_CallMethod(logger, "makeRecord", "OOOOOOOO", name.get(), level, file, line, text, values,
                                        Py_None, function)
                  : nullptr);
  return record ? PyObject_CallMethod(logger, "handle", "O", record.get()) : nullptr;
}

PyObject* Function(PyMethodDef* def) {  // kept for ever
  return PyCFunction_New(def, nullptr);
}
PyMethodDef stream_def = {"stream_is_plain", StreamIsPlain, METH_VARARGS, nullptr};
PyMethodDef warning_def = {"warning_is_plain", WarningIsPlain, METH_VARARGS, nullptr};
PyMethodDef warn_def = {"warn_from", WarnFrom, METH_VARARGS, nullptr};
PyMethodDef print_def = {"print_to", PrintTo, METH_VARARGS, nullptr};
PyMethodDef logger_def = {"logger_is_plain", LoggerIsPlain, METH_VARARGS, nullptr};
PyMethodDef log_def = {"log_from", LogFrom, METH_VARARGS, nullptr};

PyObject* LogFunction() {
  static PyObject* const log = Function(&log_def);
  return log;
}

// Is this list one of the handlers or filters by which a record of the logger goes out?
bool GoesOutBy(PyObject* logger, PyObject* list) {
  const auto has = [&](PyObject* o, const char* name) {
    Ref own(PyObject_GetAttrString(o, name));
    if (!own) PyErr_Clear();
    return own.get() == list;
  };
  for (Ref at = Borrow(logger); at && at.get() != Py_None; at = Ref(PyObject_GetAttrString(at.get(), "parent"))) {
    Ref handlers(PyObject_GetAttrString(at.get(), "handlers"));
    bool found = has(at.get(), "handlers") || has(at.get(), "filters");
    for (Py_ssize_t i = 0; handlers && PyList_Check(handlers.get()) && i < PyList_GET_SIZE(handlers.get()); ++i)
      found |= has(PyList_GET_ITEM(handlers.get(), i), "filters");
    if (found) return true;
  }
  return PyErr_Clear(), false;
}

// Guards that the function says True of these arguments (stolen). False: it does not, now.
bool SaysYes(Session& s, PyObject* function, PyObject* arguments) {
  Ref key(arguments), answer(key ? PyObject_CallObject(function, key.get()) : nullptr);
  if (!answer || answer.get() != Py_True) return false;
  s.guards().Equal(s.guards().Child(SourceKind::kAnswer, s.guards().Const(function), 0, key.get()), Py_True);
  s.Keep(Py_NewRef(key.get()));
  return true;
}

// A line of the program, as a warning names it.
struct Origin3 {
  Ref globals, file, function;
  int line = 0;
};

// Gives the place of the `level`th frame from the innermost one. False: it lies outside of what is captured.
bool FrameAt(Session& s, long level, Origin3* out) {
  auto of_code = [&](PyObject* code, PyObject* globals, int line) {
    out->globals = Borrow(globals);
    out->file = Borrow(reinterpret_cast<PyCodeObject*>(code)->co_filename);
    out->function = Borrow(reinterpret_cast<PyCodeObject*>(code)->co_name);
    out->line = line;
    return true;
  };
  PyFrameObject* f = PyEval_GetFrame();
  Ref held = Borrow(reinterpret_cast<PyObject*>(f));
  for (size_t hidden = s.hidden_calls.size(); f; held = Ref(reinterpret_cast<PyObject*>(f))) {
    Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(f)));
    const char* file = PyUnicode_AsUTF8(reinterpret_cast<PyCodeObject*>(code.get())->co_filename);
    if (!file || (strstr(file, "importlib") && strstr(file, "_bootstrap"))) return false;
    if (level-- <= 1) {
      Ref globals(PyFrame_GetGlobals(f));
      return of_code(code.get(), globals.get(), PyFrame_GetLineNumber(f));
    }
    if (f == s.root_frame) return false;
    f = PyFrame_GetBack(f);
    if (!hidden || s.hidden_calls[hidden - 1].caller != f) continue;
    const Session::HiddenCall& h = s.hidden_calls[--hidden];
    for (auto [function, at] : {std::pair{h.inner, h.inner_at}, {h.outer, h.outer_at}})
      if (level-- <= 1) {
        Py_XDECREF(f);
        return of_code(function->func_code, function->func_globals,
                       PyCode_Addr2Line(reinterpret_cast<PyCodeObject*>(function->func_code), 2 * at));
      }
  }
  return false;
}

// Gives what is logged in place of `o`, with the same text at the exit, as a new reference. It is null without an error
// where that is not known.
PyObject* ForLog(Session& s, PyObject* o, bool* ascii) {
  if (IsTensor(o)) return CopyForText(s, o);
  if (PyUnicode_CheckExact(o) || IsUnreadText(o)) *ascii = *ascii && IsAscii(o);
  const bool plain = IsPrimitive(o) || IsUnreadText(o) || IsSymInt(o) || IsSymFloat(o) ||
                     OfType(o, CType::kTorchDType) || OfType(o, CType::kTorchDevice);
  if (plain) return Py_NewRef(o);
  const bool items = PyTuple_CheckExact(o) || OfType(o, CType::kTorchSize);
  if (!items || s.IsOutside(o)) return nullptr;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i) {
    PyObject* item = s.Resolve(PyTuple_GET_ITEM(o, i));
    if (!item || IsTensor(item) || !Ref(ForLog(s, item, ascii))) return nullptr;
  }
  return Py_NewRef(o);
}

bool Clears(const PendingCall& c) {
  Ref name(PyObject_GetAttrString(c.method.get(), "__name__"));
  return name && !PyUnicode_CompareWithASCIIString(name.get(), "clear");
}

// The values of these parameters, positional or by name. False: there are others.
bool Parameters(std::initializer_list<const char*> names, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                PyObject** out) {
  if (nargs > static_cast<Py_ssize_t>(names.size())) return false;
  std::copy(args, args + nargs, out);
  for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); ++i) {
    size_t k = 0;
    while (k < names.size() && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, i), names.begin()[k])) ++k;
    if (k == names.size() || out[k]) return false;
    out[k] = args[nargs + i];
  }
  return true;
}

}  // namespace

PyObject* CopyForText(Session& s, PyObject* o) {
  const TensorMeta& m = s.meta(AsTensor(o)->id);
  if (m.framework != Framework::kTorch || m.requires_grad || m.is_parameter || s.vmap.open() || s.in_custom ||
      s.lowering().IsHidden(AsTensor(o)->id))
    return nullptr;
  return s.CallFramework(callees::kTensorClone, &o, 1, nullptr);
}

bool Session::InLookup() const {
  Ref held = Borrow(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (held && held.get() != reinterpret_cast<PyObject*>(root_frame)) {
    auto* f = reinterpret_cast<PyFrameObject*>(held.get());
    Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(f)));
    PyObject* name = reinterpret_cast<PyCodeObject*>(code.get())->co_name;
    for (const char* lookup : {"__hash__", "__eq__"})
      if (!PyUnicode_CompareWithASCIIString(name, lookup)) return true;
    held = Ref(reinterpret_cast<PyObject*>(PyFrame_GetBack(f)));
  }
  return false;
}

bool Session::WriteCell(PyObject* cell, PyObject* value) {
  if (InLookup()) return Break(BreakId::kSideEffect, "a variable is written while objects are looked up"), false;
  if (PyCell_GET(cell) != value && !DropsQuietly(cell, nullptr)) return Break(BreakId::kSideEffect, kSeenToDie), false;
  pending_.WriteCell(cell, value);
  return true;
}

PyObject* Session::Appended(PyObject* list, PyObject* index) {
  Origin* g = PyList_CheckExact(list) && PyLong_CheckExact(index) ? Find(list) : nullptr;
  if (!g || !g->changes || g->written) return nullptr;
  int overflow;
  long at = PyLong_AsLongAndOverflow(index, &overflow);
  if (at >= 0 || overflow) return nullptr;
  return pending_.PutIn(list, -at);
}

PyObject* Session::Settled(PyObject* list) {
  constexpr Py_ssize_t kFewInList = 4;
  const bool deque = guard::IsDeque(list);
  Origin* g = deque || PyList_CheckExact(list) ? Find(list) : nullptr;
  if (!g || g->kind != Origin::kOutside || g->real || !(deque || g->changes || g->written)) return list;
  const bool cleared = std::any_of(pending_.calls().begin(), pending_.calls().end(), [&](const PendingCall& c) {
    return !c.args.empty() && c.args[0].get() == list && Clears(c);
  });
  // Each number of items is a version of its own. That of a full deque, or of a short one, does not grow for ever, and
  // a short list may be a queue, of which what is too much is taken again.
  const Ref most(deque ? PyObject_GetAttrString(list, "maxlen") : nullptr);
  const Py_ssize_t bound = most && PyLong_CheckExact(most.get()) ? PyLong_AsSsize_t(most.get()) : PY_SSIZE_T_MAX;
  const bool bounded =
      deque ? bound <= kFewItems || PySequence_Size(list) >= bound : PyList_GET_SIZE(list) <= kFewInList;
  return g->written || options_.settles || cleared || bounded ? WriteList(list) : list;
}

PyObject* Session::EmptyLike(PyObject* list, const Source* source) {
  if (PyList_CheckExact(list)) return PyList_New(0);
  static PyObject* const bound = [] {
    Ref module(tensor::Import("operator"));
    return module ? PyObject_CallMethod(module.get(), "attrgetter", "s", "maxlen") : nullptr;
  }();
  Ref most(bound ? PyObject_CallOneArg(bound, list) : nullptr);
  if (!most) return nullptr;
  guards_->Equal(guards_->Child(SourceKind::kMember, source, 0, bound), most.get());
  return PyObject_CallFunction(reinterpret_cast<PyObject*>(Py_TYPE(list)), "()O", most.get());
}

PyObject* Session::WriteList(PyObject* list) {
  Origin* g = Find(list);
  if (g->written) return pending_.Touch(), g->written;
  const bool held = g->shadow && (g->shadow != list || g->viewed);  // Does C code have what it was given?
  if (g->real || held || g->IsGoneThrough() || later || InLookup())
    return Break(BreakId::kSideEffect, "a list that is being gone through is written to");
  // Each item would be read and checked, and so it would be in every call.
  if (constexpr Py_ssize_t kMostItems = 10'000; PyList_CheckExact(list) && PyList_GET_SIZE(list) > kMostItems)
    return Break(BreakId::kSideEffect, "an item of a list of more than 10,000 is written to");
  for (const PendingCall& call : pending_.calls())
    if (call.method.get() == LogFunction() && GoesOutBy(call.args[0].get(), list))
      return Break(BreakId::kSideEffect, "what records of logging read");
  g->shadow = nullptr;
  std::vector<PendingCall> mine = pending_.TakeCalls(list);
  g->changes = false;
  const auto last = std::find_if(mine.rbegin(), mine.rend(), Clears);
  if (!DropsQuietly(list, nullptr)) return Break(BreakId::kSideEffect, kSeenToDie);
  const Source* source = g->source;
  Ref now(EmptyLike(list, source)), items(PySequence_List(list));
  if (!now || !items) return nullptr;
  if (last == mine.rend()) {
    static PyObject* const append = PyUnicode_InternFromString("append");
    if (!NoteLength(list)) return nullptr;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items.get()); ++i) {
      const Source* item = guards_->Child(SourceKind::kItem, source, static_cast<int>(i));
      Ref seen(FromOutside(PyList_GET_ITEM(items.get(), i), item, true));
      if (!seen || !Ref(PyObject_CallMethodOneArg(now.get(), append, seen.get()))) return nullptr;
    }
  }
  if (guard::IsDeque(list) && last == mine.rend())
    pending_.as_read[list] = Ref(Py_BuildValue("(NN)", PySequence_List(now.get()), PyObject_GetIter(now.get())));
  for (auto c = last.base(); c != mine.end(); ++c) {
    std::vector<PyObject*> args = {now.get()};
    for (size_t i = 1; i < c->args.size(); ++i) args.push_back(c->args[i].get());
    if (!Ref(PyObject_Vectorcall(c->method.get(), args.data(), args.size(), nullptr))) return nullptr;
  }
  MarkFresh(now.get());
  Find(now.get())->real = list;
  pending_.WriteList(list);
  return Find(list)->written = now.get();
}

PyObject* CaptureSemantics::Print(PyObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static PyObject *const plain = Function(&stream_def), *const print = Function(&print_def);
  PyObject* how[4] = {};  // sep, end, file, flush
  if (!Parameters({"sep", "end", "file", "flush"}, args + nargs, 0, kwnames, how)) return nullptr;
  for (PyObject*& o : how) o = o ? o : Py_None;
  for (PyObject* text : {how[0], how[1]})
    if (text != Py_None && !PyUnicode_CheckExact(text)) return nullptr;
  if (how[3] != Py_None && !PyBool_Check(how[3])) return nullptr;
  const char* stream = "stdout";
  const bool own = OfType(how[2], CType::kStringIO) && s_.IsPrivate(how[2]);
  if (how[2] != Py_None && !own) {  // as sys has it
    stream = how[2] == PySys_GetObject("stdout") ? "stdout" : how[2] == PySys_GetObject("stderr") ? "stderr" : nullptr;
    const Source* s = stream && s_.IsOutside(how[2]) ? s_.SourceOf(how[2]) : nullptr;
    if (!s || s->kind != SourceKind::kDictItem || s->base->kind != SourceKind::kConst) return nullptr;
    Ref sys(tensor::Import("sys"));
    if (!sys || s->base->object != PyModule_GetDict(sys.get())) return nullptr;
  }
  std::vector<Ref> values;
  bool ascii = true;
  for (Py_ssize_t i = 0; i < nargs; ++i) {
    PyObject* o = args[i];
    if (own && (IsTensor(o) || IsUnreadText(o))) return nullptr;
    if (IsTensor(o)) {  // its text is that of a copy
      values.emplace_back(CopyForText(s_, o));
    } else if (IsUnreadText(o)) {
      values.emplace_back(Py_NewRef(o));
      ascii = ascii && IsAscii(o);
    } else {
      constexpr int kStr = 1;  // FORMAT_VALUE's
      values.emplace_back(PyUnicode_CheckExact(o) ? Py_NewRef(o) : Format(o, kStr, nullptr));
      ascii = ascii && values.back() && PyUnicode_CheckExact(values.back().get()) &&
              PyUnicode_IS_ASCII(values.back().get());
    }
    if (!values.back()) return nullptr;
  }
  if (own) {  // what was made here is written at once
    static PyObject* const names = Py_BuildValue("(ssss)", "sep", "end", "file", "flush");
    std::vector<PyObject*> all;
    for (const Ref& v : values) all.push_back(v.get());
    all.insert(all.end(), {how[0], how[1], how[2], how[3] == Py_None ? Py_False : how[3]});
    return names ? PyObject_Vectorcall(function, all.data(), nargs, names) : nullptr;
  }
  for (PyObject* text : {how[0], how[1]}) ascii = ascii && (text == Py_None || PyUnicode_IS_ASCII(text));
  if (!SaysYes(s_, plain, Py_BuildValue("(sO)", stream, ascii ? Py_True : Py_False))) return PyErr_Clear(), nullptr;
  PendingCall call{Borrow(print), {}};
  call.args.emplace_back(PyUnicode_InternFromString(stream));
  for (PyObject* o : {how[0], how[1], how[3] == Py_None ? Py_False : how[3]}) call.args.push_back(Borrow(o));
  for (Ref& v : values) call.args.push_back(std::move(v));
  s_.pending().Call(std::move(call));
  Py_RETURN_NONE;
}

bool WarnLater(Session& s, PyObject* text, PyObject* category, PyObject* globals, PyObject* file, int line) {
  static PyObject *const plain = Function(&warning_def), *const warn = Function(&warn_def);
  PyObject* module = PyDict_GetItemString(globals, "__name__");
  if (s.modes.warning_scopes || s.InLookup() || !module || !PyUnicode_CheckExact(module)) return false;
  if (!SaysYes(s, plain, Py_BuildValue("(OOiO)", text, category, line, module))) return PyErr_Clear(), false;
  s.recorded = RecordOf(NamedIn("warnings", "_showwarnmsg_impl"));
  Ref seen(s.FromOutside(globals, s.guards().Const(globals)));
  if (!seen) return false;
  s.SourceOf(category);
  PendingCall call{Borrow(warn), {}};
  for (PyObject* o : {text, category, file}) call.args.push_back(Borrow(o));
  call.args.emplace_back(PyLong_FromLong(line));
  call.args.push_back(std::move(seen));
  s.pending().Call(std::move(call));
  return true;
}

PyObject* ToldByTorch(const char* function) {
  static auto& all = *new std::map<std::string_view, PyObject*>;
  PyObject*& told = all[function];
  if (told) return told;
  SuspendScope off;
  Ref module(tensor::Import("framejit._warns"));
  told = module ? PyObject_CallMethod(module.get(), function, nullptr) : nullptr;
  if (!told) PyErr_Clear();
  return told;
}

bool WarnLater(Session& s, PyObject* text, PyObject* category, long level) {
  Origin3 at;
  if (!FrameAt(s, level, &at)) return PyErr_Clear(), false;
  return WarnLater(s, text, category, at.globals.get(), at.file.get(), at.line);
}

PyObject* CaptureSemantics::Warn(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* given[4] = {};
  if (!Parameters({"message", "category", "stacklevel", "source"}, args, nargs, kwnames, given)) return nullptr;
  auto& [text, category, level, source] = given;
  if (!category || category == Py_None) category = PyExc_UserWarning;
  if (!text || !PyUnicode_CheckExact(text) || !PyType_Check(category) || (source && source != Py_None) ||
      (level && !PyLong_CheckExact(level)))
    return nullptr;
  if (PyObject_IsSubclass(category, PyExc_Warning) != 1) return PyErr_Clear(), nullptr;
  return WarnLater(s_, text, category, level ? PyLong_AsLong(level) : 1) ? Py_NewRef(Py_None) : nullptr;
}

// Logger._log, of which the frames of the module logging itself are not the caller.
PyObject* CaptureSemantics::Log(PyFunctionObject* function, PyObject* const* args, Py_ssize_t nargs,
                                PyObject* kwnames) {
  static PyObject* const plain = Function(&logger_def);
  PyObject* given[8] = {};
  if (!Parameters({"self", "level", "msg", "args", "exc_info", "extra", "stack_info", "stacklevel"}, args, nargs,
                  kwnames, given))
    return nullptr;
  auto& [logger, level, text, values, error, extra, stack, depth] = given;
  for (PyObject* none : {error, extra, stack})
    if (none && none != Py_None && none != Py_False) return nullptr;
  if (!logger || !level || !text || !values || !PyLong_CheckExact(level) ||
      !(PyUnicode_CheckExact(text) || IsUnreadText(text)) || !PyTuple_CheckExact(values) ||
      (depth && !PyLong_CheckExact(depth)) || s_.InLookup())
    return nullptr;
  const Source* source = s_.IsOutside(logger) ? s_.SourceOf(logger) : nullptr;
  if (!source) return nullptr;
  bool ascii = IsAscii(text);
  Ref all(PyTuple_New(PyTuple_GET_SIZE(values)));
  for (Py_ssize_t i = 0; all && i < PyTuple_GET_SIZE(values); ++i) {
    PyObject* value = s_.Resolve(PyTuple_GET_ITEM(values, i));
    PyObject* seen = value ? ForLog(s_, value, &ascii) : nullptr;
    if (!seen) return nullptr;
    PyTuple_SET_ITEM(all.get(), i, seen);
  }
  Origin3 at;
  long outside = depth ? PyLong_AsLong(depth) : 1;
  PyObject* own = reinterpret_cast<PyCodeObject*>(function->func_code)->co_filename;
  for (long frame = 1; outside > 0; ++frame) {
    if (!FrameAt(s_, frame, &at)) return PyErr_Clear(), nullptr;
    outside -= PyUnicode_Compare(at.file.get(), own) != 0;
  }
  s_.guards().Is(source, logger);
  if (!all || !SaysYes(s_, plain, Py_BuildValue("(OO)", logger, ascii ? Py_True : Py_False)))
    return PyErr_Clear(), nullptr;
  s_.MarkFresh(all.get());
  for (PyObject* list : s_.pending().lists())
    if (GoesOutBy(logger, list)) return nullptr;
  PendingCall call{Borrow(LogFunction()), {}};
  call.args = {Borrow(logger), Borrow(level), at.file, Ref(PyLong_FromLong(at.line)), at.function, Borrow(text), all};
  s_.pending().Call(std::move(call));
  Py_RETURN_NONE;
}

PyObject* CaptureSemantics::Output(PyObject* function, const char* name, PyObject* const* args, Py_ssize_t nargs,
                                   PyObject* kwnames) {
  if (s_.InLookup()) return nullptr;
  if (!strcmp(name, "print")) return Print(function, args, nargs, kwnames);
  return strcmp(name, "warn") ? nullptr : Warn(args, nargs, kwnames);
}

// While no profiler is on, which is guarded, its ranges do nothing.
PyObject* CaptureSemantics::ProfilerRange(PyObject* scope) {
  static tensor::Named on(callees::kProfilerOn);
  if (!on.Get()) return s_.Break(BreakId::kOutput, "a range of a profiler");
  Ref answer(Asked(on.Get(), nullptr, 0, nullptr));
  if (!answer) return nullptr;
  return answer.get() == Py_False ? Py_NewRef(scope) : s_.Break(BreakId::kOutput, "a range of a profiler");
}

}  // namespace framejit::capture
