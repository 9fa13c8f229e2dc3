// Assigns tokens to recorded experts instead of choosing them.
#pragma once

#include <utility>
#include <vector>

#include "dtopp/moe/router.h"

namespace dtopp::moe {

class ReplayRouter final : public Router {
 public:
  // routing_map_LTE: per layer, bool [T, E]. T is the number of tokens of the forward pass.
  ReplayRouter(const config::RunConfig& config, std::vector<at::Tensor> routing_map_LTE)
      : Router(config, routing_map_LTE.at(0).device()), routing_map_LTE_(std::move(routing_map_LTE)) {}

  ops::RouteOutput select(const RouterInput& input) override {
    return route_to(input, routing_map_LTE_.at(static_cast<size_t>(input.layer)));
  }

 private:
  std::vector<at::Tensor> routing_map_LTE_;
};

}  // namespace dtopp::moe
