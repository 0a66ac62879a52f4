#include "frame/recorder.h"

namespace framejit::frame {
namespace {

class Recorder : public FramePolicy, private ConcreteSemantics {
 public:
  explicit Recorder(PyObject* list) : list_(Py_NewRef(list)) {}
  ~Recorder() override { Py_DECREF(list_); }

  bool Wants(FjFrame*) override { return false; }
  Semantics* Override(FjFrame*) override { return this; }
  Action At(FjFrame*, PyObject**) override { return Action::kHandOver; }

 private:
  bool Before(FjFrame* frame, int) override {
    code_ = reinterpret_cast<PyObject*>(fj_code(frame));
    return true;
  }

  void Note(const char* kind, PyObject* object, PyObject* key = Py_None) {
    PyObject* read = Py_BuildValue("(sOOO)", kind, object, key, code_);
    if (!read || PyList_Append(list_, read) < 0) PyErr_Clear();
    Py_XDECREF(read);
  }

  PyObject* Call(PyObject* callable, PyObject* const* args, size_t nargsf, PyObject* kwnames) override {
    Py_ssize_t n = PyVectorcall_NARGS(nargsf) + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
    PyObject* all = ConcreteSemantics::BuildTuple(args, n);
    if (!all) return nullptr;
    Note("call", callable, all);
    Py_DECREF(all);
    return ConcreteSemantics::Call(callable, args, nargsf, kwnames);
  }
  PyObject* CallEx(PyObject* callable, PyObject* args, PyObject* kwargs) override {
    Note("call", callable, args);
    if (kwargs) Note("iterate", kwargs);
    return ConcreteSemantics::CallEx(callable, args, kwargs);
  }
  PyObject* LoadAttr(PyObject* object, PyObject* name) override {
    Note("attribute", object, name);
    return ConcreteSemantics::LoadAttr(object, name);
  }
  int LoadMethod(PyObject* object, PyObject* name, PyObject** method) override {
    Note("attribute", object, name);
    return ConcreteSemantics::LoadMethod(object, name, method);
  }
  PyObject* LoadSuperAttr(PyObject* super, PyObject* cls, PyObject* self, PyObject* name) override {
    Note("attribute", self, name);
    return ConcreteSemantics::LoadSuperAttr(super, cls, self, name);
  }
  PyObject* LoadSpecial(PyObject* object, PyObject* name) override {
    Note("attribute", object, name);
    return ConcreteSemantics::LoadSpecial(object, name);
  }
  PyObject* ImportFrom(PyObject* module, PyObject* name) override {
    Note("attribute", module, name);
    return ConcreteSemantics::ImportFrom(module, name);
  }
  PyObject* LoadGlobal(PyObject* globals, PyObject* builtins, PyObject* name) override {
    Note("global", globals, name);
    return ConcreteSemantics::LoadGlobal(globals, builtins, name);
  }
  PyObject* LoadCell(PyObject* cell) override {
    Note("variable", cell);
    return ConcreteSemantics::LoadCell(cell);
  }
  PyObject* GetItem(PyObject* object, PyObject* key) override {
    Note("item", object, key);
    return ConcreteSemantics::GetItem(object, key);
  }
  int Contains(PyObject* container, PyObject* value) override {
    Note("contains", container, value);
    return ConcreteSemantics::Contains(container, value);
  }
  PyObject* Binary(int nb_op, PyObject* a, PyObject* b) override {
    Note("operate", a, b);
    return ConcreteSemantics::Binary(nb_op, a, b);
  }
  PyObject* Unary(int kind, PyObject* a) override {
    Note("operate", a);
    return ConcreteSemantics::Unary(kind, a);
  }
  PyObject* Compare(PyObject* a, PyObject* b, int op) override {
    Note("operate", a, b);
    return ConcreteSemantics::Compare(a, b, op);
  }
  int Truth(PyObject* a) override {
    Note("operate", a);
    return ConcreteSemantics::Truth(a);
  }
  PyObject* Format(PyObject* value, int conversion, PyObject* spec) override {
    Note("operate", value);
    return ConcreteSemantics::Format(value, conversion, spec);
  }
  PyObject* Iter(PyObject* object) override {
    Note("iterate", object);
    return ConcreteSemantics::Iter(object);
  }
  int Unpack(PyObject* sequence, int before, int after, PyObject** items) override {
    Note("iterate", sequence);
    return ConcreteSemantics::Unpack(sequence, before, after, items);
  }
  int ListExtend(PyObject* list, PyObject* iterable) override {
    Note("iterate", iterable);
    return ConcreteSemantics::ListExtend(list, iterable);
  }
  int SetUpdate(PyObject* set, PyObject* iterable) override {
    Note("iterate", iterable);
    return ConcreteSemantics::SetUpdate(set, iterable);
  }
  int DictUpdate(PyObject* dict, PyObject* other) override {
    Note("iterate", other);
    return ConcreteSemantics::DictUpdate(dict, other);
  }
  int DictMerge(PyObject* dict, PyObject* other, PyObject* callee) override {
    Note("iterate", other);
    return ConcreteSemantics::DictMerge(dict, other, callee);
  }

  PyObject* list_;
  PyObject* code_ = nullptr;  // of the frame whose instruction runs
};

}  // namespace

FramePolicy* NewRecorder(PyObject* list) {
  return new Recorder(list);
}

}  // namespace framejit::frame
