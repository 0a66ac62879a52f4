// The statements `import` and `from ... import`: what is loaded already is found again, guarded by sys.modules.
#include <string>

#include "capture/builtins.h"
#include "capture/proxy.h"
#include "capture/semantics.h"
#include "guard/source.h"

namespace framejit::capture {

// What `from ..name import` names, `level` packages up, as seen from a module that knows its package (importlib would
// ask the module's spec, too, only to warn). Null: importlib shall say.
static Ref AbsoluteName(Session& s, PyObject* globals, PyObject* name, long level) {
  static PyObject* const key = PyUnicode_InternFromString("__package__");
  bool found;
  Ref package(s.ReadDictItem(globals, s.guards().Const(globals), key, &found));
  if (!found || !package || !PyUnicode_CheckExact(package.get())) return Ref();
  const char *whole = PyUnicode_AsUTF8(package.get()), *tail = PyUnicode_AsUTF8(name);
  if (!whole || !tail) return PyErr_Clear(), Ref();
  std::string absolute = whole;
  for (; level > 1; --level) {
    const size_t dot = absolute.rfind('.');
    if (dot == absolute.npos) return Ref();
    absolute.resize(dot);
  }
  if (absolute.empty()) return Ref();
  if (*tail) absolute += std::string(".") + tail;
  return Ref(PyUnicode_FromStringAndSize(absolute.data(), absolute.size()));
}

PyObject* CaptureSemantics::Import(PyObject* name, PyObject* globals, PyObject* locals, PyObject* fromlist,
                                   PyObject* level) {
  if (s_.broken()) return s_.Break(s_.reason().id);
  if (!(fromlist = s_.Resolve(fromlist)) || !(level = s_.Resolve(level))) return nullptr;
  static PyObject* const import_name = PyUnicode_InternFromString("__import__");
  PyObject *modules = PyImport_GetModuleDict(), *builtins = PyEval_GetBuiltins();
  const Source* all = s_.guards().Const(modules);
  bool found;
  Ref import(s_.ReadDictItem(builtins, s_.guards().Const(builtins), import_name, &found));
  if (s_.broken() || PyErr_Occurred()) return nullptr;
  if (!import || !PyCFunction_Check(import.get())) return s_.Break(BreakId::kImport, "builtins.__import__");
  Ref lv(PyNumber_Index(level)), absolute, zero(PyLong_FromLong(0));
  if (lv && PyLong_AsLong(lv.get()) > 0) {
    absolute = AbsoluteName(s_, globals, name, PyLong_AsLong(lv.get()));
    if (s_.broken() || PyErr_Occurred()) return nullptr;
    if (absolute) name = absolute.get(), level = zero.get(), lv = Ref(PyLong_FromLong(0));
  }
  if (lv && PyLong_AsLong(lv.get()) == 0) {
    Ref loaded(s_.ReadDictItem(modules, all, name, &found));
    if (s_.broken() || PyErr_Occurred()) return nullptr;
    if (!found) return s_.Break(BreakId::kImport, PyUnicode_AsUTF8(name));
  }
  // Everything is loaded, so importing again only finds it. (A missing submodule would run code, but then its parent is
  // missing, too.)
  Ref m(frame::Semantics::Import(name, globals, locals, fromlist, level));
  if (!m) return nullptr;
  Ref own(PyModule_Check(m.get()) ? PyModule_GetNameObject(m.get()) : nullptr);  // the package, or found from another
  if (!own) PyErr_Clear();
  if (own && PyDict_GetItemWithError(modules, own.get()) == m.get()) {
    Ref again(s_.ReadDictItem(modules, all, own.get(), &found));
    if (!again) return nullptr;
  }
  s_.SourceOf(m.get());
  return m.release();
}

PyObject* CaptureSemantics::ImportFrom(PyObject* module, PyObject* name) {
  PyObject* v = LoadAttr(module, name);
  // A submodule that is loaded, or an ImportError: CPython says which.
  if (!v && !s_.broken() && PyErr_ExceptionMatches(PyExc_AttributeError)) PyErr_Clear();
  return v;
}

}  // namespace framejit::capture
