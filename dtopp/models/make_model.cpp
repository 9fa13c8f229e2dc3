#include "dtopp/models/make_model.h"

#include <unordered_map>

#include "dtopp/models/diffusion_transformer.h"
#include "dtopp/models/image_batches.h"
#include "dtopp/models/language_model.h"

namespace dtopp::models {
namespace {

struct TypeEntry {
  config::ModelType type;
  Model (*make)(const config::RunConfig& config);
  StepCosts (*costs)(const config::ModelConfig& model, const CostInputs& inputs);
  TrainingData (*open_data)(const config::RunConfig& config, data::Verify verify);
};

constexpr TypeEntry kModelTypes[] = {
    {config::ModelType::kLanguageModel, make_language_model, language_model_costs, language_model_data},
    {config::ModelType::kDiffusionTransformer, make_diffusion_transformer, diffusion_transformer_costs,
     diffusion_transformer_data},
};

const TypeEntry& entry_of(config::ModelType type) {
  for (const TypeEntry& entry : kModelTypes)
    if (entry.type == type) return entry;
  throw std::invalid_argument("make_model: no model of this type");
}

}  // namespace

ParameterLookup looked_up(const std::vector<parameters::ParameterSpec>& specs,
                          const ParameterLookup& parameter) {
  std::unordered_map<std::string, Tensor> tensors;
  for (const parameters::ParameterSpec& spec : specs) tensors.emplace(spec.name, parameter(spec.name));
  return [tensors = std::move(tensors)](const std::string& name) { return tensors.at(name); };
}

Model make_model(const config::RunConfig& config) { return entry_of(config.model.type).make(config); }

StepCosts model_costs(const config::ModelConfig& model, const CostInputs& inputs) {
  return entry_of(model.type).costs(model, inputs);
}

TrainingData open_training_data(const config::RunConfig& config, data::Verify verify) {
  return entry_of(config.model.type).open_data(config, verify);
}

}  // namespace dtopp::models
