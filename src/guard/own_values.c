// own_values.h, by what each CPython version keeps in front of an object, or behind it, and how it lays out a dict. A
// table of shared keys has at most 30 names, and none is ever taken out.
#define PY_SSIZE_T_CLEAN
#define Py_BUILD_CORE
#include <Python.h>
#include <internal/pycore_dict.h>
#include <internal/pycore_object.h>
#include <stddef.h>
#undef Py_BUILD_CORE

#include "guard/own_values.h"

static PyDictValues* Values(PyObject* o) {
  if (!(Py_TYPE(o)->tp_flags & Py_TPFLAGS_MANAGED_DICT)) return NULL;
#if PY_VERSION_HEX < 0x030C0000
  return *_PyObject_ValuesPointer(o);
#elif PY_VERSION_HEX < 0x030D0000
  const PyDictOrValues there = *_PyObject_DictOrValuesPointer(o);
  return _PyDictOrValues_IsValues(there) ? _PyDictOrValues_GetValues(there) : NULL;
#else
  if (!(Py_TYPE(o)->tp_flags & Py_TPFLAGS_INLINE_VALUES) || _PyObject_GetManagedDict(o)) return NULL;
  return _PyObject_InlineValues(o)->valid ? _PyObject_InlineValues(o) : NULL;
#endif
}

static PyDictKeysObject* Keys(PyObject* o) {
  return ((PyHeapTypeObject*)Py_TYPE(o))->ht_cached_keys;
}

int fj_own_values(PyObject* o) {
  FjOwn own;
  return fj_own_view(o, &own);
}

int fj_own_view(PyObject* o, FjOwn* own) {
  PyDictValues* values = Values(o);
  PyDictKeysObject* keys = values ? Keys(o) : NULL;
  if (!keys || keys->dk_kind != DICT_KEYS_SPLIT || keys->dk_log2_size >= 8) return 0;
  own->places = (const int8_t*)keys->dk_indices;
  own->mask = ((size_t)1 << keys->dk_log2_size) - 1;
  own->entries = (PyObject**)DK_UNICODE_ENTRIES(keys);
  own->values = values->values;
  return 1;
}
_Static_assert(sizeof(PyDictUnicodeEntry) == 2 * sizeof(PyObject*) && offsetof(PyDictUnicodeEntry, me_key) == 0,
               "an entry is a key and a value");

int fj_keys_are_texts(PyObject* dict) {
  return ((PyDictObject*)dict)->ma_keys->dk_kind != DICT_KEYS_GENERAL;
}

static int64_t PlaceAt(const PyDictKeysObject* keys, size_t at) {
  if (keys->dk_log2_size < 8) return ((const int8_t*)keys->dk_indices)[at];
  if (keys->dk_log2_size < 16) return ((const int16_t*)keys->dk_indices)[at];
  return keys->dk_log2_size < 32 ? ((const int32_t*)keys->dk_indices)[at] : ((const int64_t*)keys->dk_indices)[at];
}

int fj_next_of_hash(PyObject* dict, Py_hash_t hash, FjOfHash* of, PyObject** key, PyObject** value) {
  PyDictKeysObject* keys = ((PyDictObject*)dict)->ma_keys;
  const size_t mask = ((size_t)1 << keys->dk_log2_size) - 1;
  if (!of->begun) *of = (FjOfHash){(size_t)hash & mask, (size_t)hash, 1};
  for (;;) {
    const int64_t place = PlaceAt(keys, of->at);
    if (place == DKIX_EMPTY) return 0;
    of->perturb >>= 5;
    of->at = (of->at * 5 + of->perturb + 1) & mask;
    if (place < 0) continue;
    const PyDictKeyEntry* entry = &DK_ENTRIES(keys)[place];
    if (entry->me_hash != hash || !entry->me_value) continue;
    *key = entry->me_key;
    *value = entry->me_value;
    return 1;
  }
}

void fj_give_back(PyObject* o) {
  if (!(Py_TYPE(o)->tp_flags & Py_TPFLAGS_MANAGED_DICT)) return;
#if PY_VERSION_HEX < 0x030C0000
  PyObject** slot = _PyObject_ManagedDictPointer(o);
#elif PY_VERSION_HEX < 0x030D0000
  if (_PyDictOrValues_IsValues(*_PyObject_DictOrValuesPointer(o))) return;
  PyObject** slot = &_PyObject_DictOrValuesPointer(o)->dict;
#else
  PyObject** slot = (PyObject**)&_PyObject_ManagedDictPointer(o)->dict;
#endif
  PyDictObject* dict = (PyDictObject*)*slot;
  if (!dict || !PyDict_CheckExact((PyObject*)dict) || Py_REFCNT(dict) != 1 || !dict->ma_values ||
      dict->ma_keys != Keys(o))
    return;
#if PY_VERSION_HEX >= 0x030E0000
  if (dict->_ma_watcher_tag & 0xff) return;  // somebody watches it
#elif PY_VERSION_HEX >= 0x030C0000
  if (dict->ma_version_tag & 0xff) return;
#endif
#if PY_VERSION_HEX < 0x030C0000
  *slot = NULL;
  *_PyObject_ValuesPointer(o) = dict->ma_values;
#elif PY_VERSION_HEX < 0x030D0000
  _PyDictOrValues_SetValues(_PyObject_DictOrValuesPointer(o), dict->ma_values);
#else
  if (!(Py_TYPE(o)->tp_flags & Py_TPFLAGS_INLINE_VALUES) || dict->ma_values != _PyObject_InlineValues(o) ||
      !dict->ma_values->valid)
    return;
  *slot = NULL;
#endif
  dict->ma_values = NULL;
  Py_DECREF(dict);
}
