#include "capture/defaults.h"

#include "capture/arg_vector.h"
#include "capture/session.h"

namespace framejit::capture {

bool GiveTensorDefaults(Session& s, PyFunctionObject* fn, PyObject* const* args, size_t nargs, PyObject* kwnames,
                        std::vector<PyObject*>* all, std::vector<Ref>* held, Ref* names) {
  auto* code = reinterpret_cast<PyCodeObject*>(fn->func_code);
  std::vector<PyObject*> added;
  const Source* of = nullptr;
  auto give = [&](PyObject* name, PyObject* value, SourceKind kind, SourceKind item, int i, PyObject* key) {
    if (tensor::Classify(value) == tensor::Class::kNone) return true;
    for (Py_ssize_t k = 0; k < KwCount(kwnames); ++k)
      if (PyUnicode_Compare(PyTuple_GET_ITEM(kwnames, k), name) == 0) return true;
    if (!of) of = s.SourceOf(reinterpret_cast<PyObject*>(fn));
    if (!of) return false;
    held->emplace_back(s.FromOutside(value, s.guards().Child(item, s.guards().Child(kind, of), i, key)));
    added.push_back(name);
    return static_cast<bool>(held->back());
  };
  const Py_ssize_t count = fn->func_defaults ? PyTuple_GET_SIZE(fn->func_defaults) : 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    const Py_ssize_t at = code->co_argcount - count + i;
    if (at < static_cast<Py_ssize_t>(nargs) || at < code->co_posonlyargcount) continue;
    if (!give(PyTuple_GET_ITEM(code->co_localsplusnames, at), PyTuple_GET_ITEM(fn->func_defaults, i),
              SourceKind::kDefaults, SourceKind::kItem, static_cast<int>(i), nullptr))
      return false;
  }
  PyObject *key, *value;
  for (Py_ssize_t at = 0; fn->func_kwdefaults && PyDict_Next(fn->func_kwdefaults, &at, &key, &value);)
    if (!give(key, value, SourceKind::kKwDefaults, SourceKind::kDictItem, 0, key)) return false;
  if (added.empty()) return true;
  all->assign(args, args + nargs + KwCount(kwnames));
  for (const Ref& value : *held) all->push_back(value.get());
  *names = Ref(PyTuple_New(KwCount(kwnames) + static_cast<Py_ssize_t>(added.size())));
  if (!*names) return false;
  Py_ssize_t n = 0;
  for (; n < KwCount(kwnames); ++n) PyTuple_SET_ITEM(names->get(), n, Py_NewRef(PyTuple_GET_ITEM(kwnames, n)));
  for (PyObject* name : added) PyTuple_SET_ITEM(names->get(), n++, Py_NewRef(name));
  return true;
}

}  // namespace framejit::capture
