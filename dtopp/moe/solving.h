// Solves each layer for the threshold p at which its tokens use a given number of experts.
//
// A layer's input depends on p of the layers below. One forward pass therefore solves layer after layer.
#pragma once

#include <c10/util/FunctionRef.h>

#include "dtopp/distributed/collectives.h"
#include "dtopp/moe/router.h"

namespace dtopp::moe {

// Describes how the number of active experts of a step depends on p, the input of a threshold controller.
//
// The curve comes from a histogram of cumulative probabilities (ops/route/route.h).
// Within a bin, cumulative probabilities are assumed to be uniform. Example: below(p) of one controller with
// three bins
//
// bin      [0, 0.2)   [0.2, 0.6)   [0.6, 1)
// count        10         20          30        below(0.4) = 10 + 20 / 2 = 20;  threshold(20) = 0.4

inline constexpr double kMinThreshold = 1e-6;
inline constexpr double kMaxThreshold = 1.0 - 1e-6;

// One curve per controller (C). It uses the same operations in the same order on every device, without host
// synchronization.
class ActiveExpertCurve {
 public:
  // prob_histogram_CM: whole numbers of any type. edges: cumulative_prob_bin_edges() on the same device.
  ActiveExpertCurve(const Tensor& prob_histogram_CM, const Tensor& edges);

  // f64 [C]: the number of cumulative probabilities below p.
  Tensor below(const Tensor& p_C) const;
  // f64 [C]: the smallest p with `count` cumulative probabilities below it. It is kMinThreshold if count <=
  // 0, kMaxThreshold if the curve has no more than `count`, and always between the two.
  Tensor threshold(const Tensor& count_C) const;

 private:
  Tensor edges_;                         // f64 [M + 1]
  Tensor prob_histogram_CM_, up_to_CM_;  // f64; inclusive sum over bins
};

// f64 [kCumulativeProbBins + 1].
Tensor cumulative_prob_bin_edges(const at::Device& device);

// Selects the likeliest experts of each token until their probabilities add up to a fixed threshold p.

class TopPRouter final : public Router {
 public:
  // threshold_C: p, f64, one value for all layers or one per layer. A router of method top_k takes p too.
  // bias_LE: from centered_bias_of; undefined: none.
  TopPRouter(const config::RunConfig& config, Tensor threshold_C, Tensor bias_LE = {})
      : Router(config, threshold_C.device()),
        threshold_C_(std::move(threshold_C)),
        bias_LE_(std::move(bias_LE)) {}

  ops::RouteOutput select(const RouterInput& input) override {
    return route_by(input, /*top_k=*/0, threshold_C_[threshold_C_.numel() > 1 ? input.layer : 0],
                    bias_LE_.defined() ? bias_LE_[input.layer] : bias_LE_);
  }
  ops::NamedTensors metrics() const override { return {{"threshold", threshold_C_}}; }

 private:
  Tensor threshold_C_, bias_LE_;
};

// Returns a p at which count(p), which grows with p, is within a relative error of 1e-4 of the target, or
// else the p where it crosses the target, with an error of 1e-12. The result is the largest p if none reaches
// the target, and the smallest if all exceed it. False position (Illinois rule) needs about nine calls.
double solve_threshold(double target, c10::function_ref<double(double p)> count);

// Rank 0's number on every rank, so that ranks that solve together get the same bits. Collective if `ranks`
// is not null.
double broadcast_number(distributed::Collectives* ranks, double here);

class SolvingRouter final : public Router {
 public:
  // targets: numbers of experts, one for all layers or one per layer. With `ranks`, select() is collective.
  // bias_LE: from centered_bias_of; undefined: none.
  SolvingRouter(const config::RunConfig& config, std::vector<double> targets, const at::Device& device,
                distributed::Collectives* ranks, Tensor bias_LE = {})
      : Router(config, device), targets_(std::move(targets)), ranks_(ranks), bias_LE_(std::move(bias_LE)) {}

  ops::RouteOutput select(const RouterInput& input) override;
  // p of each layer, in order, after one forward pass. f64 [L].
  Tensor thresholds_L() const { return at::tensor(thresholds_, at::kDouble).to(device()); }

 private:
  std::vector<double> targets_, thresholds_;
  distributed::Collectives* ranks_;
  Tensor bias_LE_;
};

}  // namespace dtopp::moe
