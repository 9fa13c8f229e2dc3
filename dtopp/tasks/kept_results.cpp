#include "dtopp/tasks/kept_results.h"

#include <cmath>
#include <span>
#include <system_error>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"
#include "dtopp/base/path_kind.h"

namespace dtopp::tasks {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr char kFormat[] = "dtopp task result 3";

std::string record_name(const Task& task) { return std::string(task.name) + ".json"; }
std::string dump_name(const Task& task) { return std::string(task.name) + ".jsonl"; }

// An integer from 0 to `most`; nullopt for anything else.
std::optional<int64_t> read_count(const json& value, int64_t most) {
  // nlohmann stores a number beyond int64 as unsigned; the comparison with `most` rejects it too.
  if (!value.is_number_integer() || value < 0 || value > most) return std::nullopt;
  return value.get<int64_t>();
}

std::optional<Tally> read_tally(const json& sums, const DataSet& data, size_t items) {
  if (!sums.is_array() || sums.size() != 6 || !sums[2].is_number()) return std::nullopt;
  const auto most = static_cast<int64_t>(items);
  const auto correct = read_count(sums[0], most), counted = read_count(sums[1], most);
  const auto tokens = read_count(sums[3], INT64_MAX);
  const auto nll = sums[2].get<double>();
  const auto selected = read_count(sums[4], INT64_MAX), routed = read_count(sums[5], INT64_MAX);
  if (!correct || counted != most || !tokens || !selected || !routed || !std::isfinite(nll))
    return std::nullopt;
  return Tally{data.category, *correct, *counted, nll, *tokens, {*selected, *routed}};
}

ordered_json to_json(const std::vector<Tally>& tallies) {
  ordered_json sums = ordered_json::array();
  for (const Tally& tally : tallies)
    sums.push_back(
        {tally.correct, tally.items, tally.nll, tally.tokens, tally.experts.selected, tally.experts.routed});
  return sums;
}

// The facts in a record about how its sums were computed; null if it has none.
json about(const Manifest& record) {
  return record.about.empty() ? json() : parse_json(record.about, kFormat);
}

json member(const json& object, const char* key) {
  return object.is_object() ? object.value(key, json()) : json();
}

bool verifies(const fs::path& folder, const ManifestFiles& files, const std::string& name) {
  const auto entry = files.find(name);
  if (entry == files.end()) return false;
  try {
    verify_content(folder, {*entry});
    return true;
  } catch (const DataError&) {
    return false;
  }
}

void remove_file(const fs::path& path) {
  std::error_code error;
  fs::remove(path, error);
  if (error) throw file_error("remove", path, error.value());
}

}  // namespace

fs::path kept_results_of(const fs::path& output) {
  return output.empty() ? fs::path() : fs::path(output.string() + ".parts");
}

ordered_json KeptResults::key_of(const TaskRequests& requests) const {
  ordered_json key = key_;
  key["items_sha256"] = digest_items(requests.data_sets);
  ordered_json counts = ordered_json::array();
  for (const auto& data_set : requests.requests) counts.push_back(data_set.size());
  key["items"] = std::move(counts);
  return key;
}

// nullopt if the file is not a record of dtopp's.
std::optional<Manifest> KeptResults::read_record(const Task& task) const {
  try {
    return read_manifest(folder_, kFormat, record_name(task));
  } catch (const DataError&) {
    return std::nullopt;
  }
}

std::optional<std::vector<Tally>> KeptResults::find(const TaskRequests& requests) const {
  if (!keeps()) return std::nullopt;
  const auto record = read_record(requests.task);
  if (!record) return std::nullopt;
  const json facts = about(*record);
  if (member(facts, "key") != parse_json(dump_json(key_of(requests)), kFormat)) return std::nullopt;
  if (!verifies(folder_, record->files, dump_name(requests.task))) return std::nullopt;
  const json sums = member(facts, "tallies");
  if (!sums.is_array() || sums.size() != requests.data_sets.size()) return std::nullopt;
  std::vector<Tally> tallies;
  for (size_t i = 0; i < sums.size(); ++i) {
    const auto tally = read_tally(sums[i], requests.data_sets[i], requests.requests[i].size());
    if (!tally) return std::nullopt;
    tallies.push_back(*tally);
  }
  return tallies;
}

bool KeptResults::keep(const TaskRequests& requests, const std::vector<Tally>& tallies, std::string dump) {
  if (!keeps()) return true;
  const std::string name = dump_name(requests.task);
  const auto exists = [&](const std::string& file) {
    return path_kind(folder_ / file) != PathKind::kNothing;
  };
  if ((exists(name) || exists(record_name(requests.task))) && !read_record(requests.task)) {
    dumps_in_memory_[name] = std::move(dump);
    return false;
  }
  const ordered_json facts = {{"key", key_of(requests)}, {"tallies", to_json(tallies)}};
  Manifest record{kFormat, dump_json(facts), {}};
  record.files[name] = {dump.size(), hash_bytes(std::as_bytes(std::span(dump)))};
  make_directories(folder_);
  // With this order, a record names every file of dtopp's, whenever the process is interrupted.
  remove_file(folder_ / name);
  write_file_atomically(folder_ / record_name(requests.task), format_manifest(record));
  write_file_atomically(folder_ / name, dump);
  return true;
}

std::string KeptResults::dump(const Task& task) const {
  const auto in_memory = dumps_in_memory_.find(dump_name(task));
  return in_memory == dumps_in_memory_.end() ? read_file(folder_ / dump_name(task)) : in_memory->second;
}

void KeptResults::remove() const {
  if (!keeps()) return;
  for (const Task& task : all_tasks()) {
    if (!read_record(task)) continue;
    remove_file(folder_ / dump_name(task));
    remove_file(folder_ / record_name(task));
  }
  std::error_code not_empty;  // the folder holds other files; it stays
  fs::remove(folder_, not_empty);
}

}  // namespace dtopp::tasks
