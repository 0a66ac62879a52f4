#include "capture/unread_text.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "capture/builtins.h"
#include "capture/callees.h"
#include "capture/modes.h"
#include "capture/proxy.h"
#include "capture/wrappers/tape.h"
#include "tensor/import.h"

namespace framejit::capture {
namespace {

constexpr int kNone = 0, kStr = 1, kRepr = 2, kAscii = 3;  // FORMAT_VALUE's
constexpr int kPercent = 4;                                // The format is one of the operator %.

// Also UnreadMap.
struct UnreadText {
  PyObject_HEAD Session* session;
  // A tuple of texts, of (value, conversion, format), and of None: what is made no more. Of a map: its items.
  PyObject* parts;
};

UnreadText* As(PyObject* o) {
  return reinterpret_cast<UnreadText*>(o);
}

std::nullptr_t Ask(PyObject* o) {
  Session* s = Live(As(o)->session, "text");
  return s ? s->Break(BreakId::kTensorItem, IsUnreadMap(o) ? "a dict whose keys are texts of what tensors hold"
                                                           : "a text of what a tensor holds")
           : nullptr;
}

void Free(PyObject* o) {
  Py_XDECREF(As(o)->parts);
  PyObject_Free(o);
}

PyObject* GetAttr(PyObject* o, PyObject* name) {
  if (PyUnicode_CompareWithASCIIString(name, "__class__") == 0)
    return Py_NewRef(reinterpret_cast<PyObject*>(IsUnreadMap(o) ? &PyDict_Type : &PyUnicode_Type));
  return Ask(o);
}
PyObject* Compare(PyObject* a, PyObject* b, int op) {
  if (b == Py_None && (op == Py_EQ || op == Py_NE)) return PyBool_FromLong(op == Py_NE);
  return Ask(a);
}
PyObject* AskOfTwo(PyObject* a, PyObject* b) {
  return Ask(IsUnreadText(a) || IsUnreadMap(a) ? a : b);
}
Py_ssize_t Length(PyObject* o) {
  return Ask(o), -1;
}
int Contains(PyObject* o, PyObject*) {
  return Ask(o), -1;
}
int StoreItem(PyObject* o, PyObject*, PyObject*) {
  return Ask(o), -1;
}
PyNumberMethods number = {.nb_add = AskOfTwo, .nb_multiply = AskOfTwo, .nb_remainder = AskOfTwo};
PySequenceMethods sequence = {.sq_length = Length, .sq_contains = Contains};
PyMappingMethods mapping = {.mp_length = Length, .mp_subscript = AskOfTwo};
PyNumberMethods number_of_map = {.nb_or = AskOfTwo, .nb_inplace_or = AskOfTwo};
PyMappingMethods mapping_of_map = {.mp_length = Length, .mp_subscript = AskOfTwo, .mp_ass_subscript = StoreItem};

PyObject* Of(Session& s, const std::vector<Ref>& parts, PyTypeObject* type = &UnreadTextType) {
  Ref tuple(PyTuple_New(static_cast<Py_ssize_t>(parts.size())));
  for (size_t i = 0; tuple && i < parts.size(); ++i)
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), Py_NewRef(parts[i].get()));
  auto* text = tuple ? PyObject_New(UnreadText, type) : nullptr;
  if (!text) return nullptr;
  text->session = &s;
  text->parts = tuple.release();
  s.MarkFresh(reinterpret_cast<PyObject*>(text));
  return reinterpret_cast<PyObject*>(text);
}

void Append(std::vector<Ref>* parts, PyObject* text) {
  if (!IsUnreadText(text)) return parts->push_back(Borrow(text));
  PyObject* all = As(text)->parts;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(all); ++i) parts->push_back(Borrow(PyTuple_GET_ITEM(all, i)));
}

// Does every number of the kind of `sample` have a text with this format?
bool Formats(PyObject* sample, PyObject* spec) {
  if (!spec || !PyUnicode_GET_LENGTH(spec)) return true;
  const Py_UCS4 kind = PyUnicode_READ_CHAR(spec, PyUnicode_GET_LENGTH(spec) - 1);
  if (kind == 'c' || kind == 'n') return false;  // That of a character, and as the locale has it.
  const Ref text(PyObject_Format(sample, spec));
  if (!text) PyErr_Clear();
  return static_cast<bool>(text);
}

