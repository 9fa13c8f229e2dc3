#include "dtopp/study/ledger_keeper.h"

#include <algorithm>
#include <iterator>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"
#include "dtopp/base/manifest.h"
#include "dtopp/base/path_kind.h"

namespace dtopp::study {
namespace {

std::vector<std::string> data_paths(const config::RunConfig& config) {
  std::vector<std::string> paths = config::paths_of(config.data.train);
  std::ranges::move(config::paths_of(config.data.validation), std::back_inserter(paths));
  return paths;
}

// A path of data is a folder with a manifest, a file, or the prefix of a .bin and an .idx file.
std::string hash_of_path(const std::filesystem::path& path) {
  switch (path_kind(path)) {
    case PathKind::kDirectory:
      return hash_file(path / kManifestName);
    case PathKind::kFile:
      return hash_file(path);
    default:
      return hash_file(path.string() + ".bin") + hash_file(path.string() + ".idx");
  }
}

}  // namespace

std::string data_hash_of(const config::RunConfig& config) {
  std::string hashes;
  for (const std::string& path : data_paths(config)) hashes += hash_of_path(path) + "\n";
  return hash_bytes(std::as_bytes(std::span(hashes)));
}

LedgerKeeper::LedgerKeeper(const Study& study, const std::vector<StudyRun>& runs)
    : study_(study), runs_(runs) {
  if (!study.ledger.empty()) ledger_.emplace(study.ledger);
}

const std::string& LedgerKeeper::data_hash(const config::RunConfig& config) {
  const std::vector<std::string> paths = data_paths(config);
  const auto known = hashes_.find(paths);
  return known != hashes_.end() ? known->second : hashes_.emplace(paths, data_hash_of(config)).first->second;
}

std::vector<std::string> LedgerKeeper::take_runs(std::vector<RunRecord>& records, ResultsReader& reader) {
  std::vector<std::string> messages;
  if (!ledger_) return messages;
  int64_t unchecked = 0;
  for (size_t i = 0; i < runs_.size(); ++i) {
    if (is_complete(records[i], study_.after)) continue;
    std::string data;
    try {
      data = data_hash(runs_[i].config);
    } catch (const DataError&) {  // the data are not on this machine
    }
    const LedgerRow* row = ledger_->find(runs_[i].name, runs_[i].hash, data);
    if (row == nullptr || !is_complete(row->record, study_.after)) continue;
    if (data.empty()) ++unchecked;
    records[i] = row->record;
    std::vector<RunValue> values;
    for (const std::string& measure : study_.measures) {
      const auto value = row->values.find(measure);
      values.push_back(value == row->values.end() ? RunValue{} : value->second);
    }
    reader.set(i, std::move(values));
    curves_[i] = row->curves;
  }
  if (unchecked > 0)
    messages.push_back("warning: " + ledger_->file().string() + ": " + std::to_string(unchecked) +
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
  if (!ledger_) return;
  bool has_changed = false;
  for (size_t i = 0; i < runs_.size(); ++i) {
    if (!is_complete(records[i], study_.after) || curves_.contains(i) || !added_.insert(i).second) continue;
    LedgerRow row = make_row(i, records[i], results.values[i]);
    row.data_hash = data_hash(runs_[i].config);
    row.made_by = describe(runs_[i].config);
    if (const LedgerRow* known = ledger_->find(row.run, row.config_hash, row.data_hash); known != nullptr) {
      require_agreement(*known, ledger_->file().string(), row, runs_[i].directory.string());
      bool is_whole = known->record.after == row.record.after;
      for (const auto& [measure, value] : row.values)
        is_whole = is_whole && (!value.value || known->values.contains(measure));
      if (is_whole) continue;
      row.made_by = known->made_by;
      row.values.insert(known->values.begin(), known->values.end());
      row.curves.insert(known->curves.begin(), known->curves.end());
    }
    ledger_->add(std::move(row));
    has_changed = true;
  }
  if (has_changed) ledger_->write();
}

}  // namespace dtopp::study
