#include "dtopp/inference/inference_model.h"

#include <unordered_map>

#include "dtopp/base/errors.h"
#include "dtopp/base/format.h"
#include "dtopp/moe/make_router.h"
#include "dtopp/ops/core/host_copy.h"
#include "dtopp/ops/core/large_pages.h"
#include "dtopp/plan/plan.h"

namespace dtopp::inference {
models::ParameterLookup load_parameters(const checkpoint::Checkpoint& checkpoint, ParameterKind kind,
                                        const std::vector<parameters::ParameterSpec>& specs,
                                        const at::Device& device, at::ScalarType type) {
  auto tensors = std::make_shared<std::unordered_map<std::string, Tensor>>();
  for (const parameters::ParameterSpec& spec : specs) {
    const at::TensorOptions fp32 = at::device(device).dtype(at::kFloat);
    const bool converts = type != at::kFloat && spec.compute_precision();
    const Tensor tensor = ops::empty_in_large_pages(spec.shape, converts ? fp32.dtype(type) : fp32);
    const Tensor read = converts ? at::empty(spec.shape, fp32) : tensor;
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

namespace {

// Returns the id that ended each document of the training data.
int64_t end_of_text_of(const checkpoint::Checkpoint& checkpoint, const config::RunConfig& config) {
  if (config.data.end_of_text >= 0) return config.data.end_of_text;
  if (checkpoint.has_tokenizer()) return data::Tokenizer::load(checkpoint.tokenizer_path()).end_of_text();
  throw CheckpointError(checkpoint.path(),
                        ": the end-of-text id is unknown; the checkpoint needs tokenizer.json or "
                        "data.end_of_text in config.yaml");
}

}  // namespace

InferenceModel load_inference_model(const checkpoint::Checkpoint& checkpoint, const at::Device& device,
                                    at::ScalarType type) {
  InferenceModel loaded;
  loaded.config = checkpoint.config();
  const config::ModelConfig& model = loaded.config.model;
  const config::RoutingConfig& routing = loaded.config.routing;
  if (!routing.top_k_by_source.empty())
    throw UsageError(
        checkpoint.path(),
        ": was trained with routing.top_k_by_source, and this text has no source; such a model can only "
        "be trained and validated");
  loaded.model = models::bind_language_model(
      model, routing,
      load_parameters(checkpoint, ParameterKind::kRaw, models::language_model_parameters(model, routing),
                      device, type));
  if (!model.attend_across_documents) loaded.model.end_of_text = end_of_text_of(checkpoint, loaded.config);
  loaded.routing = load_routing(checkpoint, loaded.config, device);
  return loaded;
}

data::Tokenizer load_tokenizer(const checkpoint::Checkpoint& checkpoint, const fs::path& other,
                               int64_t vocab_size) {
  const bool has_own = checkpoint.has_tokenizer();
  if (!has_own && other.empty())
    throw UsageError(
        checkpoint.path(),
        ": holds no tokenizer.json (the run was trained on token files without one); pass --tokenizer");
  const fs::path path = has_own ? checkpoint.tokenizer_path() : other;
  data::Tokenizer tokenizer = data::Tokenizer::load(path);
  if (has_own && !other.empty() && data::Tokenizer::load(other).hash() != tokenizer.hash())
    throw UsageError("--tokenizer ", other,
                     ": differs from the checkpoint's own tokenizer; omit --tokenizer");
  if (tokenizer.vocab_size() > vocab_size)
    throw UsageError(path, ": a tokenizer of ", tokenizer.vocab_size(),
                     " ids does not fit the checkpoint's model.vocab_size of ", vocab_size);
  return tokenizer;
}

std::string describe_model(const config::RunConfig& config, int64_t tokens) {
  const plan::Plan plan = plan::make_plan(config);
  const auto number = [](auto count) { return format_count(static_cast<double>(count)); };
  return number(plan.parameters) + " parameters (" + number(plan.active_parameters) +
         " active per token), after " + number(tokens) + " tokens";
}

}  // namespace dtopp::inference
