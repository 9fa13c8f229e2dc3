#include "dtopp/moe/routers/make_router.h"

#include <stdexcept>

namespace dtopp::moe {

using MakeRouter = std::unique_ptr<Router>(const config::RunConfig& config, const at::Device& device);
// Each is defined in moe/routers/<method>.cpp; dtop_p_bias in dtop_p.cpp.
MakeRouter make_top_k_router;
MakeRouter make_top_k_bias_router;
MakeRouter make_top_p_router;
MakeRouter make_dtop_p_router;
MakeRouter make_dtop_p_bias_router;
MakeRouter make_relu_router;
MakeRouter make_expert_threshold_router;
MakeRouter make_hash_router;
MakeRouter make_top_k_zero_router;

std::unique_ptr<Router> make_router(const config::RunConfig& config, const at::Device& device) {
  if (config.routing.method == config::RoutingMethod::kTopKBias && config.model.zero_experts > 0)
    return make_top_k_zero_router(config, device);
  switch (config.routing.method) {
    case config::RoutingMethod::kTopK:
      return make_top_k_router(config, device);
    case config::RoutingMethod::kTopKBias:
      return make_top_k_bias_router(config, device);
    case config::RoutingMethod::kTopP:
      return make_top_p_router(config, device);
    case config::RoutingMethod::kDTopP:
      return make_dtop_p_router(config, device);
    case config::RoutingMethod::kDTopPBias:
      return make_dtop_p_bias_router(config, device);
    case config::RoutingMethod::kRelu:
      return make_relu_router(config, device);
    case config::RoutingMethod::kExpertThreshold:
      return make_expert_threshold_router(config, device);
    case config::RoutingMethod::kHash:
      return make_hash_router(config, device);
  }
  throw std::logic_error("make_router: no such method");
}

}  // namespace dtopp::moe
