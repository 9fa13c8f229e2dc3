#include "dtopp/moe/make_router.h"

#include "dtopp/base/errors.h"
#include "dtopp/ops/core/host_copy.h"

namespace dtopp::moe {
namespace {

ops::NamedTensors state_in(std::span<const TensorView> tensors, const fs::path& checkpoint) {
  ops::NamedTensors state;
  for (const TensorView& tensor : tensors) {
    const Tensor value = at::empty(tensor.shape, tensor.dtype == "I64" ? at::kLong : at::kDouble);
    if (tensor.bytes.size() != value.nbytes())
      throw CheckpointError(checkpoint.string() + "/router.safetensors: " + tensor.name + " is " +
                            tensor.dtype + ", expected F64 or I64");
    ops::copy_from_bytes(tensor.bytes, value);
    state.emplace_back(tensor.name, value);
  }
  return state;
}

void load(Router& router, const ops::NamedTensors& state, const fs::path& checkpoint) {
  try {
    router.load_state(state);
  } catch (const std::invalid_argument& error) {
    throw CheckpointError(checkpoint.string() + "/router.safetensors: " + error.what());
  }
}

}  // namespace

ops::NamedTensors host_state(const Router& router) {
  ops::NamedTensors state;
  for (const auto& [name, tensor] : router.state()) state.emplace_back(name, tensor.cpu().contiguous());
  return state;
}

std::vector<TensorSource> router_sources(const ops::NamedTensors& state) {
  const std::map<at::ScalarType, const char*> names = {
      {at::kDouble, "F64"}, {at::kLong, "I64"}, {at::kInt, "I32"}};
  std::vector<TensorSource> sources;
  for (const auto& [name, tensor] : state) {
    const auto* bytes = static_cast<const std::byte*>(tensor.const_data_ptr());
    sources.emplace_back(name, names.at(tensor.scalar_type()), tensor.sizes().vec(),
                         std::span(bytes, tensor.nbytes()));
  }
  return sources;
}

void load_router(Router& router, std::span<const TensorView> tensors, const fs::path& checkpoint) {
  load(router, state_in(tensors, checkpoint), checkpoint);
}

void load_expert_normalization(Router& router, std::span<const TensorView> tensors,
                               const fs::path& checkpoint) {
  if (!router.expert_normalization()) return;
  const ops::NamedTensors there = state_in(tensors, checkpoint);
  ops::NamedTensors state = router.state();
  ops::StateTensors own;
  router.expert_normalization()->list_state(own);
  for (const auto& [name, tensor] : own) {
    const auto named = [&](const auto& other) { return other.first == name; };
    const auto found = std::ranges::find_if(there, named);
    if (found == there.end()) return;
    std::ranges::find_if(state, named)->second = found->second;
  }
  load(router, state, checkpoint);
}

using MakeRouter = std::unique_ptr<Router>(const config::RunConfig& config, const at::Device& device);
// Each is defined in moe/<method>.cpp; dtop_p_bias in dtop_p.cpp, top_k_zero in top_k.cpp, and top_p
// in solving.cpp.
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
