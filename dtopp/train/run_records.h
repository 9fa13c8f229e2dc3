// Writes steps and validations to metrics.jsonl, under the names of docs/files.md.
#pragma once

#include "dtopp/runs/metrics.h"
#include "dtopp/train/run.h"

namespace dtopp {

// An empty record with the current time.
MetricRecord record_now(int64_t step, int64_t tokens);

// Adds train/… and, for a model with routers, moe/… in total and per layer.
void add_step(const StepResult& result, MetricRecord& record);

// Adds data/… if sources have weights: their use up to `position`.
void add_sources(const TrainingData& data, int64_t position, MetricRecord& record);

// Adds throughput/…, memory/… and, with several ranks, comm/…. data_share: the share of the step spent
// waiting for data.
void add_rates(const StepRates& rates, double data_share, MetricRecord& record);

// Adds val/….
void add_validation(const ValidationResult& result, MetricRecord& record);

}  // namespace dtopp
