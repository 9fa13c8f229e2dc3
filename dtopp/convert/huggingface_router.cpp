#include "dtopp/convert/huggingface_router.h"

#include <algorithm>

#include "dtopp/base/errors.h"
#include "dtopp/moe/router_state.h"
#include "dtopp/moe/routers/make_router.h"
#include "dtopp/ops/core/host_copy.h"

namespace dtopp::convert {
namespace {

constexpr char kThresholds[] = "threshold_C", kCutSteps[] = "cut_steps",
               kNormalizationSteps[] = "normalization_steps", kExperts[] = "expert_VK";

// The buffer of a tensor of the router's state; empty if it has none.
std::string buffer_of(const std::string& state) {
  if (state == "bias_LE") return "bias_E";
  if (state == "cut_LE") return "cut_E";
  if (state == "router_input_mean_LD") return "input_mean_D";
  if (state == "logit_square_LC") return "logit_square_C";
  return "";
}

std::string buffer_name(int64_t layer, const std::string& buffer) {
  return "model.layers." + std::to_string(layer) + ".mlp.gate." + buffer;
}

// int32 [V, K]: the experts that the router hash selects for each id, in rising order.
at::Tensor experts_of_ids(const config::RunConfig& config, moe::Router& router, int64_t layer) {
  const at::Tensor ids = at::arange(config.model.vocab_size, at::kLong);
  const ops::RouteOutput output = router.select({layer, {}, {}, /*training=*/false, ids});
  return output.gates_TE.nonzero().select(1, 1).to(at::kInt).view({config.model.vocab_size, -1});
}

}  // namespace

HuggingFaceRouter to_huggingface_router(const checkpoint::Checkpoint& checkpoint,
                                        const config::RunConfig& config) {
  HuggingFaceRouter result;
  if (config.model.is_dense()) return result;
  const auto router = moe::make_router(config, at::kCPU);
  moe::load_router(*router, checkpoint.router(), checkpoint.path());
  result.numbers.thresholds = router->metric("threshold");
  const ops::NamedTensors state = router->state();
  for (const auto& [name, value] : state) {
    if (name == kCutSteps) result.numbers.cut_steps = value.item<int64_t>();
    if (name == kNormalizationSteps) result.numbers.normalization_steps = value.item<int64_t>();
    if (buffer_of(name).empty()) continue;
    for (int64_t layer = 0; layer < config.model.num_layers; ++layer)
      result.buffers.emplace_back(buffer_name(layer, buffer_of(name)), value[layer].contiguous());
  }
  if (!config::has_logits(config.routing.method)) {
    for (int64_t layer = 0; layer < config.model.num_layers; ++layer)
      result.buffers.emplace_back(buffer_name(layer, kExperts), experts_of_ids(config, *router, layer));
  }
  return result;
}

ops::NamedTensors from_huggingface_router(const ImportedConfig& imported, HuggingFaceTensors& tensors) {
  const config::RunConfig& config = imported.config;
  if (config.model.is_dense()) return {};
  const int64_t layers = config.model.num_layers;
  const auto router = moe::make_router(config, at::kCPU);
  ops::NamedTensors state = router->state();
  for (auto& [name, value] : state) {
    if (name == kThresholds) value = at::tensor(imported.router.thresholds, at::kDouble);
    if (name == kCutSteps) value = at::full({}, imported.router.cut_steps, at::kLong);
    if (name == kNormalizationSteps) value = at::full({}, imported.router.normalization_steps, at::kLong);
    if (buffer_of(name).empty()) continue;
    value = at::empty_like(value);
    for (int64_t layer = 0; layer < layers; ++layer)
      ops::copy_from_bytes(tensors.read(buffer_name(layer, buffer_of(name)), "F64", {value.size(1)}).bytes,
                           value[layer]);
  }
  if (config::has_logits(config.routing.method)) return state;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const at::Tensor own = experts_of_ids(config, *router, layer);
    const TensorView& read = tensors.read(buffer_name(layer, kExperts), "I32", own.sizes().vec());
    const auto* bytes = static_cast<const std::byte*>(own.const_data_ptr());
    if (!std::ranges::equal(read.bytes, std::span(bytes, own.nbytes())))
      throw UsageError(tensors.folder().string() + ": tensor \"" + read.name +
                       "\": dtopp's hash router selects other experts");
  }
  return state;
}

}  // namespace dtopp::convert
