// What a step and a validation put into metrics.jsonl: the names of docs/files.md.
#pragma once

#include "dtopp/runs/metrics.h"
#include "dtopp/train/run.h"

namespace dtopp {

// An empty record of this moment.
MetricRecord record_now(int64_t step, int64_t tokens);

// train/…, and where there are routers moe/… in all and by layer.
void add_step(const StepResult& result, const RoutingConfig& routing, MetricRecord& record);

// data/…, where sources have weights: what they were of the samples before `position`.
void add_sources(const TrainingData& data, int64_t position, MetricRecord& record);

// throughput/…, memory/… and, of several ranks, comm/…; data_share: part of the step spent waiting for data.
void add_rates(const StepRates& rates, double data_share, MetricRecord& record);

// val/….
void add_validation(const ValidationResult& result, MetricRecord& record);

}  // namespace dtopp
