// Checks bounds that values of several sections share. Throws InvalidValue, which names the key.
#pragma once

#include <cstdint>

#include "dtopp/config/config.h"

namespace dtopp::config {

// A value that is 0 because its key is missing, or because it is set to 0.
struct MissingValue : InvalidValue {
  using InvalidValue::InvalidValue;
};

void require_at_least(const char* key, int64_t least, int64_t value);
void require_between(const char* key, int64_t least, int64_t most, int64_t value);
void require_between(const char* key, double least, double most, double value);
void require_not_negative(const char* key, double value);
void require_threshold(const char* key, double value);  // in (0, 1)

}  // namespace dtopp::config
