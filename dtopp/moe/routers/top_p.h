// Selects the likeliest experts of each token until their probabilities add up to a fixed threshold p.
#pragma once

#include <utility>

#include "dtopp/moe/router.h"

namespace dtopp::moe {

class TopPRouter final : public Router {
 public:
  // threshold_C: p, f64, one value for all layers or one per layer. A router of method top_k takes p too.
  // bias_LE: ExpertBias::centred_LE; undefined: none.
  TopPRouter(const config::RunConfig& config, at::Tensor threshold_C, at::Tensor bias_LE = {})
      : Router(config, threshold_C.device()),
        threshold_C_(std::move(threshold_C)),
        bias_LE_(std::move(bias_LE)) {}

  ops::RouteOutput select(const RouterInput& input) override {
    return route_by(input, /*top_k=*/0, threshold_C_[threshold_C_.numel() > 1 ? input.layer : 0],
                    bias_LE_.defined() ? bias_LE_[input.layer] : bias_LE_);
  }
  ops::NamedTensors metrics() const override { return {{"threshold", threshold_C_}}; }

 private:
  at::Tensor threshold_C_, bias_LE_;
};

}  // namespace dtopp::moe
