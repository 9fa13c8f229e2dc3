// Keeps the ledger of a study up to date: takes finished runs from it, and adds those that finish.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "dtopp/study/ledger.h"
#include "dtopp/study/results.h"

namespace dtopp::study {

// Returns a checksum of the training and validation data: of each folder's manifest, or of each file's bytes.
//
// Throws: DataError if the data are missing
std::string data_hash_of(const config::RunConfig& config);

// Returns facts about the machine that trained a run ("device", "cpu", "version").
using DescribeMachine = std::map<std::string, std::string> (*)(const config::RunConfig& config);

// Does nothing for a study without a ledger. The arguments must outlive this object.
class LedgerKeeper {
 public:
  // Throws as Ledger.
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
  const std::string& data_hash(const config::RunConfig& config);
  LedgerRow make_row(size_t index, const RunRecord& record, const std::vector<RunValue>& values) const;

  const Study& study_;
  const std::vector<StudyRun>& runs_;
  std::optional<Ledger> ledger_;
  std::map<size_t, RunCurves> curves_;  // of runs that were taken
  std::set<size_t> added_;
  std::map<std::vector<std::string>, std::string> hashes_;  // by paths of data
};

}  // namespace dtopp::study
