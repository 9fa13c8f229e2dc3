#include "dtopp/study/ledger.h"

#include <cmath>
#include <iterator>

#include <nlohmann/json.hpp>

#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"
#include "dtopp/base/manifest.h"

namespace dtopp::study {
namespace {

constexpr uint64_t kMaxLedgerBytes = 1 << 28;

// Eight significant digits, which a curve of single-precision values needs at most.
double shortened(double value) {
  const std::string text = format("%.8g", value);
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

ordered_json list_of(const std::vector<double>& values) {
  auto list = ordered_json::array();
  for (const double value : values)
    list.push_back(std::isfinite(value) ? ordered_json(shortened(value)) : ordered_json());
  return list;
}

ordered_json curves_json(const RunCurves& curves) {
  auto json = ordered_json::object();
  for (const auto& [measure, curve] : curves) {
    json[measure]["value"] = list_of(curve.value);
    for (size_t axis = 0; axis < curve.x.size(); ++axis)
      json[measure][enum_name(static_cast<CurveAxis>(axis))] = list_of(curve.x[axis]);
  }
  return json;
}

ordered_json row_json(const LedgerRow& row) {
  ordered_json json = {{"run", row.run},
                       {"variant", row.variant},
                       {"grid", ordered_json(parse_json(row.grid, row.run))},
                       {"seed", row.seed},
                       {"config_hash", row.config_hash},
                       {"data_hash", row.data_hash},
                       {"values", ordered_json::object()},
                       {"diverged", ordered_json::array()},
                       {"after", row.record.after},
                       {"seconds", shortened(row.record.seconds)},
                       {"steps", row.steps},
                       {"tokens", row.tokens},
                       {"active_flops", shortened(row.active_flops)},
                       {"made_by", row.made_by},
                       {"curves", curves_json(row.curves)}};
  for (const auto& [measure, value] : row.values) {
    json["values"][measure] = number_json(value.value);
    if (value.diverged) json["diverged"].push_back(measure);
  }
  return json;
}

LedgerRow row_of(const nlohmann::json& json) {
  LedgerRow row{
      .run = json.at("run"),
      .variant = json.at("variant"),
      .grid = dump_json(json.at("grid")),
      .seed = integer_of(json.at("seed")),
      .config_hash = json.at("config_hash"),
      .data_hash = json.at("data_hash"),
      .record = {.status = RunStatus::kDone, .seconds = json.at("seconds"), .after = json.at("after")},
      .steps = integer_of(json.at("steps")),
      .tokens = integer_of(json.at("tokens")),
      .active_flops = json.at("active_flops"),
      .made_by = json.at("made_by")};
  for (const auto& [measure, value] : json.at("values").items())
    if (!value.is_null()) row.values[measure].value = value.get<double>();
  for (const nlohmann::json& measure : json.at("diverged")) row.values[measure].diverged = true;
  for (const auto& [measure, curve] : json.at("curves").items()) {
    RunCurve& own = row.curves[measure];
    own.value = numbers_of(curve.at("value"));
    for (size_t axis = 0; axis < own.x.size(); ++axis) {
      own.x[axis] = numbers_of(curve.at(enum_name(static_cast<CurveAxis>(axis))));
      if (!own.x[axis].empty() && own.x[axis].size() != own.value.size())
        throw DataError(row.run, ": ", measure, ": lists of a curve differ in length");
    }
  }
  return row;
}

bool is_same_run(const LedgerRow& a, const LedgerRow& b) {
  return a.run == b.run && a.config_hash == b.config_hash && a.data_hash == b.data_hash;
}

std::string lines_of(const std::vector<const LedgerRow*>& rows) {
  std::string text;
  for (const LedgerRow* row : rows) text += (text.empty() ? "\n" : ",\n") + dump_json(row_json(*row));
  return text;
}

// A path of data is a folder with a manifest, a file, or the prefix of a .bin and an .idx file.
std::string hash_of_path(const fs::path& path) {
  switch (path_kind(path)) {
    case PathKind::kDirectory:
      return hash_file(path / kManifestName);
    case PathKind::kFile:
      return hash_file(path);
    default:
      return hash_file(path.string() + ".bin") + hash_file(path.string() + ".idx");
  }
}

// Throws DataError if the two rows are of one run and a measure of both has two values.
void require_agreement(const LedgerRow& a, const std::string& place_of_a, const LedgerRow& b,
                       const std::string& place_of_b) {
  for (const auto& [measure, value] : a.values) {
    const auto other = b.values.find(measure);
    if (other == b.values.end() || !value.value || !other->second.value) continue;
    if (*value.value != *other->second.value)
      throw DataError(format("%s: run %s: %s is %.9g, but %.9g in %s; remove one of the two",
                             place_of_a.c_str(), a.run.c_str(), measure.c_str(), *value.value,
                             *other->second.value, place_of_b.c_str()));
  }
}

}  // namespace

LedgerKeeper::LedgerKeeper(const Study& study, const std::vector<StudyRun>& runs)
    : study_(study), runs_(runs) {
  const fs::path& file = study.ledger;
  if (file.empty() || path_kind(file) == PathKind::kNothing) return;
  const nlohmann::json json = parse_json(read_file(file, kMaxLedgerBytes), file.string());
  try {
    for (const char* list : {"earlier", "runs"}) {
      for (const nlohmann::json& item : json.at(list)) {
        LedgerRow row = row_of(item);
        for (const LedgerRow& other : rows_)
          if (is_same_run(row, other)) require_agreement(row, file.string(), other, "another row");
        add(std::move(row));
      }
    }
  } catch (const nlohmann::json::exception& error) {
    throw DataError(file, ": is not a ledger: ", error.what());
  }
}

const LedgerRow* LedgerKeeper::find(const std::string& run, const std::string& config_hash,
                                    const std::string& data_hash) const {
  for (auto row = rows_.rbegin(); row != rows_.rend(); ++row) {
    if (row->run == run && row->config_hash == config_hash &&
        (data_hash.empty() || row->data_hash == data_hash))
      return &*row;
  }
  return nullptr;
}

void LedgerKeeper::add(LedgerRow row) {
  std::erase_if(rows_, [&](const LedgerRow& other) { return is_same_run(row, other); });
  rows_.push_back(std::move(row));
}

void LedgerKeeper::write() const {
  std::set<std::string> seen;
  std::vector<const LedgerRow*> current, earlier;
  for (auto row = rows_.rbegin(); row != rows_.rend(); ++row)
    (seen.insert(row->run).second ? current : earlier).push_back(&*row);
  std::ranges::reverse(current);
  std::ranges::reverse(earlier);
  make_directories(fs::absolute(study_.ledger).parent_path());
  write_file_atomically(
      study_.ledger, "{\"runs\": [" + lines_of(current) + "],\n\"earlier\": [" + lines_of(earlier) + "]}\n");
}

const std::string& LedgerKeeper::data_hash(const config::RunConfig& config) {
  std::vector<std::string> paths = config::paths_of(config.data.train);
  std::ranges::move(config::paths_of(config.data.validation), std::back_inserter(paths));
  if (const auto known = hashes_.find(paths); known != hashes_.end()) return known->second;
  std::string hashes;
  for (const std::string& path : paths) hashes += hash_of_path(path) + "\n";
  return hashes_[paths] = hash_bytes(std::as_bytes(std::span(hashes)));
}

std::vector<std::string> LedgerKeeper::take_runs(std::vector<RunRecord>& records, ResultsReader& reader) {
  std::vector<std::string> messages;
  if (study_.ledger.empty()) return messages;
  int64_t unchecked = 0;
  for (size_t i = 0; i < runs_.size(); ++i) {
    if (is_complete(records[i], study_.after)) continue;
    std::string data;
    try {
      data = data_hash(runs_[i].config);
    } catch (const DataError&) {  // the data are not on this machine
    }
    const LedgerRow* row = find(runs_[i].name, runs_[i].hash, data);
    if (row == nullptr || !is_complete(row->record, study_.after)) continue;
    if (data.empty()) ++unchecked;
    records[i] = row->record;
    std::vector<RunValue> values;
    auto known = row->values;
    for (const std::string& measure : study_.measures) values.push_back(known[measure]);
    reader.set(i, std::move(values));
    curves_[i] = row->curves;
  }
  if (unchecked > 0)
    messages.push_back("warning: " + study_.ledger.string() + ": " + std::to_string(unchecked) +
                       " runs count although their data are not on this machine to be compared");
  return messages;
}

LedgerRow LedgerKeeper::make_row(size_t index, const RunRecord& record,
                                 const std::vector<RunValue>& values) const {
  const StudyRun& run = runs_[index];
  LedgerRow row{.run = run.name,
                .variant = study_.variants[run.variant].name,
                .grid = dump_json(to_json(study_.points[run.point])),
                .seed = run.seed,
                .config_hash = run.hash,
                .record = record};
  for (size_t i = 0; i < values.size(); ++i) row.values[study_.measures[i]] = values[i];
  const runs::RunHistory history = runs::read_run_history(metrics_of_run(run));
  if (!history.tokens.steps.empty()) {
    row.steps = history.tokens.steps.back();
    row.tokens = static_cast<int64_t>(history.tokens.values.back());
  }
  const auto flops = history.series.find("train/active_flops");
  if (flops != history.series.end()) row.active_flops = flops->second.values.back();
  row.curves = curves_of_run(history, study_.measures, kLedgerPoints);
  return row;
}

void LedgerKeeper::add_runs(const std::vector<RunRecord>& records, const StudyResults& results,
                            DescribeMachine describe) {
  if (study_.ledger.empty()) return;
  bool has_changed = false;
  for (size_t i = 0; i < runs_.size(); ++i) {
    if (!is_complete(records[i], study_.after) || curves_.contains(i) || !added_.insert(i).second) continue;
    LedgerRow row = make_row(i, records[i], results.values[i]);
    row.data_hash = data_hash(runs_[i].config);
    row.made_by = describe(runs_[i].config);
    if (const LedgerRow* known = find(row.run, row.config_hash, row.data_hash); known != nullptr) {
      require_agreement(*known, study_.ledger.string(), row, runs_[i].directory.string());
      bool is_whole = known->record.after == row.record.after;
      for (const auto& [measure, value] : row.values)
        is_whole = is_whole && (!value.value || known->values.contains(measure));
      if (is_whole) continue;
      row.made_by = known->made_by;
      row.values.insert(known->values.begin(), known->values.end());
      row.curves.insert(known->curves.begin(), known->curves.end());
    }
    add(std::move(row));
    has_changed = true;
  }
  if (has_changed) write();
}

}  // namespace dtopp::study
