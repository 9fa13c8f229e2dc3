// Writes steps and validations to metrics.jsonl, under the names of docs/reference/metrics.md.
#pragma once

#include "dtopp/runs/metrics.h"
#include "dtopp/train/run.h"

namespace dtopp::train {

// An empty record with the current time.
runs::MetricRecord record_now(int64_t step, int64_t tokens);

// Adds train/… and, for a model with routers, moe/… in total and per layer.
void add_step(const StepResult& result, const config::ModelConfig& model, runs::MetricRecord& record);

// Adds data/… if sources have weights: their use up to `position`.
void add_sources(const models::TrainingData& data, int64_t position, runs::MetricRecord& record);

// Adds train/active_flops, as `plan` counts them for the pairs of all steps so far, and, for a model with
// routers, train/active_experts_mean.
void add_work(const StepResult& result, const plan::Plan& plan, runs::MetricRecord& record);

// Adds throughput/…, memory/… and, with several ranks, comm/…. data_share: the share of the step spent
// waiting for data.
void add_rates(const StepRates& rates, double data_share, runs::MetricRecord& record);

// Adds checkpoint/….
void add_saving(const SaveTimes& times, runs::MetricRecord& record);

// Adds val/….
void add_validation(const models::ValidationResult& result, runs::MetricRecord& record);

}  // namespace dtopp::train
