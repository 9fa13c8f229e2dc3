// Divides held-out samples into their sources, whose results validation reports separately.
#pragma once

#include <cstdint>
#include <vector>

#include "dtopp/config/data_config.h"
#include "dtopp/models/batch.h"

namespace dtopp::models {

// Returns the sources of data.validation, which have `sizes` samples, one after another; none unless
// data.validates_by_source(). Throws DataError if a source has no sample.
std::vector<HeldOutSource> held_out_sources(const config::DataConfig& data,
                                            const std::vector<uint64_t>& sizes);

// Returns the first samples of each source of `data`: `samples` of them, but at most all. Without sources,
// returns one without a name.
std::vector<HeldOutSource> first_of_each(const TrainingData& data, uint64_t samples);

}  // namespace dtopp::models
