// Walks over the arguments of calls, those inside of containers too.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "framejit/call.h"

namespace framejit {

// Calls f with an argument and with all that lies in it; `at` is a Call or an Arg, const or not.
template <typename F>
void EachArg(Arg& at, F&& f) {
  f(at);
  for (Arg& a : at.items) EachArg(a, f);
}
template <typename F>
void EachArg(const Arg& at, F&& f) {
  f(at);
  for (const Arg& a : at.items) EachArg(a, f);
}
template <typename F>
void EachArg(Call& call, F&& f) {
  for (Arg& a : call.args) EachArg(a, f);
  for (auto& [name, a] : call.kwargs) EachArg(a, f);
}
template <typename F>
void EachArg(const Call& call, F&& f) {
  for (const Arg& a : call.args) EachArg(a, f);
  for (const auto& [name, a] : call.kwargs) EachArg(a, f);
}

// Calls f with the tensor of each place where one is given.
template <typename T, typename F>
void EachTensor(const T& at, F&& f) {
  EachArg(at, [&](const Arg& a) {
    if (a.is(Arg::Kind::kTensor)) f(a.t);
  });
}

// Finds the argument in that place or of one of these names; null if it was not given.
inline const Arg* GivenArg(const Call& call, size_t position, std::initializer_list<std::string_view> names) {
  if (position < call.args.size()) return &call.args[position];
  for (const auto& [name, a] : call.kwargs)
    if (std::find(names.begin(), names.end(), name) != names.end()) return &a;
  return nullptr;
}

}  // namespace framejit