// Is what the tensor's class has under this name torch's own?
bool IsTorchs(Session& s, bool parameter, const char* name) {
  Ref text(PyUnicode_InternFromString(name));
  PyObject* found = s.NoteLookup(reinterpret_cast<PyTypeObject*>(PlainTensorClass(parameter)), text.get());
  return found && PyFunction_Check(found) &&
         IsCodeOf(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(found)), "torch");
}

// A number that only a run knows: what stands for it, and a number of its kind.
struct Number {
  Ref value, sample;
  bool whole = false;
};

bool OnlyTheRunKnows(Session& s, PyObject* o) {
  return IsSymInt(o) && reinterpret_cast<SymInt*>(o)->session == &s &&
         s.env().AtRun(reinterpret_cast<SymInt*>(o)->expr);
}

bool IsUnknown(Session& s, PyObject* o) {
  return IsTensor(o) || IsItemFloat(o) || IsUnreadText(o) || OnlyTheRunKnows(s, o);
}

bool MayHaveText(Session& s, PyObject* o) {
  const TensorMeta& m = s.meta(AsTensor(o)->id);
  if (m.framework != Framework::kTorch || m.device.kind == DeviceKind::kMeta || s.vmap.open() || TapeOf(s))
    return false;
  Ref type(TensorClass(s, o));
  if (!type || type.get() != PlainTensorClass(m.is_parameter)) return PyErr_Clear(), false;
  return IsTorchs(s, m.is_parameter, "__format__") && IsTorchs(s, m.is_parameter, "__repr__");
}

std::optional<Number> NumberOf(Session& s, PyObject* o) {
  if (IsItemFloat(o)) return Number{Borrow(o), Ref(PyFloat_FromDouble(0))};
  if (OnlyTheRunKnows(s, o)) return Number{Borrow(o), Ref(PyLong_FromLong(0)), true};
  if (!IsTensor(o) || !MayHaveText(s, o)) return {};
  const TensorMeta m = s.meta(AsTensor(o)->id);
  if (m.is_parameter || !m.sizes.empty() || (s.lowering().IsHidden(AsTensor(o)->id) && !s.in_custom)) return {};
  if (IsFloat(m.dtype)) {
    Ref item(NewItemFloat(s, o));
    if (!item) return {};
    return Number{std::move(item), Ref(PyFloat_FromDouble(0))};
  }
  if (!IsInteger(m.dtype) && !IsBool(m.dtype)) return {};
  Ref copy(s.CallFramework(callees::kTensorClone, &o, 1, nullptr));
  if (!copy) return {};
  return Number{std::move(copy), IsBool(m.dtype) ? Borrow(Py_False) : Ref(PyLong_FromLong(0)), true};
}

PyObject* OfValue(Session& s, PyObject* value, int conversion, PyObject* format) {
  Ref none(format ? nullptr : PyUnicode_FromString("")), part;
  part = Ref(Py_BuildValue("(OiO)", value, conversion, format ? format : none.get()));
  if (!part) return nullptr;
  s.MarkFresh(part.get());
  std::vector<Ref> parts;
  parts.push_back(std::move(part));
  return Of(s, parts);
}

// Text of a tensor is as the framework is set to print. May that be done behind the run, too?
bool PrintsAsLater(Session& s) {
  static PyObject* const options = tensor::ResolveCallee("torch._tensor_str.PRINT_OPTS");
  Ref dict(options ? PyObject_GetAttrString(options, "__dict__") : nullptr);
  if (!dict) return PyErr_Clear(), false;
  return !s.pending().Writes(dict.get()) && !s.pending().Writes(options) &&
         s.modes.now.default_float == s.modes.entry.default_float;
}

