// What a guard set covers, for tests that compare it with what Python reads (tests/python/lookups.py).
#include "guard/program.h"

namespace framejit::guard {

PyObject* cover_list = nullptr;

namespace {

PyObject* OrNone(PyObject* o) {
  return o ? o : Py_None;
}

// (kind, what it expects) of one test.
Ref Told(const Program& p, const Test& t) {
  static constexpr const char* kNames[] = {
#define X(e, n) n,
      FRAMEJIT_GUARDS(X)
#undef X
  };
  Ref what = Ref::Borrow(OrNone(t.expected.get()));
  if (t.kind == Kind::kTypeVersion) {  // the names that matter, or None: all
    const TypeTest& type = p.types[t.extra];
    what = type.all ? Ref::Borrow(Py_None) : Ref(PyList_New(0));
    if (what && !type.all)
      for (const auto& item : type.attributes) PyList_Append(what.get(), item.name.get());
  }
  return what ? Ref(Py_BuildValue("(sO)", kNames[static_cast<int>(t.kind)], what.get())) : Ref();
}

class Teller {
 public:
  Teller(const Program& p, PyObject* list) : p_(p), list_(list) {}

  // (kind of the source, what it is read from, key, tests)
  void Tell(const Source& s, PyObject* from, PyObject* value,
            std::initializer_list<std::pair<int32_t, int32_t>> tests) {
    static constexpr const char* kNames[] = {
#define X(e, n) n,
        FRAMEJIT_SOURCES(X)
#undef X
    };
    Ref told(PyList_New(0));
    for (const auto& [first, last] : tests)
      for (int32_t i = first; told && i < last; ++i)
        if (Ref t = Told(p_, p_.tests[i])) PyList_Append(told.get(), t.get());
    Ref key = s.kind != SourceKind::kConst && s.object ? Ref::Borrow(s.object) : Ref(PyLong_FromLong(s.index));
    Ref row(told && key ? Py_BuildValue("(sOOOO)", kNames[static_cast<int>(s.kind)], OrNone(from), key.get(),
                                        OrNone(value), told.get())
                        : nullptr);
    if (!row || PyList_Append(list_, row.get()) < 0) PyErr_Clear();
  }

  // Of kEntries, as if it was asked of each name by itself.
  void TellEntry(PyObject* dict, PyObject* name, bool empty) {
    Ref row(Py_BuildValue("(sOOO[(sO)])", "dict_item", OrNone(dict), name, OrNone(DictLookup(dict, name)),
                          empty ? "no items" : "absent", Py_None));
    if (!row || PyList_Append(list_, row.get()) < 0) PyErr_Clear();
  }

 private:
  const Program& p_;
  PyObject* list_;
};

}  // namespace

void Program::Cover(PyObject* const* slots) const {
  if (!cover_list) return;
  Teller teller(*this, cover_list);
  std::vector<PyObject*> values(nodes.size());
  std::vector<std::pair<int32_t, int32_t>> found_by(nodes.size());
  for (const Lookup& l : lookups)
    if (l.has_node()) found_by[l.node] = {l.first, l.last};
  KeyList key_list;
  for (size_t n = 0; n < nodes.size(); ++n) {
    const Node& node = nodes[n];
    MemberCache none;
    PyObject* from = node.parent >= 0 ? values[node.parent] : nullptr;
    PyObject* value = values[n] = Step(*nodes[n].source, from, slots, &none, &key_list);
    std::pair<int32_t, int32_t> keys;
    if (node.group >= 0) keys = {groups[node.group].keys_first, groups[node.group].keys_last};
    teller.Tell(*nodes[n].source, from, value, {{node.first, node.last}, found_by[n], keys});
    for (int32_t i = keys.first; i < keys.second; ++i) {
      if (tests[i].kind != Kind::kEntries) continue;
      for (bool empty : {false, true})
        for (PyObject* name : EntryNames(tests[i].expected.get(), empty)) teller.TellEntry(value, name, empty);
    }
    for (int32_t l = node.group < 0 ? 0 : groups[node.group].first; node.group >= 0 && l < groups[node.group].last; ++l)
      if (!lookups[l].has_node())
        teller.Tell(SourceOf(lookups[l]), value, DictLookup(value, SourceOf(lookups[l]).object),
                    {{lookups[l].first, lookups[l].last}});
  }
}

}  // namespace framejit::guard
