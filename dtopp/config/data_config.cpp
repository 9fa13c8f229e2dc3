#include "dtopp/config/data_config.h"

#include <numeric>
#include <set>

#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
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
    } else if (node.keys[i] == "name") {
      detail::read_value(node.items[i], of_source, source.name);
    } else if (node.keys[i] == "weight") {
      detail::read_value(node.items[i], of_source, source.weight.emplace());
    } else {
      detail::throw_unknown_key(node.items[i], of_source, {key + ".path", key + ".name", key + ".weight"});
    }
  }
  if (node.find("path") == nullptr) throw UsageError(node.location(), ": ", key, ": has no path");
  return source;
}

void require_paths(const char* key, const std::vector<DataSource>& sources) {
  if (std::ranges::count(sources, "", &DataSource::path) > 0) throw InvalidValue(key, "holds an empty path");
}

fs::path normalized(const DataSource& source) {
  return without_trailing_slash(fs::path(source.path).lexically_normal());
}

// Sources whose names appear in metrics.
void require_distinct_names(const char* key, const std::vector<DataSource>& sources) {
  std::set<fs::path> paths;
  for (const DataSource& source : sources) {
    if (!std::ranges::all_of(source.name, is_plain))
      throw InvalidValue(key, "the name ", quote_for_message(source.name),
                         " may hold letters, digits, _, - and . only");
    if (!paths.insert(normalized(source)).second)
      throw InvalidValue(key, "names ", source.path, " twice; list it once");
  }
  std::set<std::string> names;
  for (const std::string& name : source_names(sources)) {
    if (!names.insert(name).second)
      throw InvalidValue(key, "two sources have the name ", name, "; give one another name");
    if (name.starts_with("layer_"))
      throw InvalidValue(key, "the name ", name, " starts as those of layers do; give it another name");
  }
}

bool any_has_weight(const std::vector<DataSource>& sources) {
  return std::ranges::any_of(sources, [](const DataSource& source) { return source.weight.has_value(); });
}

bool any_has_name(const std::vector<DataSource>& sources) {
  return std::ranges::any_of(sources, [](const DataSource& source) { return !source.name.empty(); });
}

void validate_train(const DataConfig& config) {
  if (!config.is_weighted() && any_has_name(config.train))
    throw InvalidValue("data.train", "a source with a name needs weights; give the sources weights");
  if (!config.is_weighted()) return;
  for (const DataSource& source : config.train) {
    if (source.weight && !(*source.weight > 0))
      throw InvalidValue("data.train", "the weight of ", source.path, " must be above 0, is ",
                         detail::print_value(*source.weight));
  }
  require_distinct_names("data.train", config.train);
}

// Returns stems of paths, with as many parent folders as make them differ.
std::vector<std::string> distinct_stems(std::vector<fs::path> rest) {
  std::vector<std::string> names(rest.size());
  std::ranges::transform(rest, names.begin(), [](const auto& path) { return path.stem().string(); });
  while (std::set(names.begin(), names.end()).size() < names.size()) {
    bool longer = false;
    for (size_t i = 0; i < names.size(); ++i) {
      const std::string folder = rest[i].parent_path().filename().string();
      longer = longer || !folder.empty();
      if (!folder.empty()) names[i] = folder + "_" + names[i];
      rest[i] = rest[i].parent_path();
    }
    if (!longer) throw std::invalid_argument("source_names: two paths are the same");
  }
  return names;
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
      result.push_back(read_source(node.items[i], concat(key, "[", i, "]")));
  }
  sources = std::move(result);
}

std::string print_value(const std::vector<DataSource>& sources) {
  std::string out = "[";
  for (const DataSource& source : sources) {
    const std::string path = detail::print_value(source.path);
    out.append(out.size() > 1 ? ", " : "");
    if (!source.weight && source.name.empty()) {
      out.append(path);
      continue;
    }
    out.append("{path: " + path);
    if (!source.name.empty()) out.append(", name: " + detail::print_value(source.name));
    if (source.weight) out.append(", weight: " + detail::print_value(*source.weight));
    out.append("}");
  }
  return out + "]";
}

std::vector<std::string> paths_of(const std::vector<DataSource>& sources) {
  std::vector<std::string> paths;
  for (const DataSource& source : sources) paths.push_back(source.path);
  return paths;
}

std::vector<std::string> source_names(const std::vector<DataSource>& sources) {
  std::vector<fs::path> unnamed;
  for (const DataSource& source : sources)
    if (source.name.empty()) unnamed.push_back(normalized(source));
  const std::vector<std::string> stems = distinct_stems(std::move(unnamed));
  std::vector<std::string> names;
  size_t next = 0;
  for (const DataSource& source : sources) names.push_back(source.name.empty() ? stems[next++] : source.name);
  return names;
}

bool DataConfig::is_weighted() const { return any_has_weight(train); }

std::vector<double> DataConfig::weights() const {
  std::vector<double> weights;
  for (const DataSource& source : train) weights.push_back(source.weight.value_or(1));
  return weights;
}

bool DataConfig::validates_by_source() const { return validation.size() > 1 || any_has_name(validation); }

std::vector<double> DataConfig::mixture_shares() const {
  if (!validates_by_source() || !is_weighted()) return {};
  const std::vector<std::string> names = source_names(validation), train_names = source_names(train);
  const std::vector<double> train_weights = weights();
  const double total = std::reduce(train_weights.begin(), train_weights.end());
  std::vector<double> shares(names.size());
  for (size_t i = 0; i < train_names.size(); ++i) {
    const auto found = std::ranges::find(names, train_names[i]);
    if (found == names.end()) return {};
    shares[found - names.begin()] = train_weights[i] / total;
  }
  return shares;
}

void validate(const DataConfig& config, const ModelConfig& model) {
  require_paths("data.train", config.train);
  require_paths("data.validation", config.validation);
  validate_train(config);
  if (any_has_weight(config.validation))
    throw InvalidValue("data.validation", "only sources of data.train have weights; remove the weight");
  if (config.validates_by_source()) require_distinct_names("data.validation", config.validation);
  if (model.type != ModelType::kLanguageModel) return;
  if (config.end_of_text < -1 || config.end_of_text >= model.vocab_size)
    throw InvalidValue("data.end_of_text", "must be an id below model.vocab_size ", model.vocab_size,
                       ", or -1 for the tokenizer's, is ", config.end_of_text);
}

}  // namespace dtopp::config
