#include "tensor/numpy_api.h"

#include <array>
#include <cstring>
#include <string>

#include "diag/diag.h"

namespace framejit::tensor {

const NumpyApi* bound_numpy = nullptr;

namespace {

struct TypeRow {
  int type_num;
  DType dtype;
  const char* name;
};
// long is 64 bits here; "long long" is a spare type with the same meaning and another identity: not captured.
constexpr TypeRow kTypes[] = {
    {0, DType::kBool, "bool_"},           {1, DType::kInt8, "int8"},
    {2, DType::kUInt8, "uint8"},          {3, DType::kInt16, "int16"},
    {4, DType::kUInt16, "uint16"},        {5, DType::kInt32, "int32"},
    {6, DType::kUInt32, "uint32"},        {7, DType::kInt64, "int64"},
    {8, DType::kUInt64, "uint64"},        {23, DType::kFloat16, "float16"},
    {11, DType::kFloat32, "float32"},     {12, DType::kFloat64, "float64"},
    {14, DType::kComplex64, "complex64"}, {15, DType::kComplex128, "complex128"},
};

bool Bind(NumpyApi& n) {
  PyObject* modules = PyImport_GetModuleDict();
  PyObject* umath = PyDict_GetItemString(modules, "numpy._core._multiarray_umath");
  Ref capsule(Attr(umath, "_ARRAY_API"));
  void** table = capsule && PyCapsule_CheckExact(capsule.get())
                     ? static_cast<void**>(PyCapsule_GetPointer(capsule.get(), nullptr))
                     : nullptr;
  PyErr_Clear();
  n.array = reinterpret_cast<PyTypeObject*>(Attr(n.module, "ndarray"));
  n.generic = reinterpret_cast<PyTypeObject*>(Attr(n.module, "generic"));
  if (!table || !n.array || !n.generic || table[2] != n.array) return false;
  auto descr_from_type = reinterpret_cast<PyObject* (*)(int)>(table[45]);
  n.make_scalar = reinterpret_cast<decltype(n.make_scalar)>(table[60]);
  n.new_from_descr = reinterpret_cast<decltype(n.new_from_descr)>(table[94]);
  n.set_base = reinterpret_cast<decltype(n.set_base)>(table[282]);
  n.set_memory = reinterpret_cast<decltype(n.set_memory)>(table[304]);
  n.get_memory = reinterpret_cast<decltype(n.get_memory)>(table[305]);
  n.own_memory = *static_cast<PyObject**>(table[306]);
  for (const TypeRow& r : kTypes) {
    int i = static_cast<int>(r.dtype);
    n.descr[i] = descr_from_type(r.type_num);
    n.scalar[i] = reinterpret_cast<PyTypeObject*>(Attr(n.module, r.name));
    auto* d = reinterpret_cast<NumpyDescr*>(n.descr[i]);
    if (!d || d->type_num != r.type_num || d->typeobj != n.scalar[i]) return false;  // the struct is not what we think
    n.descr_types[i] = Py_TYPE(n.descr[i]);
  }
  constexpr int kObject = 17;
  n.object_descr = descr_from_type(kObject);
  return n.object_descr && reinterpret_cast<NumpyDescr*>(n.object_descr)->type_num == kObject;
}

// Before 2.0 results had other types (numpy.float32(3) + 3.0), and the error handling lay elsewhere.
bool IsTooOld(PyObject* numpy) {
  Ref version(PyObject_GetAttrString(numpy, "__version__"));  // none yet: it is being imported
  const char* text = version && PyUnicode_Check(version.get()) ? PyUnicode_AsUTF8(version.get()) : nullptr;
  const bool old = text && (!strncmp(text, "1.", 2) || !strncmp(text, "0.", 2));
  if (old)
    diag::Warn(std::string("functions of NumPy's arrays run as written: NumPy 2.0 or newer is needed, this is ") +
               text);
  return old;
}

}  // namespace

const NumpyApi* BindNumpy() {
  static Imported module("numpy");
  static bool too_old = false;
  PyObject* numpy = too_old ? nullptr : module.Get();
  if (!numpy) return nullptr;
  SavedError saved;
  if ((too_old = IsTooOld(numpy))) return nullptr;
  static NumpyApi api;
  api = NumpyApi();
  api.module = Py_NewRef(numpy);
  if (Bind(api)) bound_numpy = &api;
  PyErr_Clear();
  return bound_numpy;
}

[[gnu::hot]] std::optional<DType> FromTypeNum(int type_num) {  // every call asks, for each argument
  static constexpr auto kByNumber = [] {
    std::array<std::optional<DType>, 24> t;
    for (const TypeRow& r : kTypes) t[r.type_num] = r.dtype;
    return t;
  }();
  return type_num >= 0 && type_num < static_cast<int>(kByNumber.size()) ? kByNumber[type_num] : std::nullopt;
}

std::optional<DType> ScalarDType(const NumpyApi& n, PyTypeObject* scalar_type) {
  for (const TypeRow& r : kTypes) {
    if (n.scalar[static_cast<int>(r.dtype)] == scalar_type) return r.dtype;
  }
  return std::nullopt;
}

[[gnu::hot]] PyObject* NewArray(const NumpyApi& n, DType t, int rank, const int64_t* sizes,
                                const int64_t* byte_strides) {
  PyObject* descr = n.descr[static_cast<int>(t)];
  if (!descr) return PyErr_Format(PyExc_TypeError, "framejit: no NumPy type for %s", std::string(DTypeName(t)).c_str());
  Py_INCREF(descr);  // stolen
  return n.new_from_descr(n.array, descr, rank, reinterpret_cast<const intptr_t*>(sizes),
                          reinterpret_cast<const intptr_t*>(byte_strides), nullptr, 0, nullptr);
}

PyObject* ViewOf(const NumpyApi& n, DType dtype, int rank, const int64_t* sizes, const int64_t* byte_strides,
                 void* data, PyObject* owner) {
  PyObject* descr = n.descr[static_cast<int>(dtype)];
  if (!descr)
    return PyErr_Format(PyExc_TypeError, "framejit: no NumPy type for %s", std::string(DTypeName(dtype)).c_str());
  Py_INCREF(descr);  // stolen
  Ref view(n.new_from_descr(n.array, descr, rank, reinterpret_cast<const intptr_t*>(sizes),
                            reinterpret_cast<const intptr_t*>(byte_strides), data, kNpyWriteable | kNpyAligned,
                            nullptr));
  if (view && owner && n.set_base(view.get(), Py_NewRef(owner)) < 0) return nullptr;
  return view.release();
}

}  // namespace framejit::tensor
