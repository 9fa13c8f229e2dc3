#include "dtopp/config/value_bounds.h"

#include "dtopp/config/config.h"

namespace dtopp::config {

void require_at_least(const char* key, int64_t least, int64_t value) {
  if (value < least)
    throw InvalidValue(key, "must be at least " + std::to_string(least) + ", is " + std::to_string(value));
}

void require_between(const char* key, int64_t least, int64_t most, int64_t value) {
  if (value < least || value > most)
    throw InvalidValue(key, "must lie in [" + std::to_string(least) + ", " + std::to_string(most) + "], is " +
                                std::to_string(value));
}

void require_between(const char* key, double least, double most, double value) {
  if (!(value >= least && value <= most))
    throw InvalidValue(key, "must lie in [" + detail::print_value(least) + ", " + detail::print_value(most) +
                                "], is " + detail::print_value(value));
}

void require_not_negative(const char* key, double value) {
  if (!(value >= 0)) throw InvalidValue(key, "must not be negative, is " + detail::print_value(value));
}

void require_threshold(const char* key, double value) {
  if (!(value > 0 && value < 1))
    throw InvalidValue(key, "must lie between 0 and 1, both excluded, is " + detail::print_value(value));
}

}  // namespace dtopp::config
