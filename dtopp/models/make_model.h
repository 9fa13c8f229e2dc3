// Makes the model that a configuration describes: one table row per model type.
//
// Throws: std::invalid_argument if no model has the configured type.
#pragma once

#include "dtopp/data/files/verified_files.h"
#include "dtopp/models/batch.h"
#include "dtopp/models/costs.h"
#include "dtopp/models/model.h"

namespace dtopp::models {
// Reads and allocates nothing.
Model make_model(const config::RunConfig& config);

StepCosts model_costs(const config::ModelConfig& model, const CostInputs& inputs);

// Opens the data of config.data and checks that it fits the model. Throws UsageError if it does not fit,
// DataError if it is missing or damaged.
TrainingData open_training_data(const config::RunConfig& config, data::Verify verify);

}  // namespace dtopp::models
