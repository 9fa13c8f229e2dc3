// The configuration struct on which the tests of the generic machinery run.
#pragma once

#include <array>

#include "dtopp/config/config.h"
#include "tests/config/temporary_files.h"

namespace local {

enum class Colour { kRed, kGreen };
constexpr auto enum_names(Colour) { return std::to_array<std::string_view>({"red", "green"}); }

// A section whose fields depend on one of them.
struct Paint {
  Colour colour = Colour::kRed;
  int64_t warmth = 1;   // exists if colour is red
  int64_t shadows = 2;  // exists if colour is green
};
struct Inner {
  int64_t count = 3;
  double rate = 0.5;
  std::vector<double> weights = {1.0};
};
struct Outer {
  std::string title;
  bool flag = false;
  Colour colour = Colour::kRed;
  Inner inner;
  std::vector<std::string> words;
  Paint paint;
};

void visit_fields(dtopp::config::SectionOf<Inner> auto& config, auto&& field) {
  field("count", config.count);
  field("rate", config.rate);
  field("weights", config.weights);
}
void visit_fields(dtopp::config::SectionOf<Paint> auto& config, auto&& field) {
  field("colour", config.colour);
  if (config.colour == Colour::kRed) field("warmth", config.warmth);
  if (config.colour == Colour::kGreen) field("shadows", config.shadows);
}
void visit_fields(dtopp::config::SectionOf<Outer> auto& config, auto&& field) {
  field("title", config.title);
  field("flag", config.flag);
  field("colour", config.colour);
  field("inner", config.inner);
  field("words", config.words);
  field("paint", config.paint);
}

}  // namespace local

namespace dtopp::config {

using local::Outer;

inline Outer read(const std::string& yaml) {
  Outer config;
  read_config(parse_config(yaml, "a.yaml"), config);
  return config;
}

class Machinery : public TemporaryFiles {
 protected:
  std::string error(const std::string& yaml) const {
    return usage_error([&] { read(yaml); });
  }
};

}  // namespace dtopp::config
