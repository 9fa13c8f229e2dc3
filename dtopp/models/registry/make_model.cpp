#include "dtopp/models/registry/make_model.h"

#include <stdexcept>

#include "dtopp/models/diffusion_transformer/diffusion_transformer.h"
#include "dtopp/models/language_model/language_model.h"

namespace dtopp {
namespace {

struct TypeEntry {
  ModelType type;
  Model (*make)(const RunConfig&);
};

constexpr TypeEntry kModelTypes[] = {
    {ModelType::kLanguageModel, make_language_model},
    {ModelType::kDiffusionTransformer, make_diffusion_transformer},
};

}  // namespace

Model make_model(const RunConfig& config) {
  for (const TypeEntry& entry : kModelTypes) {
    if (entry.type == config.model.type) return entry.make(config);
  }
  throw std::invalid_argument("make_model: no model of this type");
}

}  // namespace dtopp