// TextMaker()(*parts): the text, behind the run.
PyObject* Make(PyObject*, PyObject* parts) {
  Ref texts(PyList_New(0)), nothing(PyUnicode_FromString(""));
  for (Py_ssize_t i = 0; texts && nothing && i < PyTuple_GET_SIZE(parts); ++i) {
    PyObject *part = PyTuple_GET_ITEM(parts, i), *value, *format;
    int conversion;
    Ref text = Borrow(part);
    if (PyTuple_Check(part)) {
      if (!PyArg_ParseTuple(part, "OiO", &value, &conversion, &format)) return nullptr;
      Ref seen(conversion == kStr     ? PyObject_Str(value)
               : conversion == kRepr  ? PyObject_Repr(value)
               : conversion == kAscii ? PyObject_ASCII(value)
                                      : PyTuple_Pack(1, value));
      if (!seen) return nullptr;
      text = Ref(conversion == kPercent ? PyUnicode_Format(format, seen.get())
                                        : PyObject_Format(conversion ? seen.get() : value, format));
    }
    if (!text || PyList_Append(texts.get(), text.get()) < 0) return nullptr;
  }
  return texts && nothing ? PyUnicode_Join(nothing.get(), texts.get()) : nullptr;
}
PyMethodDef make_def = {"text_of_parts", Make, METH_VARARGS, nullptr};

// One field of a format of %.
struct Field {
  std::string literal;  // what stands in front of it
  std::string spec;     // with its %; empty at the end
};

// Nothing: it asks for more than the next value.
std::optional<std::vector<Field>> FieldsOf(std::string_view text) {
  std::vector<Field> fields(1);
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      fields.back().literal += text[i];
      continue;
    }
    const size_t end = text.find_first_not_of("-+ #0123456789.", i + 1);
    if (end == text.npos) return {};
    if (text[end] == '%') {
      if (end != i + 1) return {};
      fields.back().literal += '%';
    } else {
      if (!strchr("srdifFeEgG", text[end])) return {};
      fields.back().spec = text.substr(i, end + 1 - i);
      fields.emplace_back();
    }
    i = end;
  }
  return fields;
}

// The text of one value by a field of a format of %. Null without an error: nothing is known of that.
Ref ByField(CaptureSemantics& c, Session& s, PyObject* value, const std::string& spec) {
  Ref how(PyUnicode_FromString(spec.c_str())), one(PyTuple_Pack(1, value));
  if (!how || !one) return {};
  constexpr int kRemainder = 6;  // the operator's number in CaptureSemantics::Binary
  if (!IsUnknown(s, value)) return Ref(c.Binary(kRemainder, how.get(), s.MarkFresh(one.get())));
  const char kind = spec.back();
  if (kind == 's' || kind == 'r')
    return spec.size() == 2 ? Ref(UnreadFormat(s, value, kind == 's' ? kStr : kRepr, nullptr)) : Ref();
  if (IsUnreadText(value)) return {};
  std::optional<Number> n = NumberOf(s, value);
  const bool integer = kind == 'd' || kind == 'i';
  return n && (n->whole || !integer) ? Ref(OfValue(s, n->value.get(), kPercent, how.get())) : Ref();
}

PyObject* Percent(CaptureSemantics& c, Session& s, PyObject* format, PyObject* values) {
  const bool many = PyTuple_CheckExact(values);
  const Py_ssize_t n = many ? PyTuple_GET_SIZE(values) : 1;
  PyObject* const* items = many ? &PyTuple_GET_ITEM(values, 0) : &values;
  std::vector<PyObject*> seen;
  bool unknown = false;
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* item = many && s.IsOutside(values) ? nullptr : s.Resolve(items[i]);
    if (!item) return nullptr;
    seen.push_back(item);
    unknown = unknown || IsUnknown(s, item);
  }
  Py_ssize_t size;
  const char* text = unknown ? PyUnicode_AsUTF8AndSize(format, &size) : nullptr;
  if (!text) return PyErr_Clear(), nullptr;
  const std::optional<std::vector<Field>> fields = FieldsOf({text, static_cast<size_t>(size)});
  if (!fields || static_cast<Py_ssize_t>(fields->size()) != n + 1) return nullptr;
  std::vector<Ref> parts;
  for (size_t i = 0; i < fields->size(); ++i) {
    const Field& f = (*fields)[i];
    Ref literal(PyUnicode_FromStringAndSize(f.literal.data(), static_cast<Py_ssize_t>(f.literal.size())));
    if (!literal) return nullptr;
    parts.push_back(std::move(literal));
    if (f.spec.empty()) continue;
    Ref one = ByField(c, s, seen[i], f.spec);
    if (!one) return nullptr;
    Append(&parts, one.get());
  }
  return Of(s, parts);
}

}  // namespace

