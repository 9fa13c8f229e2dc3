// Calls a device's kernels with arguments that do not fit: it changes each tensor argument of every operator
// to another type, device, number of dimensions and size, one at a time.
#pragma once

#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops::wrong_arguments {

struct Call {
  std::string op;
  std::vector<c10::IValue> arguments;
};

// Calls of all operators with valid arguments.
inline std::vector<Call> fitting_calls() {
  at::manual_seed(5);
  const int64_t T = 6, D = 8, E = 4, F = 5, V = 9, K = 4;
  const at::Tensor x = at::randn({T, D}), weight = at::randn({V, D});
  const at::Tensor targets = at::zeros({T}, at::kLong);
  const at::Tensor gates = at::rand({T, E}).add(0.1) * at::rand({T, E}).lt(0.5);
  const at::Tensor pairs = at::nonzero(gates.t()), pre = at::randn({pairs.size(0), 2 * F});
  const at::Tensor gate_up = at::randn({E, 2 * F, D}), down = at::randn({E, D, F});
  const at::Tensor one = at::ones({}), half = at::full({}, 0.5, at::kDouble);
  const at::Tensor gain = at::ones({D}), angle = at::randn({T, K});
  const c10::List<bool> all({true, true, true, true});
  const c10::IValue none;
  const auto z = [&] { return at::randn({T, E}); };
  return {
      {"route", {z(), one, half, "dynamic", 0, 0, true, none, "logit", "probability", none}},
      {"route", {z(), one, half, "none", 2, 0, true, at::randn({E}), "score", "probability", none}},
      {"route", {z(), one, half, "none", 2, 0, false, none, "logit", "sigmoid", at::randn({E})}},
      {"route_backward", {z(), one, gates, z(), at::randn({E}), one, one, "dynamic", true, "probability"}},
      {"cumulative_prob_histogram", {at::randn({T, E}), one, "dynamic", 0, 1, 0}},
      {"moe_ffn", {x, gates, gate_up, down, 0, false}},
      {"moe_ffn_forward", {x, gates, pairs, gate_up, down}},
      {"moe_ffn_pre_activations", {x, gates, pairs, gate_up, down}},
      {"moe_ffn_backward", {at::randn({T, D}), x, gates, gate_up, down, pre, all}},
      {"moe_ffn_backward_sums",
       {at::randn({T, D}), x, gates, gate_up, down, pre, c10::List<bool>({true, true}),
        at::zeros_like(gate_up), at::zeros_like(down), c10::List<bool>({false, true})}},
      {"linear_cross_entropy", {x, weight, targets, 0.1, -100}},
      {"linear_cross_entropy_forward", {x, weight, targets, 0.1, -100, true, true}},
      {"token_log_probs", {x, weight, targets}},
      {"norm_rotary_forward", {x, gain, angle, angle, 1e-5, true}},
      {"norm_rotary_backward", {at::randn({T, D / K, K}), x, gain, angle, angle, 1e-5, true}}};
}

struct Mistake {
  const char* name;
  at::Tensor (*make)(const at::Tensor&);
};

inline at::Tensor resized(const at::Tensor& tensor, int64_t dimension, int64_t change) {
  if (tensor.dim() == 0) return tensor.expand({1 + change});
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.at(dimension < 0 ? sizes.size() - 1 : dimension) += change;
  return at::zeros(sizes, tensor.options());
}

inline const std::vector<Mistake>& mistakes() {
  static const std::vector<Mistake> all = {
      {"half", [](const at::Tensor& t) { return t.to(at::kHalf); }},
      {"int", [](const at::Tensor& t) { return t.to(at::kInt); }},
      {"double", [](const at::Tensor& t) { return t.to(at::kDouble); }},
      {"meta", [](const at::Tensor& t) { return t.to(at::kMeta); }},
      {"deeper", [](const at::Tensor& t) { return t.unsqueeze(0); }},
      {"flat", [](const at::Tensor& t) { return t.flatten(); }},
      {"longer", [](const at::Tensor& t) { return resized(t, 0, 1); }},
      {"shorter", [](const at::Tensor& t) { return resized(t, 0, -1); }},
      {"wider", [](const at::Tensor& t) { return resized(t, -1, 1); }},
      {"narrower", [](const at::Tensor& t) { return resized(t, -1, -1); }}};
  return all;
}

inline void run(const Call& call, c10::DispatchKey device) {
  torch::jit::Stack stack = call.arguments;
  c10::Dispatcher::singleton()
      .findSchemaOrThrow(("dtopp::" + call.op).c_str(), "")
      .redispatchBoxed(c10::DispatchKeySet(device), &stack);
}

// Expects errors that begin with the op's name for all mistakes except those in `but`, written "op argument
// mistake".
inline void expect_refused(c10::DispatchKey device, const std::set<std::string>& but) {
  std::set<std::string> accepted;
  for (const Call& right : fitting_calls()) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(("dtopp::" + right.op).c_str(), "");
    EXPECT_NO_THROW(run(right, device)) << right.op;
    for (size_t i = 0; i < right.arguments.size(); ++i) {
      if (!right.arguments[i].isTensor()) continue;
      const at::Tensor tensor = right.arguments[i].toTensor();
      for (const Mistake& mistake : mistakes()) {
        Call wrong = right;
        const at::Tensor changed = mistake.make(tensor);
        const bool same = changed.scalar_type() == tensor.scalar_type() &&
                          changed.device() == tensor.device() && changed.sizes() == tensor.sizes();
        if (same) continue;
        wrong.arguments[i] = changed;
        const std::string what = right.op + " " + op.schema().arguments()[i].name() + " " + mistake.name;
        try {
          run(wrong, device);
          accepted.insert(what);
        } catch (const std::exception& error) {
          EXPECT_THAT(error.what(), testing::StartsWith(right.op + ": expected ")) << what;
        }
      }
    }
  }
  EXPECT_EQ(accepted, but);
}

}  // namespace dtopp::ops::wrong_arguments
