// Gives the shared library a translation unit of its own; everything else comes from the stages.
namespace framejit {
const char* Version() {
  return "0.1.0";
}
}  // namespace framejit
