// Reads the cases of the routing rule (tests/conformance/README.md) and runs a device's kernel on them.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "dtopp/base/files.h"
#include "dtopp/base/json.h"
#include "dtopp/ops/route/route.h"
#include "tests/ops/reference.h"

namespace dtopp::ops::route_cases {

using Case = nlohmann::json;

inline const Case& all() {
  static const Case cases =
      parse_json(read_file(DTOPP_SOURCE_DIR "/tests/conformance/route.json"), "route.json");
  return cases;
}

inline void add_numbers(const Case& values, std::vector<double>& numbers) {
  if (values.is_array()) {
    for (const Case& value : values) add_numbers(value, numbers);
  } else {
    numbers.push_back(values.is_null() ? std::numeric_limits<double>::quiet_NaN() : values.get<double>());
  }
}

// A number or nested arrays of them, null as NaN.
inline at::Tensor tensor_of(const Case& values, at::IntArrayRef sizes, at::ScalarType dtype) {
  std::vector<double> numbers;
  add_numbers(values, numbers);
  return at::tensor(numbers, at::kDouble).view(sizes).to(dtype);
}

inline std::optional<at::Tensor> optional_of(const Case& values, int64_t experts, at::ScalarType dtype) {
  if (values.is_null()) return std::nullopt;
  return tensor_of(values, {experts}, dtype);
}

// Expects the same experts: a selected expert has a gate above 0.
inline void expect_mask(const at::Tensor& gates_TE, const Case& expected) {
  std::vector<std::string> mask;
  for (const at::Tensor& gates_E : gates_TE.ne(0).unbind(0)) {
    mask.emplace_back();
    for (int64_t e = 0; e < gates_E.numel(); ++e) mask.back() += gates_E[e].item<bool>() ? '1' : '0';
  }
  EXPECT_EQ(mask, expected.get<std::vector<std::string>>());
}

inline void expect_near(const at::Tensor& actual, const Case& expected) {
  // Expected values have 10 digits.
  const double bound = actual.scalar_type() == at::kDouble ? 1e-8 : 1e-5;
  EXPECT_LT(reference::error(actual, tensor_of(expected, actual.sizes(), at::kDouble)), bound) << actual;
}

inline void expect_counts(const RouteOutput& out, const Case& expected) {
  for (const auto& [name, counts] : {std::pair{"tokens_per_expert", out.tokens_per_expert_E},
                                     std::pair{"active_histogram", out.active_histogram}})
    EXPECT_TRUE(counts.equal(tensor_of(expected.at(name), {counts.numel()}, at::kLong))) << name << counts;
}

inline RouteOutput run(const Case& one, c10::DispatchKey device, at::ScalarType dtype) {
  const int64_t experts = one.at("columns").get<int64_t>();
  const auto tokens = static_cast<int64_t>(one.at("logits").size());
  const auto normalization = one.at("normalization").get<std::string>();
  const auto bias_on = one.at("bias_on").get<std::string>(), gate = one.at("gate").get<std::string>();
  using Optional = std::optional<at::Tensor>;
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("dtopp::route", "")
                      .typed<RouteTuple(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                        c10::string_view, int64_t, int64_t, bool, const Optional&,
                                        c10::string_view, c10::string_view, const Optional&)>();
  const auto [gates_TE, counts_E, histogram, mean_prob_E, entropy, router_z, mass] = op.redispatch(
      c10::DispatchKeySet(device), tensor_of(one.at("logits"), {tokens, experts}, dtype),
      tensor_of(one.at("scale"), {}, dtype), tensor_of(one.at("threshold"), {}, at::kDouble), normalization,
      one.at("top_k").get<int64_t>(), one.at("max_experts").get<int64_t>(), one.at("renormalize") == true,
      optional_of(one.at("bias"), experts, dtype), bias_on, gate, optional_of(one.at("cut"), experts, dtype));
  return {gates_TE, counts_E, histogram, mean_prob_E, entropy, router_z, mass};
}

// Runs the kernel of `device` on all cases. The operator has no gates of length 1 (renormalize: l2); it
// returns those that sum to 1.
inline void expect_results(c10::DispatchKey device) {
  ASSERT_GE(all().size(), 40U);
  for (const Case& one : all()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      SCOPED_TRACE(testing::Message() << one.at("name") << " " << dtype);
      const Case& expected = one.at("expected");
      const RouteOutput out = run(one, device, dtype);
      const bool is_l2 = one.at("renormalize") == "l2";
      expect_mask(out.gates_TE, expected.at("mask"));
      expect_near(is_l2 ? out.gates_TE / out.gates_TE.norm(2, {1}, true) : out.gates_TE,
                  expected.at("gates"));
      expect_counts(out, expected);
      expect_near(out.mean_prob_E, expected.at("mean_prob"));
      expect_near(out.entropy, expected.at("entropy"));
      expect_near(out.router_z, expected.at("router_z"));
      expect_near(out.mass.to(dtype), expected.at("mass"));
    }
  }
}

}  // namespace dtopp::ops::route_cases