PyTypeObject UnreadTextType = {
    .ob_base = {PyObject_HEAD_INIT(nullptr) 0},
    .tp_name = "framejit.UnreadText",
    .tp_basicsize = sizeof(UnreadText),
    .tp_dealloc = Free,
    .tp_repr = Asks<Ask>::Unary,
    .tp_as_number = &number,
    .tp_as_sequence = &sequence,
    .tp_as_mapping = &mapping,
    .tp_hash = Asks<Ask>::Hash,
    .tp_str = Asks<Ask>::Unary,
    .tp_getattro = GetAttr,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_richcompare = Compare,
    .tp_iter = Asks<Ask>::Unary,
};

PyTypeObject UnreadMapType = {
    .ob_base = {PyObject_HEAD_INIT(nullptr) 0},
    .tp_name = "framejit.UnreadMap",
    .tp_basicsize = sizeof(UnreadText),
    .tp_dealloc = Free,
    .tp_repr = Asks<Ask>::Unary,
    .tp_as_number = &number_of_map,
    .tp_as_sequence = &sequence,
    .tp_as_mapping = &mapping_of_map,
    .tp_hash = PyObject_HashNotImplemented,
    .tp_str = Asks<Ask>::Unary,
    .tp_getattro = GetAttr,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_richcompare = Compare,
    .tp_iter = Asks<Ask>::Unary,
};

PyObject* UnreadMap(Session& s, PyObject* const* keys_values, Py_ssize_t n, Py_ssize_t stride) {
  bool unread = false;
  for (Py_ssize_t i = 0; i < n; ++i) unread = unread || IsUnreadText(keys_values[i * stride]);
  if (!unread) return nullptr;
  std::vector<Ref> items;
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* key = keys_values[i * stride];
    if (!IsUnreadText(key) && !PyUnicode_CheckExact(key)) return nullptr;  // its hash may be its own
    items.emplace_back(PyTuple_Pack(2, key, keys_values[i * stride + 1]));
    if (!items.back()) return nullptr;
    s.MarkFresh(items.back().get());
  }
  return Of(s, items, &UnreadMapType);
}

PyObject* ItemsOfMap(PyObject* map) {
  return Py_NewRef(As(map)->parts);
}

std::nullptr_t AskUnreadText(PyObject* text) {
  return Ask(text);
}

PyObject* UnreadFormat(Session& s, PyObject* value, int conversion, PyObject* spec) {
  if (!IsUnknown(s, value) || (spec && !PyUnicode_CheckExact(spec))) return nullptr;
  const bool plain = !spec || !PyUnicode_GET_LENGTH(spec);
  if (IsUnreadText(value)) return plain && conversion <= kStr ? Py_NewRef(value) : Ask(value);
  if (conversion == kNone || !IsTensor(value)) {
    if (std::optional<Number> n = NumberOf(s, value)) {
      const Ref sample(conversion ? PyObject_Str(n->sample.get()) : Py_XNewRef(n->sample.get()));
      return sample && Formats(sample.get(), spec) ? OfValue(s, n->value.get(), conversion, spec) : nullptr;
    }
    if (s.broken() || PyErr_Occurred() || !IsTensor(value) || s.meta(AsTensor(value)->id).sizes.empty()) return nullptr;
  }
  if (!MayHaveText(s, value) || (conversion == kNone && !plain)) return nullptr;
  const Ref sample(PyUnicode_FromString(""));
  if (!sample || !Formats(sample.get(), spec)) return nullptr;
  Ref copy(PrintsAsLater(s) ? CopyForText(s, value) : nullptr);
  if (copy) return OfValue(s, copy.get(), conversion ? conversion : kStr, spec);
  if (s.broken() || PyErr_Occurred()) return nullptr;
  std::vector<Ref> parts;
  parts.push_back(Borrow(Py_None));
  return Of(s, parts);
}

