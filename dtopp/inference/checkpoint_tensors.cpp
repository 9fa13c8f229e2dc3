#include "dtopp/inference/checkpoint_tensors.h"

#include <algorithm>
#include <memory>
#include <unordered_map>

#include "dtopp/moe/router_state.h"
#include "dtopp/moe/routers/make_router.h"
#include "dtopp/ops/core/host_copy.h"
#include "dtopp/ops/core/large_pages.h"

namespace dtopp::inference {

models::ParameterLookup load_parameters(const checkpoint::Checkpoint& checkpoint, ParameterKind kind,
                                        const std::vector<parameters::ParameterSpec>& specs,
                                        const at::Device& device, at::ScalarType type) {
  auto tensors = std::make_shared<std::unordered_map<std::string, at::Tensor>>();
  for (const parameters::ParameterSpec& spec : specs) {
    const at::TensorOptions fp32 = at::device(device).dtype(at::kFloat);
    const bool converts = type != at::kFloat && spec.compute_precision();
    const at::Tensor tensor = ops::empty_in_large_pages(spec.shape, converts ? fp32.dtype(type) : fp32);
    const at::Tensor read = converts ? at::empty(spec.shape, fp32) : tensor;
    ops::copy_from_bytes(kind == ParameterKind::kRaw ? checkpoint.parameter(spec.name, spec.shape)
                                                     : checkpoint.ema(spec.name, spec.shape),
                         read);
    if (converts) tensor.copy_(read);
    tensors->emplace(spec.name, tensor);
  }
  return [tensors](const std::string& name) { return tensors->at(name); };
}

moe::Routing load_routing(const checkpoint::Checkpoint& checkpoint, const config::RunConfig& config,
                          const at::Device& device) {
  if (config.model.is_dense()) return {};
  moe::Routing routing = moe::routing_by(moe::make_router(config, device));
  moe::load_router(*routing.router, checkpoint.router(), checkpoint.path());
  routing.router->set_step(std::max<int64_t>(checkpoint.state().step - 1, 0));
  return routing;
}

}  // namespace dtopp::inference
