// Parses the YAML file of a study: its keys, and the sections that have their own structure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dtopp/config/config.h"
#include "dtopp/study/definition.h"

namespace dtopp::study {

// Sections with their own structure. Each has a read_value that throws UsageError with file, line and key.
struct Variants {
  std::vector<Variant> all;
};
struct Axis {
  std::string key;
  std::vector<config::ConfigNode> values;
  std::string location;
};
struct Axes {
  std::vector<Axis> all;
};
struct Commands {
  std::vector<AfterCommand> all;
};
struct Comparisons {
  std::vector<PlannedComparison> all;
};
struct SeedsByVariant {
  std::vector<std::pair<std::string, std::vector<int64_t>>> all;
};

void read_value(const config::ConfigNode& node, const std::string& key, Variants& variants);
void read_value(const config::ConfigNode& node, const std::string& key, Axes& axes);
void read_value(const config::ConfigNode& node, const std::string& key, Commands& commands);
void read_value(const config::ConfigNode& node, const std::string& key, Comparisons& comparisons);
void read_value(const config::ConfigNode& node, const std::string& key, SeedsByVariant& seeds);

struct DefinitionFields {
  std::string base;
  std::vector<int64_t> seeds;
  Variants variants;
  SeedsByVariant only;
  Axes grid, zip;
  std::vector<std::string> measure;
  Comparisons compare;
  Commands after;
  std::string ledger;
  std::string output;
};

void visit_fields(config::SectionOf<DefinitionFields> auto& config, auto&& field) {
  field("base", config.base);
  field("seeds", config.seeds);
  field("variants", config.variants);
  field("only", config.only);
  field("grid", config.grid);
  field("zip", config.zip);
  field("measure", config.measure);
  field("compare", config.compare);
  field("after", config.after);
  field("ledger", config.ledger);
  field("output", config.output);
}

// The keys of one entry of `compare`.
void visit_fields(config::SectionOf<VariantPair> auto& config, auto&& field) {
  field("of", config.of);
  field("less", config.less);
}
void visit_fields(config::SectionOf<PlannedComparison> auto& config, auto&& field) {
  field("name", config.name);
  field("of", config.of);
  field("less", config.less);
  field("over", config.over);
  field("measure", config.measure);
  field("margin", config.margin);
  field("excluded", config.excluded);
  field("family", config.family);
}

// Appends the settings of a mapping. {routing.method: top_k} and {routing: {method: top_k}} are one setting
// each.
void append_settings(const config::ConfigNode& node, const std::string& section,
                     std::vector<Setting>& settings);

}  // namespace dtopp::study
