#include "dtopp/config/data_config.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "dtopp/base/path_kind.h"
#include "dtopp/config/config.h"

namespace dtopp::config {
namespace {

using Kind = ConfigNode::Kind;

DataSource read_source(const ConfigNode& node, const std::string& key) {
  DataSource source;
  if (node.kind != Kind::kMapping) {
    detail::read_value(node, key, source.path);
    return source;
  }
  for (size_t i = 0; i < node.keys.size(); ++i) {
    const std::string of_source = key + "." + node.keys[i];
    if (node.keys[i] == "path") {
      detail::read_value(node.items[i], of_source, source.path);
    } else if (node.keys[i] == "weight") {
      detail::read_value(node.items[i], of_source, source.weight.emplace());
    } else {
      detail::throw_unknown_key(node.items[i], of_source, {key + ".path", key + ".weight"});
    }
  }
  if (node.find("path") == nullptr) throw UsageError(node.location() + ": " + key + ": has no path");
  return source;
}

void require_paths(const char* key, const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    if (path.empty()) throw InvalidValue(key, "holds an empty path");
  }
}

void validate_weights(const DataConfig& config) {
  std::set<std::filesystem::path> seen;
  for (const DataSource& source : config.train) {
    if (source.weight && !(*source.weight > 0))
      throw InvalidValue("data.train", "the weight of " + source.path + " must be above 0, is " +
                                           detail::print_value(*source.weight));
    const auto path = without_trailing_slash(std::filesystem::path(source.path).lexically_normal());
    if (!seen.insert(path).second)
      throw InvalidValue("data.train", "names " + source.path + " twice; give it one weight");
  }
}

}  // namespace

void read_value(const ConfigNode& node, const std::string& key, std::vector<DataSource>& sources) {
  const bool is_nothing = node.kind == Kind::kNull || (node.kind == Kind::kScalar && node.text.empty());
  if (is_nothing) detail::throw_wrong_type(node, key, "a path or a list of sources");
  std::vector<DataSource> result;
  if (node.kind != Kind::kList) {
    result.push_back(read_source(node, key));
  } else {
    for (size_t i = 0; i < node.items.size(); ++i)
      result.push_back(read_source(node.items[i], key + "[" + std::to_string(i) + "]"));
  }
  sources = std::move(result);
}

std::string print_value(const std::vector<DataSource>& sources) {
  std::string out = "[";
  for (const DataSource& source : sources) {
    const std::string path = detail::print_value(source.path);
    out.append(out.size() > 1 ? ", " : "");
    if (source.weight)
      out.append("{path: " + path + ", weight: " + detail::print_value(*source.weight) + "}");
    else
      out.append(path);
  }
  return out + "]";
}

std::vector<std::string> DataConfig::train_paths() const {
  std::vector<std::string> paths;
  for (const DataSource& source : train) paths.push_back(source.path);
  return paths;
}

bool DataConfig::is_weighted() const {
  return std::ranges::any_of(train, [](const DataSource& source) { return source.weight.has_value(); });
}

std::vector<double> DataConfig::weights() const {
  std::vector<double> weights;
  for (const DataSource& source : train) weights.push_back(source.weight.value_or(1));
  return weights;
}

void validate(const DataConfig& config, const ModelConfig& model) {
  require_paths("data.train", config.train_paths());
  require_paths("data.validation", config.validation);
  if (config.is_weighted()) validate_weights(config);
  if (model.type != ModelType::kLanguageModel) return;
  if (config.end_of_text < -1 || config.end_of_text >= model.vocab_size)
    throw InvalidValue("data.end_of_text",
                       "must be an id below model.vocab_size " + std::to_string(model.vocab_size) +
                           ", or -1 for the tokenizer's, is " + std::to_string(config.end_of_text));
}

}  // namespace dtopp::config
