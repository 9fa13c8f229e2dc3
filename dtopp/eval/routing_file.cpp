#include "dtopp/eval/routing_file.h"

#include "dtopp/base/errors.h"
#include "dtopp/base/format.h"
#include "dtopp/moe/routers/replay.h"
#include "dtopp/ops/core/host_copy.h"

namespace dtopp::eval {
namespace {

constexpr char kBool[] = "BOOL";

std::string layer_name(int64_t layer) { return format("layer_%02lld", static_cast<long long>(layer)); }

void require_routers(const inference::InferenceModel& model) {
  if (model.config.model.is_dense())
    throw UsageError("the checkpoint's model is dense; it has no routing to dump or replay");
}

std::string describe(const TensorView* tensor) {
  if (tensor == nullptr) return "is missing";
  return "is " + tensor->dtype + " " + c10::str(at::IntArrayRef(tensor->shape));
}

// Returns bool [count, E] for the tokens first, first + 1, …. Bytes in a file may be other than 0 and 1.
at::Tensor read_selection(const TensorView& tensor, int64_t first, int64_t count) {
  const int64_t E = tensor.shape.at(1);
  const at::Tensor bytes_TE = at::empty({count, E}, at::kByte);
  ops::copy_from_bytes(tensor.bytes.subspan(static_cast<size_t>(first * E), static_cast<size_t>(count * E)),
                       bytes_TE);
  return bytes_TE.ne(0);
}

}  // namespace

RoutingDump::RoutingDump(const inference::InferenceModel& model, int64_t num_tokens) {
  require_routers(model);
  const config::ModelConfig& config = model.config.model;
  for (int64_t layer = 0; layer < config.num_layers; ++layer)
    routing_map_LTE_.push_back(at::zeros({num_tokens, config.num_experts}, at::kBool));
}

void RoutingDump::add(const TextWindows& windows, const models::HiddenStates& states,
                      const at::Tensor& /*log_probs_T*/) {
  for (size_t layer = 0; layer < routing_map_LTE_.size(); ++layer) {
    const at::Tensor chosen_TE = states.routing.at(layer).gates_TE.ne(0);
    routing_map_LTE_[layer]
        .narrow(0, static_cast<int64_t>(windows.offset), chosen_TE.size(0))
        .copy_(chosen_TE);
  }
}

void RoutingDump::write(const std::filesystem::path& path) const {
  std::vector<TensorSource> tensors;
  for (size_t layer = 0; layer < routing_map_LTE_.size(); ++layer) {
    const at::Tensor& routing_map_TE = routing_map_LTE_[layer];
    const auto* bytes = static_cast<const std::byte*>(routing_map_TE.const_data_ptr());
    tensors.emplace_back(layer_name(static_cast<int64_t>(layer)), kBool, routing_map_TE.sizes().vec(),
                         std::span(bytes, static_cast<size_t>(routing_map_TE.numel())));
  }
  write_file_atomically(path, [&](OutputFile& file) { write_safetensors(file, tensors); });
}

RoutingReplay::RoutingReplay(const std::filesystem::path& path, const inference::InferenceModel& model,
                             int64_t num_tokens)
    : file_(path), config_(model.config), device_(model.device()) {
  require_routers(model);
  if (!config::has_logits(model.config.routing.method))
    throw UsageError(
        "the checkpoint's model routes by token id (routing.method hash); its gates cannot be replayed");
  if (model.config.model.zero_experts > 0)
    throw UsageError(
        "the checkpoint's model has zero experts, whose gates a routing file does not hold; its "
        "routing cannot be replayed");
  const std::vector<int64_t> shape = {num_tokens, model.config.model.num_experts};
  for (int64_t layer = 0; layer < model.config.model.num_layers; ++layer) {
    const TensorView* tensor = layers_.emplace_back(file_.find(layer_name(layer)));
    if (tensor == nullptr || tensor->dtype != kBool || tensor->shape != shape)
      throw UsageError(path.string() + ": " + layer_name(layer) + " " + describe(tensor) +
                       ", but this text and model need BOOL " + c10::str(at::IntArrayRef(shape)) +
                       "; use a file that evaluate text --dump-routing wrote for the same text");
  }
  if (file_.tensors().size() != layers_.size())
    throw UsageError(path.string() + ": holds " + std::to_string(file_.tensors().size()) +
                     " tensors, but the model has " + std::to_string(layers_.size()) + " layers");
}

std::shared_ptr<moe::Router> RoutingReplay::for_tokens(uint64_t first, int64_t count) const {
  std::vector<at::Tensor> maps_LTE;
  for (const TensorView* layer : layers_)
    maps_LTE.push_back(ops::to_device(read_selection(*layer, static_cast<int64_t>(first), count), device_));
  return std::make_shared<moe::ReplayRouter>(config_, std::move(maps_LTE));
}

}  // namespace dtopp::eval
