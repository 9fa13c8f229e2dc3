// Selects the likeliest experts of each token until their probabilities add up to a fixed threshold p.
#pragma once

#include <utility>

#include "dtopp/moe/router.h"

namespace dtopp::moe {

class TopPRouter final : public Router {
 public:
  // threshold_C: p, f64, one value for all layers or one per layer. A router of method top_k takes p too.
  TopPRouter(const config::RunConfig& config, at::Tensor threshold_C)
      : Router(config, threshold_C.device()), threshold_C_(std::move(threshold_C)) {}

  ops::RouteOutput select(const RouterInput& input) override {
    return route_by(input, /*top_k=*/0, threshold_C_[threshold_C_.numel() > 1 ? input.layer : 0]);
  }
  ops::NamedTensors metrics() const override { return {{"threshold", threshold_C_}}; }

 private:
  at::Tensor threshold_C_;
};

}  // namespace dtopp::moe
