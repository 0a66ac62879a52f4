// See the header.
#include "capture/scalar/undo.h"

#include <cstring>
#include <utility>

#include "tensor/numpy_api.h"

namespace framejit::capture::scalar {

namespace {

constexpr int64_t kLargerThan = 4;

// Bytes of an array that lies in one piece in the order of its axes, else -1.
int64_t BytesOf(PyObject* o, DType t) {
  const tensor::NumpyArray* a = tensor::AsArray(o);
  int64_t bytes = DTypeSize(t);
  for (int i = a->nd; i-- > 0;) {
    if (a->dims[i] != 1 && a->strides[i] != bytes) return -1;
    bytes *= a->dims[i];
  }
  return bytes;
}

}  // namespace

bool WorthUndoing(Translation& t, PyObject* const* objects) {
  if (t.lists || !t.undoes) return false;
  int64_t all = 0, mostly = 0;
  for (size_t k = 0; k < t.objects.size(); ++k) {
    const ObjectSpec& spec = t.objects[k];
    if (!spec.array || !spec.written || !objects[k]) continue;
    const int64_t bytes = BytesOf(objects[k], spec.dtype);
    if (bytes < 0) return false;
    all += bytes;
    if (spec.mostly) mostly += bytes;
  }
  t.kept = all;
  return all <= 2 * mostly;
}

bool Undo::Keep(const Translation& t, PyObject* const* objects) {
  int64_t all = 0;
  for (size_t k = 0; k < t.objects.size(); ++k) {
    const ObjectSpec& spec = t.objects[k];
    if (!spec.array || !spec.written || !objects[k]) continue;
    const int64_t bytes = BytesOf(objects[k], spec.dtype);
    all += bytes;
    if (bytes < 0 || all > kLargerThan * t.kept) return false;
    Kept kept{tensor::AsArray(objects[k])->data, static_cast<size_t>(bytes), {}};
    kept.copy = std::make_unique_for_overwrite<char[]>(kept.bytes);
    memcpy(kept.copy.get(), kept.data, kept.bytes);
    all_.push_back(std::move(kept));
  }
  return true;
}

void Undo::PutBack() const {
  for (const Kept& kept : all_) memcpy(kept.data, kept.copy.get(), kept.bytes);
}

}  // namespace framejit::capture::scalar
