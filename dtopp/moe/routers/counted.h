// Selects given numbers of experts per token: each token's likeliest ones.
#pragma once

#include <utility>

#include "dtopp/moe/router.h"
#include "dtopp/ops/core/host_copy.h"

namespace dtopp::moe {

class CountedRouter final : public Router {
 public:
  // counts_LT: int64 on the CPU, at least 1. T is the number of tokens of the forward pass.
  CountedRouter(const config::RunConfig& config, at::Tensor counts_LT, const at::Device& device)
      : Router(config, device), counts_LT_(std::move(counts_LT)) {}

  ops::RouteOutput select(const RouterInput& input) override {
    return select_likeliest(input, ops::to_device(counts_LT_[input.layer], device()));
  }

 private:
  at::Tensor counts_LT_;
};

}  // namespace dtopp::moe
