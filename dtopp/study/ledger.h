// Reads and writes the ledger of a study: one file with the values of every finished run. It can be
// committed, and a study continues from it on any machine, without the folders of its runs.
//
//   {"runs": [{"run", "variant", "grid": {}, "seed", "config_hash", "data_hash", "values": {measure: number},
//              "diverged": [measure], "after": [command], "seconds", "steps", "tokens", "active_flops",
//              "made_by": {"device", "cpu", "version", …},
//              "curves": {measure: {"value": [], "tokens": [], "active_flops": [], "seconds": []}}}],
//    "earlier": [rows of runs whose configuration or data have changed since]}
#pragma once

#include <set>

#include "dtopp/study/curves.h"
#include "dtopp/study/results.h"
#include "dtopp/study/run_folder.h"
#include "dtopp/study/statistics.h"

namespace dtopp::study {
struct LedgerRow {
  std::string run;                // StudyRun::name
  std::string variant{}, grid{};  // grid: a JSON object
  int64_t seed = 0;
  std::string config_hash{}, data_hash{};
  RunRecord record{};                        // of a done run
  std::map<std::string, RunValue> values{};  // by measure
  int64_t steps = 0, tokens = 0;
  double active_flops = 0;
  std::map<std::string, std::string> made_by{};
  RunCurves curves{};
};

inline constexpr size_t kLedgerPoints = 64;  // of a curve

// Returns facts about the machine that trained a run ("device", "cpu", "version").
using DescribeMachine = std::map<std::string, std::string> (*)(const config::RunConfig& config);

// Keeps the ledger of a study up to date: takes finished runs from it, and adds those that finish. Does
// nothing for a study without a ledger. The arguments must outlive this object.
class LedgerKeeper {
 public:
  // Reads the file; a missing file is an empty ledger.
  //
  // Throws DataError if it is no ledger, or if two of its rows are of one run and differ.
  LedgerKeeper(const Study& study, const std::vector<StudyRun>& runs);

  // Marks runs as done that the ledger holds and that are not complete in their folder. Gives their values to
  // `reader`.
  //
  // Returns: messages to print
  std::vector<std::string> take_runs(std::vector<RunRecord>& records, ResultsReader& reader);
  // Adds the runs that are complete in their folder, and writes the file if it has changed.
  //
  // Throws: DataError if a run's folder and the ledger differ, or if the file cannot be written
  void add_runs(const std::vector<RunRecord>& records, const StudyResults& results, DescribeMachine describe);
  // The curves of the runs that were taken from the ledger, by index.
  const std::map<size_t, RunCurves>& curves() const { return curves_; }

 private:
  // Returns a checksum of the training and validation data: of each folder's manifest, or of each file's
  // bytes. Throws DataError if the data are missing.
  const std::string& data_hash(const config::RunConfig& config);
  // Returns the row of the run with this configuration and this data; nullptr if there is none. An empty
  // `data_hash` fits all data.
  const LedgerRow* find(const std::string& run, const std::string& config_hash,
                        const std::string& data_hash) const;
  // Adds a row, which replaces a row of the same run, configuration and data. It becomes the current row of
  // its run.
  void add(LedgerRow row);
  void write() const;
  LedgerRow make_row(size_t index, const RunRecord& record, const std::vector<RunValue>& values) const;

  const Study& study_;
  const std::vector<StudyRun>& runs_;
  std::vector<LedgerRow> rows_;         // the last row of a run is the current one
  std::map<size_t, RunCurves> curves_;  // of runs that were taken
  std::set<size_t> added_;
  std::map<std::vector<std::string>, std::string> hashes_;  // by paths of data
};

}  // namespace dtopp::study
