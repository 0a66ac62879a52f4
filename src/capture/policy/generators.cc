#include "capture/policy/generators.h"

#include "bytecode/code.h"
#include "frame/driver.h"
#include "tensor/own_reference.h"

namespace framejit::capture {
namespace {

struct Made {
  std::shared_ptr<Compiled> maker;
  Ref death;  // a weak reference, which takes this entry out
};

// By the frame that lies in the generator.
std::unordered_map<FjFrame*, Made>& Living() {
  static auto* living = new std::unordered_map<FjFrame*, Made>;
  return *living;
}

PyObject* Died(PyObject* frame, PyObject*) {
  const auto at = Living().find(static_cast<FjFrame*>(PyLong_AsVoidPtr(frame)));
  if (at != Living().end()) {
    const Made made = std::move(at->second);  // its end may run code that makes others
    Living().erase(at);
    frame::LetGoOfHook();
  }
  Py_RETURN_NONE;
}

PyMethodDef died = {"died", Died, METH_O, nullptr};

}  // namespace

PyObject* Followed(PyObject* generator, const std::shared_ptr<Compiled>& maker) {
  if (!PyGen_CheckExact(generator) && !PyCoro_CheckExact(generator) && !PyAsyncGen_CheckExact(generator))
    return generator;
  FjFrame* frame = fj_frame_of(generator);
  Ref made(generator), key(PyLong_FromVoidPtr(frame));
  Ref callback(key ? PyCFunction_New(&died, key.get()) : nullptr);
  Ref death(callback ? tensor::OwnReference(generator, callback.get()) : Ref());
  if (!death) return nullptr;
  Living()[frame] = {maker, std::move(death)};
  frame::KeepHook();
  return made.release();
}

std::shared_ptr<Compiled> MakerOf(FjFrame* frame) {
  if (Living().empty() || !fj_is_suspended_generator(frame)) return nullptr;
  const auto at = Living().find(frame);
  return at == Living().end() ? nullptr : at->second.maker;
}

Leaving LeavesAt(FjFrame* frame, int index) {
  if (!fj_is_generator(frame)) return Leaving::kNo;
  const bytecode::Code* code = bytecode::Code::Of(fj_code(frame));
  if (!code) return PyErr_Clear(), Leaving::kNo;
  switch (code->At(index).op) {
    case bytecode::Op::kYieldValue:
    case bytecode::Op::kHandOver: return Leaving::kYields;
    case bytecode::Op::kGetAwaitable:
    case bytecode::Op::kSend: return Leaving::kAwaits;
    default: return Leaving::kNo;
  }
}

}  // namespace framejit::capture