PyObject* UnreadJoined(Session& s, PyObject* const* parts, Py_ssize_t n) {
  bool unread = false;
  std::vector<Ref> all;
  for (Py_ssize_t i = 0; i < n; ++i) {
    unread = unread || IsUnreadText(parts[i]);
    if (!IsUnreadText(parts[i]) && !PyUnicode_CheckExact(parts[i])) return nullptr;
    Append(&all, parts[i]);
  }
  return unread ? Of(s, all) : nullptr;
}

PyObject* UnreadOperator(CaptureSemantics& c, Session& s, binaryfunc f, PyObject* a, PyObject* b) {
  PyObject* const two[] = {a, b};
  if (f == PyNumber_Add || f == PyNumber_InPlaceAdd) return UnreadJoined(s, two, 2);
  return f == PyNumber_Remainder && PyUnicode_CheckExact(a) ? Percent(c, s, a, b) : nullptr;
}

PyObject* WhichTextIs(PyObject* a, PyObject* b) {
  for (auto [text, other] : {std::pair{a, b}, {b, a}})
    if (IsUnreadText(text) && a != b && (PyUnicode_CheckExact(other) || IsUnreadText(other))) return text;
  return nullptr;
}

PyObject* UnreadFields(CaptureSemantics& c, Session& s, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  const Py_ssize_t total = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
  bool unknown = false;
  for (Py_ssize_t i = 1; i < total; ++i) unknown = unknown || IsUnknown(s, args[i]);
  if (!unknown || !PyUnicode_CheckExact(args[0])) return nullptr;
  static PyObject* const parse = FromModule("_string", "formatter_parser");
  Ref it(parse ? PyObject_CallOneArg(parse, args[0]) : nullptr);
  std::vector<Ref> parts;
  Py_ssize_t next = 1;
  for (Ref field; it && (field = Ref(PyIter_Next(it.get())));) {
    PyObject *literal, *name, *spec, *how;
    if (!PyArg_ParseTuple(field.get(), "OOOO", &literal, &name, &spec, &how)) return nullptr;
    parts.push_back(Borrow(literal));
    if (name == Py_None) continue;
    PyObject* value = nullptr;
    if (!PyUnicode_GET_LENGTH(name)) value = next < nargs ? args[next++] : nullptr;
    // "0", "a.b" and "a[0]" are no names, whatever keys **kwargs has.
    for (Py_ssize_t i = nargs; !value && kwnames && i < total && PyUnicode_IsIdentifier(name) == 1; ++i)
      if (PyUnicode_Compare(PyTuple_GET_ITEM(kwnames, i - nargs), name) == 0) value = args[i];
    const Py_UCS4 kind = how == Py_None ? 0 : PyUnicode_READ_CHAR(how, 0);
    const int conversion = kind == 's' ? kStr : kind == 'r' ? kRepr : kind == 'a' ? kAscii : kNone;
    if (!value || PyUnicode_FindChar(spec, '{', 0, PyUnicode_GET_LENGTH(spec), 1) != -1) return nullptr;
    Ref text(c.Format(value, conversion, PyUnicode_GET_LENGTH(spec) ? spec : nullptr));
    if (!text) return nullptr;
    Append(&parts, text.get());
  }
  if (PyErr_Occurred()) return s.broken() ? nullptr : (PyErr_Clear(), nullptr);
  return Of(s, parts);
}

bool IsAscii(PyObject* text) {
  if (!IsUnreadText(text)) return PyUnicode_CheckExact(text) && PyUnicode_IS_ASCII(text);
  PyObject* parts = As(text)->parts;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts); ++i) {
    PyObject* part = PyTuple_GET_ITEM(parts, i);
    if (PyTuple_Check(part)) part = PyTuple_GET_ITEM(part, 2);  // The format: it may fill with a character.
    if (!PyUnicode_Check(part) || !PyUnicode_IS_ASCII(part)) return false;
  }
  return true;
}

PyObject* PartsOf(PyObject* text) {
  PyObject* parts = As(text)->parts;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts); ++i)
    if (PyTuple_GET_ITEM(parts, i) == Py_None) return nullptr;
  return Py_NewRef(parts);
}

PyObject* TextMaker() {
  static PyObject* const make = PyCFunction_New(&make_def, nullptr);
  return make;
}

}  // namespace framejit::capture
